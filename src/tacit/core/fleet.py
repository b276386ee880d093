"""Who runs the clients: here all of them on this machine, a thread per core over cache-sized chunks."""

import contextlib
import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.core.local import local_round
from tacit.core.method import Method
from tacit.core.payload import Payload, State
from tacit.core.store import ClientStore
from tacit.data.cohort import Cohort, Federation

CHUNK = 128  # clients of a chunk, at most
ROWS = 48_000  # touched rows of a chunk, at most: its tables and their moments then stay in the cache
SCORES = 4_000_000  # scores of a block when ranking, at most

T = TypeVar("T")


@dataclass
class Traffic:
    """What a round moved and how it went."""

    bytes_down: int = 0
    bytes_up: int = 0
    clients: int = 0
    losses: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)

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
    ) -> None:
        self.method = method
        self.federation = federation
        self.protection = protection
        self.chunk = chunk
        self.threads = threads or os.cpu_count() or 1
        self.store = ClientStore(method, federation, folder) if store is None else store
        keep_freed_memory()

    def train(self, server: State, ids: Tensor, round: int, traffic: Traffic) -> Iterator[Payload]:
        """Train these clients for a round and yield their uploads in the order of the chunks."""
        return self.train_on(lambda chunk: self.method.downlink(server, chunk), ids, round, traffic)

    def train_on(self, sent: Sent, ids: Tensor, round: int, traffic: Traffic) -> Iterator[Payload]:
        """The same where only what was sent to the clients is known, as on a node."""

        def work(chunk: Tensor) -> tuple[Payload, Payload, Tensor]:
            data = self.method.data(self.federation, chunk, round)
            down = sent(chunk)
            kept, up, loss = local_round(self.method, self.store.read(data, training=True), down, data)
            self.store.write(data, kept)
            if self.protection is not None:
                up = self.protection(up, down, self.federation.seed, round)
            return down, up, loss

        for down, up, loss in self._each(work, self.chunks(ids)):
            traffic.bytes_down += down.nbytes()
            traffic.bytes_up += up.nbytes()
            traffic.clients += len(up.ids)
            traffic.losses.append(float(loss.mean()))
            traffic.weights.append(len(up.ids))
            yield up

    def scores(self, server: State, phase: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (users (n,), logits (n, M)) for every user, as its client would compute them."""
        return self.scores_on(lambda ids: self.method.downlink(server, ids), phase)

    def scores_on(self, sent: Sent, phase: str) -> Iterator[tuple[Tensor, Tensor]]:
        """The same where only what was sent to the clients is known, as on a node."""
        members = self.federation.members.lengths
        # a client of one user holds a table of its own, as wide as its scores are long for many users
        most = max(1, SCORES // (self.federation.n_items * max(int(members.max(initial=1)), self.method.width)))
        block = max(1, SCORES // self.federation.n_items)
        own = self.store.clients

        def work(ids: Tensor) -> list[tuple[Tensor, Tensor]]:
            down = sent(ids)
            whole = self.federation.people(ids)
            slots = torch.arange(whole.users.shape[1]).expand(len(ids), -1)
            return list(self._score(down, whole, torch.split(slots, block, 1), phase))

        for blocks in self._each(work, torch.split(torch.arange(own.start, own.stop), most)):
            yield from blocks

    def scores_of(self, server: State, user: int, phase: str) -> Tensor:
        """(M,) logits of one user."""
        return self.scores_of_on(lambda ids: self.method.downlink(server, ids), user, phase)

    def scores_of_on(self, sent: Sent, user: int, phase: str) -> Tensor:
        """The same where only what was sent to the client is known, as on a node."""
        ids = torch.tensor([self.federation.client_of(user)])
        whole = self.federation.people(ids)
        slot = (whole.users == user).nonzero()[:, 1:]  # (1, 1)
        ((_, logits),) = self._score(sent(ids), whole, [slot], phase)
        return logits[0]

    @torch.no_grad()
    def _score(
        self, down: Payload, whole: Cohort, blocks: Iterable[Tensor], phase: str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(users (n,), logits (n, M)) of these slots (C, U'), block by block."""

        def served(data: Cohort) -> State:
            return self.method.serve(self.store.read(data), down, data, phase)

        together = served(whole) if self.method.neighbours else None
        for slots in blocks:
            users = whole.users.gather(1, slots)
            p = served(whole.with_users(users)) if together is None else together | {"slots": slots}
            logits = self.method.scores(p)  # (C, U', M), or (C, 1, M) where no user differs
            there = users >= 0
            yield users[there], logits.expand(*users.shape, -1)[there]

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

    def _each(self, work: Callable[[Tensor], T], chunks: Iterable[Tensor]) -> Iterator[T]:
        """Results in the order of the chunks, a few chunks ahead of the reader."""
        with single_threaded_torch():
            if self.threads == 1:
                yield from map(work, chunks)
                return
            with ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                ahead: deque[Future[T]] = deque()
                try:
                    for chunk in chunks:
                        ahead.append(pool.submit(work, chunk))
                        if len(ahead) > 2 * self.threads:
                            yield ahead.popleft().result()
                    while ahead:
                        yield ahead.popleft().result()
                finally:
                    for future in ahead:
                        future.cancel()


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks: a step's tensors of a few megabytes would otherwise be fresh pages every time.

    Measured at a tenth of a round, more with two threads. Elsewhere it does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL("libc.so.6").mallopt
            mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the most it accepts; larger blocks still go back at once
            mallopt(_M_TRIM_THRESHOLD, 1 << 28)
            mallopt(_M_TOP_PAD, 1 << 26)


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


@contextmanager
def single_threaded_torch() -> Iterator[None]:
    """Threads over chunks beat threads inside operations: chunks are small and there are many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
