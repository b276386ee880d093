"""FedNCF: a perceptron over user and item vectors, federated, and its centralised reference."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core.method import Method
from tacit.core.optim import Optimizer
from tacit.core.payload import State
from tacit.core.scorers import perceptron_step, pick
from tacit.data.cohort import Batch, Federation


@dataclass(frozen=True)
class FedNCF(Method):
    """Score MLP([p_u, q_i]). Item table and perceptron are shared and averaged; the user vector is private."""

    lr: float = 1.0
    table_lr: float = 3000.0  # these and the layers are chosen on validation (MovieLens-100K, `strict`)
    epochs: int = 1
    optimizer: Optimizer = "sgd"
    init: float = 0.1
    layers: tuple[int, ...] = (32, 16, 8)  # widths behind the input of 2d

    name: ClassVar[str] = "fedncf"
    paper: ClassVar[str] = "Perifanis and Efraimidis 2022"

    @property
    def perceptron(self) -> tuple[str, ...]:
        """Every weight and bias."""
        return tuple(f"{kind}{n}" for n in range(len(self.layers) + 1) for kind in ("w", "b"))

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The table and the perceptron."""
        return ("items", *self.perceptron)

    def init_server(self, federation: Federation) -> State:
        """The table as FedMF's; weights of variance 2 / inputs (He et al. 2015), biases zero."""
        server = super().init_server(federation)
        for n, (rows, columns) in enumerate(pairwise((2 * self.dim, *self.layers, 1))):
            unit = self.noise(federation, f"w{n}", rows, columns) / self.init
            server |= {f"w{n}": unit * (2 / rows) ** 0.5, f"b{n}": torch.zeros(columns)}
        return server

    def score(self, p: State, table: Tensor) -> Tensor:
        """(C, U, L); the first layer is linear, so its user half and its item half are added."""
        weight = p["w0"]  # (C, 2d, h)
        of_user = p["user"] @ weight[:, : self.dim]  # (C, U, h)
        of_item = table @ weight[:, self.dim :]  # (C, L, h)
        first = of_user[:, :, None] + of_item[:, None] + p["b0"][:, None, None]
        C, U, L, _ = first.shape
        return self._rest(p, first.flatten(1, 2)).view(C, U, L)

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """(C, B)."""
        both = torch.cat([pick(p["user"], slot), pick(table, row)], -1)
        return self._rest(p, torch.baddbmm(p["b0"][:, None], both, p["w0"]))

    def by_hand(self, p: State, batch: Batch, names: Iterable[str], scratch: State) -> tuple[Tensor, State] | None:
        """`loss` and its gradients without autograd, where the table scored with is the shared one."""
        own = type(self)
        plain = (own.loss, own.bce, own.view, own.score) == (Method.loss, Method.bce, Method.view, FedNCF.score)
        if not plain or batch.count is None:
            return None
        return perceptron_step(p, len(self.layers), p["items"], batch, names, scratch)

    def _rest(self, p: State, hidden: Tensor) -> Tensor:
        """All layers after the first: (C, B, h) -> (C, B)."""
        for n in range(1, len(self.layers) + 1):
            hidden = torch.baddbmm(p[f"b{n}"][:, None], F.relu(hidden), p[f"w{n}"])
        return hidden[..., 0]


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
