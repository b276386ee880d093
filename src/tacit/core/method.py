"""What a method is: settings and pure hooks over stacked clients. The defaults are FedMF."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from tacit import rng
from tacit.core.aggregate import weighted_mean
from tacit.core.optim import Optimizer
from tacit.core.payload import Each, Field, Payload, Rows, Shared, State
from tacit.core.scorers import dot, inner_product_step, pair_bce, pair_bpr, pick, row_bce
from tacit.data.cohort import Batch, Cohort, Federation

ByHand: TypeAlias = Callable[[State, Batch, Iterable[str], State], tuple[Tensor, State] | None]


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: which leaves move, at which rate, against which loss."""

    turns: tuple[Mapping[str, float], ...]  # rate per leaf; every batch takes these turns one after another
    loss: Callable[[State, Batch], Tensor]  # -> (C,)
    epochs: int = 1
    batch: int = 256  # 0: everything in one step
    optimizer: Optimizer = "adam"
    decay: float = 1.0  # of the rates, per step
    ranked: bool = False  # whether a batch ranks positives against negatives, as BPR does
    by_hand: ByHand | None = None  # the loss and its gradients without autograd, as `Method.by_hand`


@dataclass(frozen=True)
class Moment:
    """Where a run stands: with `rng`, all that a server's own draws may depend on."""

    round: int
    seed: int


@dataclass(frozen=True)
class Method:
    """Settings and hooks. A method owns no loop, no file, no log and no seed.

    Leaves are tensors with a leading axis C. `shared` ones come from the server and go back to it; `private`
    ones never leave the client; `kept` ones stay with the client between rounds and are uploaded as well; `tables`
    have a row per item, which the engine may cut down to the rows touched in a round; `per_user` ones have a second
    axis U and belong to a user rather than to a client.

    A client ranks with what the server sends (`scored_with` is `server`), or with the shared leaves as its own last
    training left them (`own`): those are kept for it under the names `own_…`, and nothing else reads them.
    """

    dim: int = 16  # d
    lr: float = 0.01
    table_lr: float = 0.0  # of the shared item table; 0: the same as lr
    epochs: int = 10  # local epochs a round
    batch: int = 256
    negatives: int = 4  # per positive, redrawn every round
    rounds: int = 100
    fraction: float = 1.0  # of the clients, a round; above 1 a number of clients
    traverse: bool = False  # rounds take their clients from a shuffled queue, every client once before it starts anew
    optimizer: Optimizer = "adam"
    init: float = 0.01  # standard deviation of the starting values
    scored_with: Literal["server", "own"] = "server"  # whose shared leaves a client ranks with
    weighting: Literal["size", "uniform"] = "size"  # of a client in the server's mean: |D_u|, or one for all

    name: ClassVar[str] = "fedmf"
    paper: ClassVar[str] = ""
    shared: ClassVar[tuple[str, ...]] = ("items",)
    private: ClassVar[tuple[str, ...]] = ("user",)
    kept: ClassVar[tuple[str, ...]] = ()
    per_user: ClassVar[tuple[str, ...]] = ("user",)
    tables: ClassVar[tuple[str, ...]] = ("items",)
    neighbours: ClassVar[bool] = False  # a user's scores need the other users of its client, as over a graph
    every_row: ClassVar[bool] = False  # train on all M rows, for losses over the whole table
    pooled: ClassVar[bool] = False  # a centralised reference: one client holds all users
    draws: ClassVar[bool] = True  # whether a round needs training samples
    closed_form: ClassVar[bool] = False  # its rounds are its own: --rounds does not stretch them
    individual: ClassVar[str] = ""  # what the server needs single uploads for; empty: their (weighted) sum is enough

    def __init_subclass__(cls) -> None:
        """An aggregation of one's own is taken to need single uploads until `individual` says otherwise."""
        super().__init_subclass__()
        if "aggregate" in vars(cls) and "individual" not in vars(cls) and not cls.individual:
            cls.individual = "its aggregation is its own and does not say that a sum is enough"

    @classmethod
    def refined(cls, settings: Mapping[str, Any]) -> type["Method"]:
        """The class that carries out these settings, where one name stands for several."""
        return cls

    @property
    def own_leaves(self) -> tuple[str, ...]:
        """The shared leaves that stay with a client as training left them, for ranking alone."""
        return self.shared if self.scored_with == "own" else ()

    def length(self) -> int:
        """How many rounds a run has."""
        return self.rounds

    def asks(self, round: int) -> bool:
        """Whether clients take part in a round; in others the server works alone on what it has."""
        return True

    def epsilon(self, rounds: int) -> float | None:
        """The privacy budget spent after so many rounds, where the method itself has one."""
        return None

    def groups(self, federation: Federation) -> dict[str, Tensor]:
        """Masks over the clients by the name of their group, where a method treats groups differently."""
        return {}

    def init_server(self, federation: Federation) -> State:
        """The server's state before the first round."""
        return {"items": self.noise(federation, "items", federation.n_items, self.dim)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Private leaves of these clients before their first round, per-user ones aside."""
        return {}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """Per-user private leaves, (len(users), …)."""
        return {"user": self.init * rng.normal(federation.seed, "init/user", 0, users, self.dim)}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """What the server sends to these clients."""
        return Payload(ids, {n: Shared(server[n]) for n in self.shared})

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The leaves of a client as training starts: its own, and the server's beside them."""
        return clients | {n: spread(down.fields[n], data, n in self.tables) for n in self.shared}

    def phases(self, round: int) -> list[Phase]:
        """The local training of a round."""
        rates = dict.fromkeys((*self.shared, *self.private), self.lr)
        return [self.phase(rates | {"items": self.table_lr or self.lr}, loss=self.loss)]

    def phase(self, *turns: Mapping[str, float], loss: Callable[[State, Batch], Tensor]) -> Phase:
        """A phase with the method's own epochs, batch and optimiser."""
        return Phase(turns, loss, self.epochs, self.batch, self.optimizer)

    def epoch_start(self, p: State) -> State:
        """Leaves to renew before each local epoch."""
        return {}

    def view(self, p: State) -> Tensor:
        """The item table scored with, (C, L, d); what `score` needs besides may stand behind the items' rows."""
        return p["items"]

    def score(self, p: State, table: Tensor) -> Tensor:
        """Logits of every user of a client for every row, (C, U, L).

        A method with `neighbours` has all users of a client in `p`, and scores those in `p["slots"]` where given.
        """
        return dot(p["user"], table)

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """Logits of chosen (user, row) pairs, (C, B); agrees with `score`."""
        return (pick(p["user"], slot) * pick(table, row)).sum(-1)

    def loss(self, p: State, batch: Batch) -> Tensor:
        """Mean binary cross-entropy of each client's batch, (C,)."""
        return self.bce(p, self.view(p), batch)

    def bce(self, p: State, table: Tensor, batch: Batch) -> Tensor:
        """The same against any table."""
        if batch.row is None or batch.slot is None:
            return row_bce(self.score(p, table), batch)
        return pair_bce(self.pairs(p, table, batch.slot, batch.row), batch)

    def bpr(self, p: State, table: Tensor, batch: Batch) -> Tensor:
        """Mean −ln σ(ŷ_ui − ŷ_uj) of each client's ranked batch against any table (Rendle et al. 2009), (C,)."""
        assert batch.row is not None
        assert batch.rival is not None
        if batch.slot is None:  # one user: picking scores is cheaper than picking rows
            scores = self.score(p, table)[:, 0]  # (C, L)
            return pair_bpr(scores.gather(1, batch.row) - scores.gather(1, batch.rival), batch)
        better, worse = (self.pairs(p, table, batch.slot, row) for row in (batch.row, batch.rival))
        return pair_bpr(better - worse, batch)

    def by_hand(self, p: State, batch: Batch, names: Iterable[str], scratch: State) -> tuple[Tensor, State] | None:
        """`loss` and its gradients without autograd, for the plain inner product; None: autograd does it.

        `scratch` is memory to write to, kept from step to step.
        """
        own = type(self)
        plain = (own.loss, own.bce, own.view, own.score) == (Method.loss, Method.bce, Method.view, Method.score)
        if not plain or batch.count is None or not {"user", "items"}.issuperset(names):
            return None
        return inner_product_step(p["user"], p["items"], batch, names, scratch)

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """What the clients send back. `weight` is |D_u|, the weight of FedAvg, or one."""
        fields = {n: self.whole(n, p, down, data) for n in self.shared}
        weight = data.size.float() if self.weighting == "size" else torch.ones(len(data.ids))
        return Payload(data.ids, fields | {"weight": Each(weight, private=False)})

    def whole(self, name: str, p: State, down: Payload, data: Cohort) -> Field:
        """A shared leaf as training left it; of a table, the touched rows over what the server had sent."""
        return Rows(p[name], data.rows, data.real, down[name]) if name in self.tables else Each(p[name])

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """What stays on the client until its next round; a table that comes as `Rows` is replaced whole."""
        kept: dict[str, Tensor | Rows] = {n: p[n] for n in (*self.private, *self.kept)}
        if self.own_leaves:
            for n in self.own_leaves:
                field = self.whole(n, p, down, data)
                kept[f"own_{n}"] = field if isinstance(field, Rows) else field.dense()
            kept["trained"] = torch.ones(len(data.ids))
        return kept

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """The server's new state; uploads arrive chunk by chunk and are not kept."""
        return server | weighted_mean(uplinks, *self.shared)

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """The leaves a client ranks with. `phase` is `valid` or `test`."""
        p = self.receive(clients, down, data)
        if self.own_leaves:
            trained = clients["trained"] > 0  # (C,); a client that never took part ranks with what the server sends
            for n in self.own_leaves:
                own = clients[f"own_{n}"]
                p[n] = own if trained.all() else torch.where(trained.view(-1, *[1] * (own.dim() - 1)), own, p[n])
        return p

    def footprint(self, size: int, n_items: int) -> int:
        """Rows that a client with so many interactions holds in memory at once; chunks are cut by it."""
        return min(size * (1 + self.negatives), n_items)

    def serving_bytes(self, down: Payload, data: Cohort) -> int:
        """Bytes these clients download before they can rank."""
        return down.nbytes()

    def noise(self, federation: Federation, leaf: str, *shape: int) -> Tensor:
        """Starting values of a server leaf: normal, standard deviation `init`."""
        return self.init * rng.normal(federation.seed, f"init/{leaf}", 0, torch.zeros(1), *shape)[0]


def spread(field: Field, data: Cohort, table: bool) -> Tensor:
    """What every client has of a field it received: the rows it touches of a table (C, L, d), else all (C, …)."""
    return field.spread(len(data.ids), data.rows if table and not data.every_row else None)
