"""tally with a small model: clients download what is cut from a solution; the server keeps the exact one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.leaves import Leaves, shared
from tacit.core.method import Method, Moment
from tacit.core.payload import Payload, Shared, State
from tacit.data.cohort import Cohort
from tacit.data.splits import Orders
from tacit.errors import UserError
from tacit.methods.large_sums import diagonal
from tacit.methods.tally import Tally
from tacit.methods.tally_private import PrivateTally
from tacit.methods.tally_small import Whole, cut, decode

Ints = NDArray[np.int64]
LEAST = 0.01  # MB


@dataclass(frozen=True)
class SmallTally(Tally):
    """tally whose clients all download the same model of at most `small` MB, and rank with that."""

    def __post_init__(self) -> None:
        """Refuse sizes that hold nothing."""
        super().__post_init__()
        if not self.small >= LEAST:
            raise UserError(f"small={self.small:g} is invalid for tally: a model takes {LEAST:g} MB or more; 0: whole")

    def leaves(self) -> Leaves:
        """The file of the small model; for counting and summing, which items have rows."""
        return dict.fromkeys(("inputs", "model"), shared())

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """As ever; then cut."""
        return self._cut(super().aggregate(server, uplinks, now))

    def revise(self, server: State, old: Orders, new: Orders) -> State:
        """On the exact solution; then cut."""
        return self._cut(super().revise(server, old, new))

    def _cut(self, server: State) -> State:
        blob = small_model(self, server, self.small)
        return server | {"model": torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else _NONE}

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """As ever, with what the small model gives for B and E."""
        return super().serve(clients, self._written_out(down, data.federation.n_items), data, part)

    def _written_out(self, down: Payload, n_items: int) -> Payload:
        """What a client ranks with: B, E and w from the small model, nothing of them before there is one."""
        fields = {n: f for n, f in down.fields.items() if n != "model"}
        leaves = {"B": torch.zeros(0), "E": torch.zeros(0), "blend": torch.zeros(2)}
        if len(blob := down["model"].numpy().tobytes()):
            model = decode(blob)
            tall = len(down["inputs"]) if self.inputs else n_items
            rows = {"B": len(self.windows) * tall, "E": tall}
            if model.n_items != n_items or any(len(part.step) != rows.get(name) for name, part in model.parts.items()):
                raise UserError("the small model is one of other items or time scales")  # and may be of any size
            leaves |= {name: torch.from_numpy(part.dense()) for name, part in model.parts.items()}
            leaves["blend"] = torch.tensor([model.blend, model.tilt])
        return Payload(down.ids, fields | {n: Shared(x) for n, x in leaves.items()})


_NONE = torch.zeros(0, dtype=torch.uint8)


def form_of(settings: Mapping[str, Any]) -> type[Method] | None:
    """The class that carries out a privacy budget or a small model; None: neither is asked for."""
    epsilon, small = (str(settings.get(name, 0)).strip("0.") for name in ("epsilon", "small"))
    return PrivateTally if epsilon else SmallTally if small else None


def small_model(method: Tally, server: State, megabytes: float) -> bytes:
    """The file of a small model of a solution; empty before there is one."""
    blend, *tilt = server["blend"].tolist()
    inputs = server["inputs"].numpy().astype(np.int64) if "inputs" in server else None
    parts: dict[str, Whole] = {}
    for name, sums, share in (("B", "A", 1 - blend), ("E", "G", blend)):
        matrix = server.get(name, _NONE)
        if len(matrix) and share > 0:
            rows = np.arange(matrix.shape[1]) if inputs is None else inputs
            own = np.resize(rows, len(matrix))
            parts[name] = Whole(matrix.numpy(), _used(server[sums], own if sums == "G" else None), own, share)
    if not parts:
        return b""
    return cut(parts, megabytes * 1e6, method.windows, method.decays, blend, inputs, sum(tilt))


def _used(sums: Tensor, column: Ints | None) -> NDArray[np.float64]:
    """(R,) how much histories have of each row; `column`: where its own column is, None: at its own number."""
    return diagonal(sums, None if column is None else torch.from_numpy(column)).double().numpy()
