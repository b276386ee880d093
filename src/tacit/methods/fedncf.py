"""FedNCF: a perceptron over user and item vectors, federated, and its centralised reference."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from tacit.core.leaves import Leaves, shared
from tacit.core.objective import gradient_by
from tacit.core.optim import Optimizer
from tacit.core.payload import State
from tacit.core.perceptron import chosen_pairs, every_pair, through
from tacit.core.scorers import put, take
from tacit.core.settings import Choices, Width
from tacit.core.trained import Trained
from tacit.data.cohort import Batch, Federation


@dataclass(frozen=True)
class FedNCF(Trained):
    """Score MLP([p_u, q_i]). Item table and perceptron are shared and averaged; the user vector is private."""

    lr: float = 1.0
    table_lr: float = 3000.0  # these and the layers are chosen on validation (MovieLens-100K, `strict`)
    epochs: int = 1
    optimizer: Optimizer = "sgd"
    init: float = 0.1
    layers: Annotated[tuple[Width, ...], Choices(((8,), (32, 16, 8), (64, 32, 16)))] = (
        32,
        16,
        8,
    )  # widths behind the input of 2d

    name: ClassVar[str] = "fedncf"
    paper: ClassVar[str] = "Perifanis and Efraimidis 2022"
    deep: ClassVar[bool] = True

    @property
    def perceptron(self) -> tuple[str, ...]:
        """Every weight and bias."""
        return tuple(f"{kind}{n}" for n in range(len(self.layers) + 1) for kind in ("w", "b"))

    def leaves(self) -> Leaves:
        """The table, the user vector and the perceptron."""
        return super().leaves() | dict.fromkeys(self.perceptron, shared())

    def init_server(self, federation: Federation) -> State:
        """The table as FedMF's; weights of variance 2 / inputs (He et al. 2015), biases zero."""
        server = super().init_server(federation)
        for n, (rows, columns) in enumerate(pairwise((2 * self.dim, *self.layers, 1))):
            unit = self.starting(federation, f"w{n}", rows, columns) / self.init
            server |= {f"w{n}": unit * (2 / rows) ** 0.5, f"b{n}": torch.zeros(columns)}
        return server

    @gradient_by("perceptron_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """Mean binary cross-entropy of each client's batch, (C,)."""
        return super().loss(p, batch)

    def perceptron_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """`loss` and its gradients for one user; only the batch's rows pass through the perceptron."""
        if batch.count is None:
            return None
        few, rows = batch.occurring
        loss, grads, of_user, of_rows = through(
            {n: p[n] for n in self.perceptron}, p["user"], take(p["items"], rows), few
        )
        grads["user"] = of_user
        if "items" in names:
            grads["items"] = put(of_rows, rows, few, p["items"], scratch)
        return loss, {n: grads[n] for n in names}

    def score(self, p: State, table: Tensor) -> Tensor:
        """(C, U, L)."""
        return every_pair({n: p[n] for n in self.perceptron}, p["user"], table)

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """(C, B)."""
        return chosen_pairs({n: p[n] for n in self.perceptron}, p["user"], table, slot, row)


@dataclass(frozen=True)
class NCF(FedNCF):
    """The same model on pooled data: one client holds all users; a round is an epoch."""

    dim: int = 32  # with these layers the best of three tries on validation (MovieLens-100K, `strict`)
    lr: float = 0.003
    table_lr: float = 0.0
    batch: int = 2048
    rounds: int = 30
    optimizer: Optimizer = "adam"
    layers: tuple[int, ...] = (64, 32, 16)

    name: ClassVar[str] = "ncf"
    paper: ClassVar[str] = "He et al. 2017, centralised"
    pooled: ClassVar[bool] = True
