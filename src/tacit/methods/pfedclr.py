"""PFedCLR: calibrate the user vector through a low-rank buffer beside the item table."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import rng
from tacit.core.method import Method, Phase
from tacit.core.optim import Optimizer
from tacit.core.payload import State
from tacit.core.scorers import inner_product_step
from tacit.data.cohort import Batch, Federation


@dataclass(frozen=True)
class PFedCLR(Method):
    """Train the table with the user frozen and upload it; then train user and buffer with the table frozen.

    Symbols: Q_u -> items, p_u -> user, A_u and B_u -> A and B, W_u -> W, β -> buffer_lr. The buffer never leaves the
    client; it ranks with Q_u + A_u B_u, Q_u being its own after Step 1. Variants of Table 2: `clr` (low rank),
    `cf` (a full matrix in the buffer's place) and `af` (user and table trained together as in FedMF, then a full
    matrix that adapts the server's table). Departures from the paper: docs/decisions/0005-pfedclr.md.
    """

    rank: int = 2  # r, Sec. 5.4
    buffer_lr: float = 0.01  # β, App. D.6
    variant: Literal["clr", "cf", "af"] = "clr"
    fraction: float = 0.6
    optimizer: Optimizer = "adam"
    scored_with: Literal["server", "own"] = "own"

    name: ClassVar[str] = "pfedclr"
    paper: ClassVar[str] = "Chen et al. 2025, Beyond Personalization: Calibration via Low-rank Decomposition"
    tables: ClassVar[tuple[str, ...]] = ("items", "A", "W")

    @property
    def private(self) -> tuple[str, ...]:  # type: ignore[override]
        """The user vector and the buffer."""
        return ("user", "A", "B") if self.variant == "clr" else ("user", "W")

    @property
    def own_leaves(self) -> tuple[str, ...]:
        """None for AF, whose matrix is there to adapt the server's table."""
        return () if self.variant == "af" else super().own_leaves

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """A and W are zero, so that training starts from the plain table; B is Gaussian (Sec. 4.2)."""
        if self.variant != "clr":
            return {"W": torch.zeros(len(ids), federation.n_items, self.dim)}
        return {
            "A": torch.zeros(len(ids), federation.n_items, self.rank),
            "B": self.init * rng.normal(federation.seed, "init/B", 0, ids, self.rank, self.dim),
        }

    def phases(self, round: int) -> list[Phase]:
        """Step 1 (Eq. 6) and Step 2 (Eq. 10; Eq. 9 for a full matrix)."""
        joint = {"user": self.lr} if self.variant == "af" else {}
        first = self.phase(joint | {"items": self.table_lr or self.lr}, loss=self.plain_loss)
        buffer = {n: self.lr if n == "user" else self.buffer_lr for n in self.private}
        if self.variant == "af":
            buffer.pop("user")
        second = self.phase(buffer, loss=self.loss)
        return [replace(first, by_hand=plain_step), second]

    def plain_loss(self, p: State, batch: Batch) -> Tensor:
        """The loss without the buffer (Eq. 2)."""
        return self.bce(p, p["items"], batch)

    def view(self, p: State) -> Tensor:
        """Q_u + A_u B_u, (C, L, d)."""
        return torch.baddbmm(p["items"], p["A"], p["B"]) if self.variant == "clr" else p["items"] + p["W"]

    def by_hand(self, p: State, batch: Batch, names: Iterable[str], scratch: State) -> tuple[Tensor, State] | None:
        """The gradients of Eq. 10."""
        if batch.count is None or batch.positive is None:
            return None
        user, table = p["user"], self.view(p)
        logits = user @ table.mT  # (C, 1, L)
        loss = torch.zeros_like(batch.size)
        if batch.report:
            loss = (batch.count * F.softplus(logits) - batch.positive * logits).sum((1, 2)) / batch.size
        slope = logits.sigmoid_().mul_(batch.count).sub_(batch.positive).div_(batch.size.view(-1, 1, 1))
        grads: State = {}
        if "user" in names:
            grads["user"] = slope @ table
        if "W" in names:
            grads["W"] = slope.mT * user
        if "A" in names:
            grads["A"] = slope.mT * (user @ p["B"].mT)  # (C, L, 1) · (C, 1, r)
        if "B" in names:
            grads["B"] = (slope @ p["A"]).mT * user  # (C, r, 1) · (C, 1, d)
        return loss, grads


def plain_step(p: State, batch: Batch, names: Iterable[str], scratch: State) -> tuple[Tensor, State] | None:
    """`plain_loss` by hand: the inner product of FedMF."""
    return None if batch.count is None else inner_product_step(p["user"], p["items"], batch, names, scratch)
