"""What a method is: what travels between server and clients, and how a client ranks."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit import rng
from tacit.core.leaves import Leaves, named
from tacit.core.payload import Field, Payload, Rows, Shared, State
from tacit.core.settings import Starts
from tacit.data.cohort import Cohort, Federation

OWN = "its aggregation is its own and does not say that a sum is enough"


@dataclass(frozen=True)
class Moment:
    """Where a run stands: with `rng`, all that a server's own draws may depend on."""

    round: int
    seed: int


@dataclass(frozen=True)
class Method(ABC):
    """Settings and pure hooks over stacked clients. A method owns no loop, no file, no log and no seed.

    A round: the server sends `downlink`, clients `receive` it, train if the method is a `Trained` one, `keep` what is
    theirs and send `uplink`; the server's `aggregate` makes its next state of that. To rank, a client takes what
    `serve` makes of the newest downlink and of what it kept, and computes `scores`.
    """

    name: ClassVar[str] = "method"
    paper: ClassVar[str] = ""
    pooled: ClassVar[bool] = False  # a centralised reference: one client holds all users
    individual: ClassVar[str] = ""  # what single uploads are needed for; empty: their (weighted) sum will do
    starts: ClassVar[Starts] = ()  # settings that a search starts from, beside the defaults

    def __init_subclass__(cls) -> None:
        """An aggregation of one's own is taken to need single uploads until `individual` says otherwise."""
        super().__init_subclass__()
        if "aggregate" in vars(cls) and "individual" not in vars(cls) and not cls.individual:
            cls.individual = OWN

    @property
    def scored_with(self) -> str:
        """Whose leaves a client ranks with: the `server`'s, or its `own`."""
        return "server"

    @property
    def neighbours(self) -> bool:
        """Whether a user's scores need the other users of its client, as over a graph."""
        return False

    @property
    def width(self) -> int:
        """Values that a client holds for an item while it ranks; blocks of users are cut by it."""
        return 1

    def leaves(self) -> Leaves:
        """Every tensor that a client gets, keeps or sends."""
        return {}

    def own_leaves(self) -> tuple[str, ...]:
        """The shared leaves that a client ranks with as its own training left them."""
        return ()

    def length(self, asked: int | None = None) -> int:
        """How many rounds a run has, given how many were asked for; a closed form has rounds of its own."""
        return 1

    def asks(self, round: int) -> bool:
        """Whether clients take part in a round; in others the server works alone on what it has."""
        return True

    def data(self, federation: Federation, ids: Tensor, round: int) -> Cohort:
        """What these clients work on in a round."""
        return federation.people(ids)

    @abstractmethod
    def init_server(self, federation: Federation) -> State:
        """The server's state before the first round."""

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Private and kept leaves of these clients before their first round, per-user ones aside."""
        return {}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """Per-user leaves, (len(users), …)."""
        return {}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """What the server sends to these clients."""
        return Payload(ids, {n: Shared(server[n]) for n in named(self.leaves(), "shared")})

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The leaves of a client as a round starts: its own, and the server's beside them."""
        sent = {n: leaf for n, leaf in self.leaves().items() if leaf.kind == "shared"}
        return clients | {n: spread(down.fields[n], data, leaf.table) for n, leaf in sent.items()}

    @abstractmethod
    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """What the clients send back."""

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """What stays on the client until its next round; a table that comes as `Rows` is replaced whole."""
        return {n: p[n] for n in named(self.leaves(), "private", "kept")}

    @abstractmethod
    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """The server's new state; uploads arrive chunk by chunk and are not kept."""

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The leaves a client ranks with. `part` is what is ranked: `valid` or `test`."""
        return self.receive(clients, down, data)

    @abstractmethod
    def scores(self, p: State) -> Tensor:
        """Logits of every user of a client for every item, (C, U, M), or (C, 1, M) where no user differs.

        A method with `neighbours` has all users of a client in `p`, and scores those in `p["slots"]` where given.
        """

    def footprint(self, size: int, n_items: int) -> int:
        """Rows that a client with this many interactions holds in memory at once; chunks are cut by it."""
        return n_items


def starting(federation: Federation, leaf: str, deviation: float, *shape: int) -> Tensor:
    """Starting values of a server's leaf: normal with this standard deviation."""
    return deviation * rng.normal(federation.seed, f"init/{leaf}", 0, torch.zeros(1), *shape)[0]


def spread(field: Field, data: Cohort, table: bool) -> Tensor:
    """What every client has of a field it received: the rows it touches of a table (C, L, d), else all (C, …)."""
    return field.spread(len(data.ids), data.rows if table and not data.every_row else None)
