"""LightGCN: user and item vectors smoothed over the graph of interactions; federated, and its centralised reference."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from tacit.core.optim import Optimizer
from tacit.core.payload import Payload, State
from tacit.core.scorers import dot, pick
from tacit.core.settings import Amount, Choices, Search, Weight, Whole
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Batch, Cohort

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class FedLightGCN(Trained):
    """LightGCN on each client's own graph; the items' layer-0 table is shared and averaged by |D_u|.

    Score e_u · e_i with e the mean of a node's layers 0 … K, each layer a step over the normalised graph (He et al.
    2020, Eq. 3–5). A device of one user sees a star: its user mixes with the mean of its items, and an item it has not
    touched is only scaled. A client of many users sees the graph between them. Layer-0 user vectors are private.

    An item's degree is more than a client can see. Taken from a star alone it is 1, and then a touched item takes up so
    much of its user that positives are told from negatives without learning anything: `elsewhere` stands for the rest.
    Departures: docs/decisions/0009-lightgcn.md.
    """

    lr: float = 3.0
    table_lr: float = 3000.0
    epochs: int = 1
    optimizer: Optimizer = "sgd"
    init: float = 0.1
    layers: Annotated[Whole, Search(1, 3)] = 1  # K
    objective: Annotated[Literal["bpr", "bce"], Choices()] = "bpr"
    l2: Weight = 1e-4  # λ of the layer-0 vectors in a batch
    elsewhere: Amount = 100.0  # interactions an item is taken to have with users of other clients

    name: ClassVar[str] = "fedlightgcn"
    paper: ClassVar[str] = "He et al. 2020, federated as FedCIA compares with"
    neighbours: ClassVar[bool] = True

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The leaves and the clients' graph, from items to users and back."""
        return super().receive(clients, down, data) | graph(data, self.elsewhere)

    def phases(self, round: int) -> list[Phase]:
        """One phase; BPR compares each positive with each of its negatives."""
        rates = {"user": self.lr, "items": self.table_rate}
        return [self.phase(rates, loss=self.loss, ranked=self.objective == "bpr")]

    def view(self, p: State) -> Tensor:
        """Every node's vector, (C, L + U, d): the items', and behind them the users' that they are scored with."""
        users, items = propagate(p["user"], p["items"], p["to_users"], p["to_items"], self.layers)
        return torch.cat([items, users], 1)

    def score(self, p: State, table: Tensor) -> Tensor:
        """(C, U, L)."""
        items, users = halves(p, table)
        return dot(pick(users, p["slots"]) if "slots" in p else users, items)

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """(C, B)."""
        items, users = halves(p, table)
        return (pick(users, slot) * pick(items, row)).sum(-1)

    def loss(self, p: State, batch: Batch) -> Tensor:
        """BPR with λ/2 of the mean squared layer-0 vectors (He et al. 2020, Eq. 15), or BCE with the same, (C,)."""
        measure = self.bpr if self.objective == "bpr" else self.bce
        return measure(p, self.view(p), batch) + 0.5 * self.l2 * squares(p["user"], p["items"], batch)


@dataclass(frozen=True)
class LightGCN(FedLightGCN):
    """The same on the whole graph: one client holds all users; a round is an epoch."""

    dim: int = 64
    lr: float = 0.01
    table_lr: float = 0.0
    batch: int = 2048
    rounds: int = 60
    negatives: int = 1
    optimizer: Optimizer = "adam"
    layers: int = 2
    elsewhere: float = 0.0  # there is nobody else

    name: ClassVar[str] = "lightgcn"
    paper: ClassVar[str] = "He et al. 2020, centralised"
    pooled: ClassVar[bool] = True


def halves(p: State, table: Tensor) -> tuple[Tensor, Tensor]:
    """The items' rows of a table of all nodes (C, L + U, d), and the users'."""
    rows = p["items"].shape[1]
    return table[:, :rows], table[:, rows:]


def graph(data: Cohort, elsewhere: float = 0.0) -> State:
    """The clients' normalised graphs side by side, sparse: `to_users` (C·U, C·L) and its transpose `to_items`.

    An interaction weighs 1 / √(n_u n_i), n_u and n_i the degrees (He et al. 2020, Eq. 3), of an item those within the
    client and `elsewhere`.
    """
    from scipy.sparse import csr_array

    (C, U), L = data.users.shape, data.rows.shape[1]
    if data.row.shape[1]:  # every positive is among the samples once
        client, place = data.label.numpy().nonzero()
        slot, row = data.slot.numpy()[client, place], data.row.numpy()[client, place]
    else:  # without samples the rows are all items
        slots, items = data.federation.positives(data.users.numpy())
        client, place = (items >= 0).nonzero()
        slot, row = slots[client, place], items[client, place]
    user, item = client * U + slot, client * L + row
    degrees = np.bincount(user, minlength=C * U)[user] * (np.bincount(item, minlength=C * L)[item] + elsewhere)
    made = csr_array(((1 / np.sqrt(degrees)).astype(np.float32), (user, item)), shape=(C * U, C * L))
    return {"to_users": _tensor(made), "to_items": _tensor(made.T.tocsr())}


def propagate(users: Tensor, items: Tensor, to_users: Tensor, to_items: Tensor, layers: int) -> tuple[Tensor, Tensor]:
    """Means of layers 0 … K of users (C, U, d) and items (C, L, d); e^(k+1) = Σ e^(k) / √(n_u n_i) over neighbours."""
    user, item = users.flatten(0, 1), items.flatten(0, 1)
    all_users, all_items = user, item
    for _ in range(layers):
        user, item = along(to_users, to_items, item), along(to_items, to_users, user)
        all_users, all_items = all_users + user, all_items + item
    return (all_users / (layers + 1)).view(users.shape), (all_items / (layers + 1)).view(items.shape)


def squares(users: Tensor, items: Tensor, batch: Batch) -> Tensor:
    """Sum of the squared user and item vectors in a batch by its size, (C,)."""
    of_users, of_items = users.square().sum(-1), items.square().sum(-1)  # (C, U), (C, L)
    if batch.count is not None:
        return (batch.count[:, 0] * of_items).sum(1) / batch.size + of_users[:, 0]
    assert batch.row is not None
    assert batch.mask is not None
    each = of_items.gather(1, batch.row)
    if batch.rival is not None:
        each = each + of_items.gather(1, batch.rival)
    each = each + (of_users if batch.slot is None else of_users.gather(1, batch.slot))
    return (each * batch.mask).sum(1) / batch.size


class _Along(torch.autograd.Function):
    """A @ x for a sparse A that has its transpose beside it, so that the way back costs the same."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transpose: Tensor, x: Tensor) -> Tensor:
        ctx.transpose = transpose
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transpose @ grads[0]


def along(matrix: Tensor, transpose: Tensor, x: Tensor) -> Tensor:
    """Sparse (m, n) by dense (n, d): (m, d), differentiable in x."""
    return cast(Tensor, _Along.apply(matrix, transpose, x))  # type: ignore[no-untyped-call]


def _tensor(matrix: "csr_array") -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        start, column = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
        return torch.sparse_csr_tensor(
            start, column, torch.from_numpy(matrix.data), matrix.shape, check_invariants=False
        )
