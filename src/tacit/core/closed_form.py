"""What a closed form is: clients send sums once, the server solves, and validation chooses among its solutions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from tacit.core.method import Method
from tacit.core.payload import Payload, State
from tacit.core.scorers import dot
from tacit.data.cohort import Cohort


@dataclass(frozen=True)
class ClosedForm(Method):
    """No rates, no negatives, no local training; as many rounds as there are solutions to try."""

    validated: ClassVar[bool] = True  # validation chooses among its solutions; else the last one is the one

    def asks(self, round: int) -> bool:
        """One upload serves every solution."""
        return round == 1

    def settled(self, values: Sequence[float]) -> bool:
        """Whether no later solution can win, after these values on validation."""
        return False

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Sums need nothing from the server."""
        return {}


def history(data: Cohort, part: str, source: str) -> Tensor:
    """(C, U, M) what a device ranks from: its training items and, where `source` is `known`, at test the one after."""
    return data.history("test" if part == "test" and source == "known" else "train")


def linear(histories: Tensor, weights: Tensor) -> Tensor:
    """x_u B for item weights B (M, M) that all clients share, (C, U, M)."""
    return dot(histories, weights.T.expand(len(histories), -1, -1))


def gram(data: Cohort, power: float = 0.0) -> Tensor:
    """(C, M, M) Σ_u x xᵀ / n_u^power over each client's users, counted without writing the histories out."""
    split, n_items = data.federation.split, data.federation.n_items
    out = torch.empty(len(data.ids), n_items, n_items)
    for users, room in zip(data.users.numpy(), out, strict=True):
        rows = [split.train[u] for u in users[users >= 0]]
        length = np.array([len(row) for row in rows], dtype=np.int64)
        weight = np.repeat(np.maximum(length, 1).astype(np.float32) ** (-power / 2), length)
        start = np.concatenate([[0], np.cumsum(length)])
        items = np.concatenate([*rows, np.zeros(0, dtype=np.int64)])
        X = sparse.csr_matrix((weight, items, start), shape=(len(rows), n_items))
        (X.T @ X).toarray(out=room.numpy())
    return out


def added_up(uplinks: Iterable[Payload], name: str) -> Tensor | None:
    """Σ_c of a field in single precision, in the memory of the first; None: nobody sent any."""
    total: Tensor | None = None
    for up in uplinks:
        for part in up[name]:
            total = part if total is None else total.add_(part)
    return total
