"""PFedRec: a private scoring head instead of a user vector, and a table that every client finetunes for itself."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tacit import rng
from tacit.core.leaves import Leaves, private, shared
from tacit.core.optim import Optimizer
from tacit.core.payload import State
from tacit.core.scorers import dot, pick
from tacit.core.settings import Starts
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Federation


@dataclass(frozen=True)
class PFedRec(Trained):
    """Score w_u · q_i + b_u; every batch takes a step of the head, then one of the item table.

    Symbols: θ_u -> head and bias, θ^m -> items. The head never leaves the client; tables are averaged, every client
    alike. A client ranks with the table its own training left (dual personalisation), so under the protocol `paper`
    it profits from never having drawn the held-out item as a negative.
    Departures from the paper and how the rates were chosen: docs/decisions/0006-pfedrec.md.
    """

    dim: int = 32
    lr: float = 0.1  # of the head
    table_lr: float = 13456.0  # public code: 0.1 · 80 · M, here for the 1682 items of MovieLens-100K
    epochs: int = 1
    optimizer: Optimizer = "sgd"
    init: float = 1.0
    scored_with: Literal["server", "own"] = "own"
    weighting: Literal["size", "uniform"] = "uniform"

    name: ClassVar[str] = "pfedrec"
    paper: ClassVar[str] = "Zhang et al. 2023, Dual Personalization on Federated Recommendation"
    starts: ClassVar[Starts] = (
        {"dim": 16, "lr": 1.0, "table_lr": 3000.0, "init": 0.3, "weighting": "size", "scored_with": "server"},
    )

    def leaves(self) -> Leaves:
        """The table, and a head in the user vector's place."""
        return {"items": shared(table=True), "head": private(per_user=True), "bias": private(per_user=True)}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """All start with the same head, uniform within ±1/√d, so that the first tables agree on a direction."""
        drawn = rng.uniform(federation.seed, "init/head", 0, torch.zeros(1), self.dim + 1)  # (1, d + 1)
        one = torch.from_numpy(2 * drawn - 1).float() / self.dim**0.5
        everyone = one.expand(len(users), -1)
        return {"head": everyone[:, :-1], "bias": everyone[:, -1:]}

    def phases(self, round: int) -> list[Phase]:
        """Head, then table, on every batch (Algorithm 1)."""
        return [self.phase({"head": self.lr, "bias": self.lr}, {"items": self.table_rate}, loss=self.loss)]

    def score(self, p: State, table: Tensor) -> Tensor:
        """w_u · q_i + b_u, (C, U, L)."""
        return dot(p["head"], table) + p["bias"]

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """The same for chosen pairs, (C, B)."""
        return (pick(p["head"], slot) * pick(table, row)).sum(-1) + pick(p["bias"], slot)[..., 0]
