"""What a method that trains on its clients adds: rates, phases and losses. The defaults are FedMF."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit import rng
from tacit.core.aggregate import weighted_mean
from tacit.core.leaves import Leaves, named, private, shared
from tacit.core.method import Method, Moment, starting
from tacit.core.objective import Value, gradient_by
from tacit.core.optim import Optimizer
from tacit.core.payload import Each, Field, Payload, Rows, State
from tacit.core.scorers import dot, inner_product_step, pair_bce, pair_bpr, pick, row_bce, take
from tacit.core.settings import Choices, Count, Epochs, Negatives, Part, Positive, Rate, Spread, Whole, Width
from tacit.data.cohort import Batch, Cohort, Federation


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: which leaves move, at which rate, against which loss."""

    turns: tuple[Mapping[str, float], ...]  # rate per leaf; every batch takes these turns one after another
    loss: Value
    epochs: int = 1
    batch: int = 256  # 0: everything in one step
    optimizer: Optimizer = "adam"
    decay: float = 1.0  # of the rates, per step
    ranked: bool = False  # whether a batch ranks positives against negatives, as BPR does


@dataclass(frozen=True)
class Trained(Method):
    """Clients train an item table that the server averages, and a user vector of their own.

    A client ranks with what the server sends (`scored_with` is `server`), or with the shared leaves as its own last
    training left them (`own`): those are kept for it under the names `own_…`, and nothing else reads them.
    """

    dim: Width = 16  # d
    lr: Rate = 0.01
    table_lr: Rate = 0.0  # of the shared item table; 0: the same as lr
    epochs: Epochs = 10  # local epochs a round
    batch: Whole = 256  # 0: everything in one step
    negatives: Negatives = 4  # per positive, redrawn every round
    rounds: Count = 100
    fraction: Positive = 1.0  # of the clients, a round; above 1 a number of clients
    aggregated: Part = 1.0  # of the clients that train in a round, those whose uploads the server makes use of
    traverse: bool = False  # rounds take their clients from a shuffled queue, every client once before it starts over
    optimizer: Optimizer = "adam"
    init: Spread = 0.01  # standard deviation of the starting values
    scored_with: Annotated[Literal["server", "own"], Choices()] = "server"  # whose shared leaves a client ranks with
    weighting: Literal["size", "uniform"] = "size"  # of a client in the server's mean: |D_u|, or one for all

    individual: ClassVar[str] = ""  # a weighted mean
    personal_table: ClassVar[str] = ""  # the private table that a client adds to the shared one, if it has one
    deep: ClassVar[bool] = False  # a score costs more than picking its row: only a batch's rows pass through `score`

    @property
    def every_row(self) -> bool:
        """Whether clients train on all M rows, for losses over the whole table."""
        return False

    @property
    def width(self) -> int:
        """The table's."""
        return self.dim

    def leaves(self) -> Leaves:
        """The item table, and the user vector."""
        return {"items": shared(table=True), "user": private(per_user=True)}

    def own_leaves(self) -> tuple[str, ...]:
        """All that is shared, if asked for."""
        return named(self.leaves(), "shared") if self.scored_with == "own" else ()

    def length(self, asked: int | None = None) -> int:
        """As many as asked for."""
        return asked or self.rounds

    def data(self, federation: Federation, ids: Tensor, round: int) -> Cohort:
        """The clients' interactions and the round's negatives."""
        return federation.cohort(ids, round, self.negatives, self.every_row)

    def init_server(self, federation: Federation) -> State:
        """The item table."""
        return {"items": self.starting(federation, "items", federation.n_items, self.dim)}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """The user vectors."""
        return {"user": self.init * rng.normal(federation.seed, "init/user", 0, users, self.dim)}

    def starting(self, federation: Federation, leaf: str, *shape: int) -> Tensor:
        """Starting values of a server's leaf: normal, standard deviation `init`."""
        return starting(federation, leaf, self.init, *shape)

    def phases(self, round: int) -> list[Phase]:
        """The local training of a round."""
        rates = dict.fromkeys(named(self.leaves(), "shared", "private"), self.lr)
        return [self.phase(rates | {"items": self.table_rate}, loss=self.loss)]

    def phase(self, *turns: Mapping[str, float], loss: Value, ranked: bool = False, decay: float = 1.0) -> Phase:
        """A phase with the method's own epochs, batch and optimiser."""
        return Phase(turns, loss, self.epochs, self.batch, self.optimizer, decay, ranked)

    @property
    def table_rate(self) -> float:
        """Of the shared item table."""
        return self.table_lr or self.lr

    def view(self, p: State) -> Tensor:
        """The item table scored with, (C, L, d); what `score` needs besides may stand behind the items' rows."""
        return p["items"]

    def score(self, p: State, table: Tensor) -> Tensor:
        """Logits of every user of a client for every row, (C, U, L)."""
        return dot(p["user"], table)

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """Logits of chosen (user, row) pairs, (C, B); agrees with `score`."""
        return (pick(p["user"], slot) * pick(table, row)).sum(-1)

    def scores(self, p: State) -> Tensor:
        """Of all items, (C, U, M)."""
        return self.score(p, self.view(p))

    @gradient_by("inner_product_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """Mean binary cross-entropy of each client's batch, (C,)."""
        return self.bce(p, self.view(p), batch)

    def inner_product_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """`loss` and its gradients for the plain inner product of one user."""
        if batch.count is None or not {"user", "items"}.issuperset(names):
            return None
        return inner_product_step(p["user"], p["items"], batch, names, scratch)

    def bce(self, p: State, table: Tensor, batch: Batch) -> Tensor:
        """Mean binary cross-entropy against any table, (C,)."""
        if batch.row is not None and batch.slot is not None:
            return pair_bce(self.pairs(p, table, batch.slot, batch.row), batch)
        if self.deep:
            batch, rows = batch.occurring
            table = take(table, rows)
        return row_bce(self.score(p, table), batch)

    def bpr(self, p: State, table: Tensor, batch: Batch) -> Tensor:
        """Mean −ln σ(ŷ_ui − ŷ_uj) of each client's ranked batch against any table (Rendle et al. 2009), (C,)."""
        assert batch.row is not None
        assert batch.rival is not None
        if batch.slot is None:  # one user: picking scores is cheaper than picking rows
            scores = self.score(p, table)[:, 0]  # (C, L)
            return pair_bpr(scores.gather(1, batch.row) - scores.gather(1, batch.rival), batch)
        better, worse = (self.pairs(p, table, batch.slot, row) for row in (batch.row, batch.rival))
        return pair_bpr(better - worse, batch)

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """All that is shared, and the client's weight."""
        fields = {n: self.whole(n, p, down, data) for n in named(self.leaves(), "shared")}
        return Payload(data.ids, fields | {"weight": self.weight(data)})

    def weight(self, data: Cohort) -> Each:
        """|D_u|, the weight of FedAvg, or one for all, (C,)."""
        return Each(data.size.float() if self.weighting == "size" else torch.ones(len(data.ids)), private=False)

    def whole(self, name: str, p: State, down: Payload, data: Cohort) -> Field:
        """A shared leaf as training left it; of a table, the touched rows over what the server had sent."""
        return Rows(p[name], data.rows, data.real, down[name]) if self.leaves()[name].table else Each(p[name])

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """The client's own leaves, and for ranking the shared ones as its training left them."""
        kept = super().keep(p, down, data)
        if own := self.own_leaves():
            for n in own:
                field = self.whole(n, p, down, data)
                kept[f"own_{n}"] = field if isinstance(field, Rows) else field.dense()
            kept["trained"] = torch.ones(len(data.ids))
        return kept

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """The weighted mean of what is shared (FedAvg)."""
        return server | weighted_mean(uplinks, *named(self.leaves(), "shared"))

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """What the server sends, or the client's own; one that never took part has the server's either way."""
        p = super().serve(clients, down, data, part)
        if own := self.own_leaves():
            trained = clients["trained"] > 0  # (C,)
            for n in own:
                mine = clients[f"own_{n}"]
                p[n] = mine if trained.all() else torch.where(trained.view(-1, *[1] * (mine.dim() - 1)), mine, p[n])
        return p

    def footprint(self, size: int, n_items: int) -> int:
        """The rows of a round, or all of them."""
        return n_items if self.every_row else min(size * (1 + self.negatives), n_items)


def used(method: Method, uploads: Iterable[Payload], now: Moment) -> Iterator[Payload]:
    """The uploads that a server makes use of: each client's with a chance of `aggregated`, whoever else is drawn."""
    share = method.aggregated if isinstance(method, Trained) else 1.0
    for up in uploads:
        if share < 1 and bool((up.ids < 0).any()):
            raise TypeError("one upload stands for many: none of them can be left out")
        there = np.flatnonzero(rng.uniform(now.seed, "aggregated", now.round, up.ids, 1)[:, 0] < share)
        if len(there) == len(up.ids):
            yield up
        elif len(there):
            yield up.only(torch.from_numpy(there))


def singly(method: Method) -> str:
    """What a server needs single uploads for; empty: their (weighted) sum will do."""
    partly = isinstance(method, Trained) and method.aggregated < 1
    return method.individual or ("it leaves some of them out unless aggregated is 1" if partly else "")
