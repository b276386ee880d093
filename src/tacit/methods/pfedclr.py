"""PFedCLR: calibrate the user vector through a low-rank buffer beside the item table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tacit import rng
from tacit.core.leaves import Leaves, named, private
from tacit.core.method import spread
from tacit.core.objective import gradient_by
from tacit.core.optim import Optimizer
from tacit.core.payload import Payload, State
from tacit.core.scorers import row_slope
from tacit.core.settings import Rate, Starts, Width
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.methods.personal import Personal


@dataclass(frozen=True)
class PFedCLR(Personal, Trained):
    """Train the table with the user frozen and upload it; then train user and buffer with the table frozen.

    Symbols: Q_u -> items, p_u -> user, A_u and B_u -> A and B, W_u -> W, β -> buffer_lr. The buffer never leaves the
    client; it ranks with Q_u + A_u B_u, Q_u being its own after Step 1. Variants of Table 2: `clr` (low rank),
    `cf` (a full matrix in the buffer's place) and `af` (user and table trained together as in FedMF, then a full
    matrix that adapts the server's table). Departures from the paper: docs/decisions/0005-pfedclr.md.
    """

    rank: Width = 2  # r, Sec. 5.4
    buffer_lr: Rate = 0.01  # β, App. D.6
    variant: Literal["clr", "cf", "af"] = "clr"
    calibrated_on: Literal["server", "own"] = "own"  # whose table Step 2 adds the buffer to
    aggregated: float = 0.6  # s of App. C.3: everybody trains, a share is averaged
    optimizer: Optimizer = "adam"
    scored_with: Literal["server", "own"] = "own"

    name: ClassVar[str] = "pfedclr"
    paper: ClassVar[str] = "Chen et al. 2025, Beyond Personalization: Calibration via Low-rank Decomposition"
    starts: ClassVar[Starts] = (
        {
            "optimizer": "sgd",
            "lr": 1.0,
            "table_lr": 1000.0,
            "epochs": 2,
            "init": 0.1,
            "buffer_lr": 0.1,
            "calibrated_on": "server",
            "own_share": 0.0,
        },
    )

    def leaves(self) -> Leaves:
        """FedMF's, and the buffer."""
        buffer = {"A": private(table=True), "B": private()} if self.variant == "clr" else {"W": private(table=True)}
        return super().leaves() | buffer

    def own_leaves(self) -> tuple[str, ...]:
        """None for AF, whose matrix is there to adapt the server's table."""
        return () if self.variant == "af" else super().own_leaves()

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """A and W are zero, so that training starts from the plain table; B is Gaussian (Sec. 4.2)."""
        if self.variant != "clr":
            return {"W": torch.zeros(len(ids), federation.n_items, self.dim)}
        return {
            "A": torch.zeros(len(ids), federation.n_items, self.rank),
            "B": self.init * rng.normal(federation.seed, "init/B", 0, ids, self.rank, self.dim),
        }

    def common(self, down: Payload, data: Cohort) -> State:
        """The server's table, and an empty buffer."""
        own = {n: spread(down.fields[n], data, table=True) for n in self.own_leaves()}
        return own | {"A" if self.variant == "clr" else "W": torch.zeros(1)}

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """FedMF's leaves, and what is left of the buffer."""
        p = self.decayed(super().receive(clients, down, data), down, data)
        return p | {"sent": p["items"]} if data.round and self.calibrated_on == "server" else p

    def phases(self, round: int) -> list[Phase]:
        """Step 1 (Eq. 6) and Step 2 (Eq. 10; Eq. 9 for a full matrix)."""
        joint = {"user": self.lr} if self.variant == "af" else {}
        buffer = {n: self.lr if n == "user" else self.buffer_lr for n in named(self.leaves(), "private")}
        if self.variant == "af":
            buffer.pop("user")
        first = self.phase(joint | {"items": self.table_rate}, loss=self.plain_loss)
        return [first, self.phase(buffer, loss=self.loss)]

    @gradient_by("inner_product_gradient")
    def plain_loss(self, p: State, batch: Batch) -> Tensor:
        """The loss without the buffer (Eq. 2)."""
        return self.bce(p, p["items"], batch)

    def view(self, p: State) -> Tensor:
        """Q_u + A_u B_u, or Q_g in the place of Q_u, (C, L, d)."""
        items = p.get("sent", p["items"])
        return torch.baddbmm(items, p["A"], p["B"]) if self.variant == "clr" else items + p["W"]

    @gradient_by("buffer_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """The loss with the buffer (Eq. 7)."""
        return self.bce(p, self.view(p), batch)

    def buffer_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """The gradients of Eq. 10."""
        if batch.count is None:
            return None
        user, table = p["user"], self.view(p)
        loss, slope = row_slope(user @ table.mT, batch)  # (C, 1, L)
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
