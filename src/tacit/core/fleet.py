"""Who runs the clients: here all of them on this machine, a worker per core over cache-sized chunks."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tacit.core.aggregate import folded, guarded_mean
from tacit.core.bounds import bounded, limits_of
from tacit.core.local import local_round
from tacit.core.method import Method
from tacit.core.payload import Payload, State
from tacit.core.store import ClientStore
from tacit.core.trained import Trained, singly
from tacit.core.workers import Crew, can_fork, cores, keep_freed_memory, threaded
from tacit.data.cohort import Cohort, Federation

CHUNK = 128  # clients of a chunk, at most
ROWS = 48_000  # touched rows of a chunk, at most: its tables and their moments then stay in the cache
SCORES = 4_000_000  # scores of a block when ranking, at most
SHARED = 4  # of these for each score that a client makes with a table of everybody's: the block stays in the cache


@dataclass
class Traffic:
    """What a round moved and how it went."""

    bytes_down: int = 0
    bytes_up: int = 0
    clients: int = 0
    losses: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    norms: list[State] = field(default_factory=list)  # (C,) of changes by field, where they are bounded

    @property
    def loss(self) -> float:
        """Mean training loss over the clients."""
        return float(np.average(self.losses, weights=self.weights)) if self.losses else float("nan")


class Protection(Protocol):
    """What clients do to an upload before it leaves them: a privacy mechanism."""

    def __call__(self, up: Payload, down: Payload, seed: int, round: int) -> Payload:
        """The upload as it is sent, given what the server had sent."""


class Fleet(Protocol):
    """The seam between simulation and real machines: the rounds loop knows no more than this."""

    federation: Federation

    def train(self, server: State, ids: Tensor, round: int, traffic: Traffic) -> Iterator[Payload]:
        """Train these clients for a round and yield their uploads, chunk by chunk."""


Sent: TypeAlias = Callable[[Tensor], Payload]  # what the server sent to these clients
# a round, the clients of a chunk, what the server sent to them, and the limits of their changes where there are any
Task: TypeAlias = tuple[int, Tensor, Payload, Mapping[str, float] | None]
Done: TypeAlias = tuple[Payload, int, Tensor, State]  # their upload, its bytes, their losses (C,), norms by field


@dataclass(frozen=True)
class Guard:
    """What a server that sees single uploads does against a few bad ones."""

    bound: float = 0.0  # a client's change at most this many times the usual one; 0: any
    robust: str = ""  # what stands for the mean; empty: the mean


class SimulatedFleet:
    """All clients of a federation in this process, or those whose private state is in `store`."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        chunk: int = CHUNK,
        threads: int | None = None,
        folder: Path | None = None,
        store: ClientStore | None = None,
        protection: Protection | None = None,
        sums: bool = False,
        guard: Guard = Guard(),
    ) -> None:
        """With `sums` the workers fold the uploads of a chunk into one, for a server that needs no single ones."""
        self.method = method
        self.federation = federation
        self.protection = protection
        self.guard = guard
        self.sums = sums and not singly(method) and not guard.robust
        self.chunk = chunk
        self.threads = threads or cores()
        self.store = ClientStore(method, federation, folder) if store is None else store
        self._crew: Crew[Task, Done] | None = None
        self._inherited: tuple[object, ...] = ()
        keep_freed_memory()

    def muster(self) -> None:
        """Fork the workers now if they are to be processes: what is in memory later is not held by them too."""
        inherits = (self.method, self.federation, self.store, self.protection)
        if self._crew and not (self._crew.end.alive and all(map(operator.is_, inherits, self._inherited))):
            self._crew = None
        if self._crew is None and self.threads > 1 and can_fork():
            everyone = self.federation.n_clients
            # no chunk holds more than `chunk`: only of few clients it matters how they are cut
            workers = min(self.threads, everyone // self.chunk) or 1
            if workers < self.threads:
                workers = min(self.threads, len(self.chunks(torch.arange(everyone))))
            self._crew, self._inherited = Crew(self._work, workers) if workers > 1 else None, inherits

    def train(self, server: State, ids: Tensor, round: int, traffic: Traffic) -> Iterator[Payload]:
        """Train these clients for a round and yield their uploads in the order of the chunks."""
        self.muster()
        limits = None
        if self.guard.bound and len(ids):
            limits = limits_of(self.method, server, ids, round, self.federation, self.guard.bound)
        uploads = self._train(
            lambda chunk: self.method.downlink(server, chunk), ids, round, traffic, self._crew, limits
        )
        return guarded_mean(uploads, self.method.downlink(server, ids[:1]), self.guard.robust)

    def train_on(
        self, sent: Sent, ids: Tensor, round: int, traffic: Traffic, limits: Mapping[str, float] | None = None
    ) -> Iterator[Payload]:
        """The same where only what was sent to the clients is known, as on a node, which has other threads."""
        return self._train(sent, ids, round, traffic, None, limits)

    def _train(
        self,
        sent: Sent,
        ids: Tensor,
        round: int,
        traffic: Traffic,
        crew: Crew[Task, Done] | None,
        limits: Mapping[str, float] | None = None,
    ) -> Iterator[Payload]:
        def tasks() -> Iterator[Task]:
            for chunk in self.chunks(ids):
                down = sent(chunk)
                traffic.bytes_down += down.nbytes()
                yield round, chunk, down, limits

        done = crew.each(tasks()) if crew and not crew.busy else threaded(self._work, tasks(), self.threads)
        for up, size, loss, norms in done:
            traffic.norms += [norms] if norms else []
            traffic.bytes_up += size
            traffic.clients += len(loss)
            traffic.losses.append(float(loss.mean()))
            traffic.weights.append(len(loss))
            yield up

    def _work(self, task: Task) -> Done:
        """Train the clients of a chunk."""
        round, ids, down, limits = task
        data = self.method.data(self.federation, ids, round)
        kept, up, loss = local_round(self.method, self.store.read(data, training=True), down, data)
        self.store.write(data, kept)
        if self.protection is not None:
            up = self.protection(up, down, self.federation.seed, round)
        up, norms = (up, {}) if limits is None else bounded(up, down, limits)
        return folded(up) if self.sums else up, up.nbytes(), loss, norms

    def scores(self, server: State, part: str, users: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (users (n,), logits (n, M)) for every user or for some, as its client would compute them."""
        return self.scores_on(lambda ids: self.method.downlink(server, ids), part, users)

    def scores_on(self, sent: Sent, part: str, users: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The same where only what was sent to the clients is known, as on a node."""
        own, members = self.store.clients, self.federation.members.lengths
        ids = torch.arange(own.start, own.stop) if users is None else self.federation.clients_of(users)
        ids = ids[(ids >= own.start) & (ids < own.stop)]
        # a client of one user holds a table of its own, as wide as its scores are long for many users
        width = self._held(sent(ids[:1])) if len(ids) else 1
        most = max(1, SCORES // (self.federation.n_items * max(int(members.max(initial=1)), width)))
        block = max(1, SCORES // self.federation.n_items)
        asked = None
        if users is not None:
            asked = torch.zeros(self.federation.n_users, dtype=torch.bool).index_fill_(0, users, True)

        def work(ids: Tensor) -> list[tuple[Tensor, Tensor]]:
            down = sent(ids)
            whole = self.federation.people(ids)
            return list(self._score(down, whole, torch.split(_slots(whole.users, asked), block, 1), part))

        for blocks in threaded(work, torch.split(ids, most), self.threads):
            yield from blocks

    def _held(self, down: Payload) -> int:
        """Values that a client holds for an item while it ranks: few where its table is everybody's."""
        method = self.method
        plain = isinstance(method, Trained) and type(method).view is Trained.view and not method.own_leaves()
        tables = {name: leaf for name, leaf in method.leaves().items() if leaf.table}
        alike = all(leaf.kind == "shared" and down.fields[n].alike for n, leaf in tables.items())
        return min(SHARED, method.width) if plain and alike else method.width

    def scores_of(self, server: State, user: int, part: str) -> Tensor:
        """(M,) logits of one user."""
        return self.scores_of_on(lambda ids: self.method.downlink(server, ids), user, part)

    def scores_of_on(self, sent: Sent, user: int, part: str) -> Tensor:
        """The same where only what was sent to the client is known, as on a node."""
        ids = torch.tensor([self.federation.client_of(user)])
        whole = self.federation.people(ids)
        slot = (whole.users == user).nonzero()[:, 1:]  # (1, 1)
        ((_, logits),) = self._score(sent(ids), whole, [slot], part)
        return logits[0]

    @torch.no_grad()
    def _score(
        self, down: Payload, whole: Cohort, blocks: Iterable[Tensor], part: str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(users (n,), logits (n, M)) of these slots (C, U'), -1 where a client has fewer, block by block."""

        def served(data: Cohort) -> State:
            return self.method.serve(self.store.read(data), down, data, part)

        together = served(whole) if self.method.neighbours else None
        for slots in blocks:
            real = slots.clamp(min=0)
            users = whole.users.gather(1, real).masked_fill_(slots < 0, -1)
            p = served(whole.with_users(users)) if together is None else together | {"slots": real}
            logits = self.method.scores(p).expand(*users.shape, -1)  # a method may give one row where no user differs
            there = users >= 0
            yield users[there], logits.flatten(0, 1) if there.all() else logits[there]

    def chunks(self, ids: Tensor) -> list[Tensor]:
        """Cut clients into chunks of similar length, the long ones first."""
        sizes = self.federation.sizes[ids.numpy()]
        order = np.argsort(-sizes, kind="stable")
        out: list[Tensor] = []
        start = 0
        for end in range(1, len(order) + 1):
            widest = self.method.footprint(int(sizes[order[start]]), self.federation.n_items)
            full = end - start == self.chunk or (end - start + 1) * max(widest, 1) > ROWS
            if full or end == len(order):
                out.append(ids[torch.from_numpy(order[start:end].copy())])
                start = end
        return out


def _slots(users: Tensor, asked: Tensor | None) -> Tensor:
    """(C, U') the places of clients' users (C, U), of all or of those in a mask over all users; -1 behind them."""
    if asked is None:
        return torch.arange(users.shape[1]).expand(len(users), -1)
    if users.shape[1] == 1:
        return torch.zeros_like(users)
    wanted = (users >= 0) & asked[users.clamp(min=0)]
    count = wanted.sum(1, keepdim=True)
    place = wanted.int().argsort(dim=1, descending=True, stable=True)[:, : int(count.max())]
    return place.masked_fill(torch.arange(place.shape[1]) >= count, -1)
