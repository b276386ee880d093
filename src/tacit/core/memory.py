"""What a run would hold in memory, estimated before anything of its size is made."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tacit.core.fleet import ROWS
from tacit.core.method import Method
from tacit.core.payload import State
from tacit.core.store import ClientStore
from tacit.core.trial import ITEMS, few_people
from tacit.data.cohort import Federation

SAMPLE = 100  # bytes of a sample while a cohort is drawn and stacked
COPIES = 6  # of a chunk's tables while it trains: values, gradients, moments and what a step makes on the way
GROWN = 40  # items more in one trial
PAIRS = 2  # clients of two users in the others


@dataclass(frozen=True)
class Needed:
    """Bytes of the parts of a run."""

    server: int
    clients: int  # the private state of all
    work: int  # of the workers

    @property
    def total(self) -> int:
        """All of them."""
        return self.server + self.clients + self.work


def needed(method: Method, federation: Federation, chunk: int, threads: int) -> Needed:
    """The state of server and clients, scaled up from made-up people, and what the longest clients are trained in."""
    per_client = _scaled(lambda people: method.init_clients(people, torch.arange(1)), federation)
    per_user = _scaled(lambda people: method.init_users(people, torch.arange(1)), federation)
    own = 0
    if method.own_leaves():
        own = _scaled(lambda people: {n: x[:1] for n, x in ClientStore(method, people).leaves.items()}, federation)
        own -= per_client + per_user
    longest = int(federation.sizes.max(initial=1))
    rows = max(1, method.footprint(longest, federation.n_items))
    stacked = max(1, min(chunk, federation.n_clients, ROWS // rows))
    samples = longest * (1 + int(getattr(method, "negatives", 0)))
    workers = min(threads, -(-federation.n_clients // stacked))
    return Needed(
        server=_scaled(method.init_server, federation),
        clients=(per_client + own) * federation.n_clients + per_user * federation.n_users,
        work=workers * stacked * (samples * SAMPLE + min(rows, samples) * method.width * 4 * COPIES),
    )


def _scaled(made: Callable[[Federation], State], federation: Federation) -> int:
    """Bytes of a state for a federation: an axis that grows with items or clients is extrapolated."""
    base, items, clients = (made(few_people(i, p)) for i, p in ((ITEMS, 2), (ITEMS + GROWN, 2), (ITEMS, 2 + PAIRS)))
    total = 0
    for name, leaf in base.items():
        size = leaf.element_size()
        for axis, length in enumerate(leaf.shape):
            per_item = (items.get(name, leaf).shape[axis] - length) / GROWN
            per_client = (clients.get(name, leaf).shape[axis] - length) / PAIRS
            here = length + per_item * (federation.n_items - ITEMS) + per_client * (federation.n_clients - 5)
            size *= max(1, round(here))
        total += size
    return total


def installed() -> int | None:
    """Bytes of memory that this machine or container has; None: unknown."""
    found = []
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found, default=None)
