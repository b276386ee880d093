"""Who is in a run: its nodes, and the federation that their server sees."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.cohort import Federation
from tacit.data.interactions import Interactions
from tacit.data.ragged import Ragged
from tacit.data.splits import Split
from tacit.deploy.job import Job
from tacit.deploy.wire import Packet

MOST_NAME = 60  # letters of a group's name

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Member:
    """A node in a run: how many users and clients it has, and where their numbers start."""

    name: str
    users: int
    sizes: tuple[int, ...]  # training interactions of each client
    first_user: int
    first_client: int
    dropped: int = 0
    duplicates: int = 0
    groups: tuple[str, ...] = ()  # what the node says of each client's device; empty: nothing

    @property
    def clients(self) -> range:
        """The numbers of its clients."""
        return range(self.first_client, self.first_client + len(self.sizes))


@dataclass(frozen=True)
class Roll(Federation):
    """A federation as its server sees it: who has how many interactions, and not one of them."""

    announced: tuple[int, ...]  # |D_u| by client

    @classmethod
    def of(cls, job: Job, members: list[Member]) -> "Roll":
        """The federation of these members."""
        n_users = sum(m.users for m in members)
        nothing = Ragged(np.zeros(n_users + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))
        none = np.zeros(0, dtype=np.int64)
        items = np.array(job.items, dtype=np.str_)
        groups = None
        if any(m.groups for m in members):  # by user: all users of a client have its group
            named = [group for m in members for group in (m.groups or ("",) * len(m.sizes))]
            groups = np.array(np.repeat(named, [m.users for m in members]) if job.together else named, dtype=np.str_)
        data = Interactions("nodes", none, none, None, np.zeros(n_users, dtype="<U1"), items, groups=groups)
        protocol: Any = job.protocol
        split = Split(data, protocol, job.seed, nothing, nothing, nothing, nothing, {}, 0)
        sizes = tuple(size for m in members for size in m.sizes)
        if job.together:
            client = np.repeat(np.arange(len(members)), [m.users for m in members])
            owners = Ragged.of(client, np.arange(n_users), len(members))
        else:
            owners = Ragged(np.arange(n_users + 1), np.arange(n_users))
        return cls(split, owners, sizes)

    @cached_property
    def sizes(self) -> Ints:
        """(clients,) training interactions, as the nodes announced them."""
        return np.array(self.announced, dtype=np.int64)


def groups_of(here: Packet) -> tuple[str, ...]:
    """What a node says of each client's device."""
    return tuple(str(group)[:MOST_NAME] for group in here.head.get("groups", ()))
