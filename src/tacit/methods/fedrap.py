"""FedRAP: the item table is a sum of one that all share and one that a client keeps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit.core.leaves import Leaves, private
from tacit.core.method import spread
from tacit.core.objective import gradient_by
from tacit.core.payload import Payload, Shared, State
from tacit.core.scorers import row_slope
from tacit.core.settings import Amount, Decay, Search, Starts, Weight
from tacit.core.trained import Phase
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.methods.personal import Personal
from tacit.methods.pfedrec import PFedRec


@dataclass(frozen=True)
class FedRAP(Personal, PFedRec):
    """Score w_u · (c_i + d_ui) + b_u: C is averaged over clients, D_u and the head stay on the client.

    Symbols: C -> items, D -> personal, λ -> independence, μ -> sparsity, a -> round − 1. The loss keeps the two tables
    apart and the shared one sparse: BCE − λ_a·MSE(D, C) + μ_a·mean|C| over the rows of a batch, each as often as it is
    in it. A client ranks with the server's C and its own D. D remembers which items were never drawn as negatives: that
    is where the figures under the protocol `paper` come from.
    Departures from the paper and how the settings were chosen: docs/decisions/0007-fedrap.md.
    """

    lr: float = 1e-4  # of the head
    table_lr: float = 1000.0  # of both tables in the public code
    personal_lr: Amount = 0.0  # of D alone; 0: the same as C's
    epochs: int = 10
    batch: int = 2048
    independence: Weight = 0.001
    sparsity: Weight = 1e-3
    anneal: bool = True  # λ_a = λ·tanh(a / 10) and μ_a likewise; the public code has it, and does not use it
    step_decay: Annotated[Decay, Search(0.9, 1)] = 0.95  # of the rates, a step
    round_decay: Annotated[Decay, Search(0.9, 1)] = 0.97  # and a round
    scored_with: Literal["server", "own"] = "server"

    name: ClassVar[str] = "fedrap"
    paper: ClassVar[str] = "Li et al. 2024, Federated Recommendation with Additive Personalization"
    starts: ClassVar[Starts] = (
        {
            "dim": 16,
            "lr": 1.0,
            "table_lr": 3000.0,
            "personal_lr": 1.0,
            "epochs": 1,
            "batch": 256,
            "init": 0.3,
            "round_decay": 1.0,
            "step_decay": 1.0,
            "independence": 0.01,
            "sparsity": 0.01,
            "weighting": "size",
        },
    )
    personal_table: ClassVar[str] = "personal"

    def leaves(self) -> Leaves:
        """PFedRec's, and D."""
        return super().leaves() | {"personal": private(table=True)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """All start with the same D."""
        one = self._start(federation)
        return {"personal": one.expand(len(ids), *one.shape)}

    def _start(self, federation: Federation) -> Tensor:
        return self.starting(federation, "personal", federation.n_items, self.dim)

    def common(self, down: Payload, data: Cohort) -> State:
        """The D that all start with, beside the server's C."""
        own = {n: spread(down.fields[n], data, table=True) for n in self.own_leaves()}
        return own | {"personal": spread(Shared(self._start(data.federation)), data, table=True)}

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The client's leaves, the server's, and how far the two terms have been let in, (C,)."""
        progress = math.tanh((data.round - 1) / 10) if self.anneal else 1.0
        p = self.decayed(super().receive(clients, down, data), down, data)
        return p | {"progress": torch.full((len(data.ids),), progress)}

    def phases(self, round: int) -> list[Phase]:
        """All leaves move together; the rates fall with every step and every round."""
        common = self.table_rate
        rates = {"head": self.lr, "bias": self.lr, "items": common, "personal": self.personal_lr or common}
        now = {n: rate * self.round_decay ** (round - 1) for n, rate in rates.items()}
        return [self.phase(now, loss=self.loss, decay=self.step_decay)]

    def view(self, p: State) -> Tensor:
        """C + D, (C, L, d)."""
        return p["items"] + p["personal"]

    @gradient_by("additive_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """The client's part of the objective, (C,)."""
        return super().loss(p, batch) + self.terms(p, batch)

    def terms(self, p: State, batch: Batch) -> Tensor:
        """μ_a·mean|C| − λ_a·MSE(D, C) over the rows of a batch, (C,)."""
        apart = (p["personal"] - p["items"]).square().mean(2)  # (C, L)
        each = self.sparsity * p["items"].abs().mean(2) - self.independence * apart
        if batch.row is None or batch.mask is None:
            assert batch.count is not None
            total = (each * batch.count[:, 0]).sum(1)
        else:
            total = (each.gather(1, batch.row) * batch.mask).sum(1)
        return p["progress"] * total / batch.size

    def additive_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """`loss` and its gradients for one user."""
        if batch.count is None:
            return None
        head, common, personal = p["head"], p["items"], p["personal"]
        # two products cost less than the sum of the tables
        loss, slope = row_slope(torch.baddbmm(p["bias"], head, common.mT).baddbmm_(head, personal.mT), batch)
        if batch.report:
            loss = loss + self.terms(p, batch)
        for name in ("items", "personal", "sign"):
            if name not in scratch:
                scratch[name] = torch.empty_like(common)
        to_items, to_personal, sign = scratch["items"], scratch["personal"], scratch["sign"]
        share = (batch.count.mT / batch.size.view(-1, 1, 1)).mul_(p["progress"].view(-1, 1, 1) / self.dim)  # (C, L, 1)
        torch.sub(common, personal, out=to_personal).mul_(share * (2 * self.independence))  # d/dD of −λ·MSE
        torch.neg(to_personal, out=to_items).addcmul_(slope.mT, head)
        to_personal.addcmul_(slope.mT, head)
        to_items.addcmul_(torch.sign(common, out=sign), share, value=self.sparsity)
        grads = {
            "head": slope @ common + slope @ personal,
            "bias": slope.sum(2, keepdim=True),
            "items": to_items,
            "personal": to_personal,
        }
        return loss, {n: grads[n] for n in names}
