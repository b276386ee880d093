"""LGMix: mix a client's table with the server's before it trains: what PLGC sets out from (its Eq. 4, Figure 3).

A plug-in over a backbone, as `lgmix+fedmf`, to be compared with `plgc+fedmf`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tacit.core.leaves import Leaves, kept, named
from tacit.core.method import Method
from tacit.core.payload import Each, Field, Payload, Rows, State, rows_of
from tacit.core.plug import Plug
from tacit.core.trained import Trained
from tacit.data.cohort import Cohort, Federation
from tacit.methods.regularisers import TINY, squares

if TYPE_CHECKING:
    Backbone = Trained
else:
    Backbone = object  # the backbone stands behind the plug-in in the order of bases, and keeps its own defaults


@dataclass(frozen=True)
class LGMix(Plug, Backbone):
    """A round starts from w_c(t+1) = w_c(t) + λ_c Δw_c(t) + λ_g Δw_g(t) (PLGC, Eq. 4) and goes on as the backbone's.

    The paper gives no λ here; they are those of Eq. 15, of the table as training left it and the one that was sent.
    What a client keeps of the sum is all but the server's newest table: lgmix_base = w_c(t) + λ_c Δw_c(t) − λ_g w_g(t).
    It ranks with what it would train from now; lgmix_local is what its training left, for Figure 3.
    """

    name: ClassVar[str] = "lgmix"

    @classmethod
    def unfit(cls, method: Method) -> str:
        """It mixes the one item table that clients train."""
        trains = isinstance(method, Trained) and not method.pooled and "items" in named(method.leaves(), "shared")
        one = trains and isinstance(method, Trained) and not method.personal_table
        return "" if one else "clients that train one item table, a shared one"

    def leaves(self) -> Leaves:
        """The backbone's, and what is left of Eq. 4 until the next table comes."""
        return super().leaves() | dict.fromkeys(("lgmix_base", "lgmix_local", "lgmix_wide", "trained"), kept())

    def own_leaves(self) -> tuple[str, ...]:
        """The backbone's, without the table: a client has its own anyway."""
        return tuple(n for n in super().own_leaves() if n != "items")

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Nothing is mixed before a first round."""
        table, one = torch.zeros(len(ids), federation.n_items, self.dim), torch.zeros(len(ids))
        out = super().init_clients(federation, ids)
        return out | {"lgmix_base": table, "lgmix_local": table, "lgmix_wide": one, "trained": one}

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The table of Eq. 4 in the place of the server's."""
        p = super().receive(clients, down, data)
        sent, wide = down["items"], clients["lgmix_wide"].view(-1, 1, 1)  # λ_g
        began = clients["trained"].view(-1, 1, 1) > 0
        table = torch.where(began, clients["lgmix_base"] + wide * sent, sent)  # (C, M, d)
        items = table
        if not data.every_row:  # padding as the backbone has it, so that nothing moves it
            items = torch.where(data.real[..., None], rows_of(table, data.rows, own=True), p["items"])
        return p | {"items": items, "lgmix_base": table}

    def whole(self, name: str, p: State, down: Payload, data: Cohort) -> Field:
        """A client's rows differ from the server's all over."""
        return Each(self._table(p, data)) if name == "items" else super().whole(name, p, down, data)

    def _table(self, p: State, data: Cohort) -> Tensor:
        """The table as training left it, (C, M, d); put together once, for the client and for the server."""
        if "lgmix_whole" not in p:
            p["lgmix_whole"] = Rows(p["items"], data.rows, data.real, p["lgmix_base"]).dense()
        return p["lgmix_whole"]

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """The backbone's, and what is known of Eq. 4."""
        table, sent = self._table(p, data), down["items"]
        local = squares(table)
        share = (local / (local + squares(sent)).clamp(min=TINY)).view(-1, 1, 1)  # λ_c
        base = torch.lerp(p["lgmix_base"], table, share) - (1 - share) * sent
        own = {"lgmix_base": base, "lgmix_local": table, "lgmix_wide": 1 - share.view(-1)}
        return super().keep(p, down, data) | own | {"trained": torch.ones(len(data.ids))}
