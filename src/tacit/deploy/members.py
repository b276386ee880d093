"""Who is in a run: its nodes, and the federation that their server sees."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.core.method import Method
from tacit.data.cohort import Federation
from tacit.data.interactions import Interactions
from tacit.data.ragged import Ragged
from tacit.data.splits import Split
from tacit.deploy.checks import Refused
from tacit.deploy.job import Job
from tacit.deploy.wire import VERSION, Packet, version_of

MOST_NAME = 60  # letters of the name of a node or a group
MOST_COUNT = 10**12  # interactions that a node may say it left out

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
    removed: bool = False  # its numbers stay, so that nobody else's change; it is asked no more

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


def counts_clients(method: Method, federation: Federation) -> bool:
    """Whether the server's state would look different with one client more."""
    more = replace(federation.members, start=np.append(federation.members.start, federation.members.start[-1]))
    one, other = (method.init_server(Federation(federation.split, m)) for m in (federation.members, more))
    return any(one[name].shape != other[name].shape for name in one)


@dataclass(frozen=True)
class Here:
    """What a node says of itself when it comes."""

    name: str
    users: int
    sizes: tuple[int, ...]
    dropped: int
    duplicates: int
    groups: tuple[str, ...]

    def member(self, after: Member | None) -> Member:
        """This node in a run, numbered behind the one that came before it."""
        first = (after.first_user + after.users, after.clients.stop) if after else (0, 0)
        return Member(self.name, self.users, self.sizes, *first, self.dropped, self.duplicates, self.groups)


def announced(packet: Packet, name: str | None, job: Job, most_users: int) -> Here:
    """A greeting that is sound in every value; raises Refused with what is not.

    `name` is what the node's key stands for; without keys it is what the node says.
    """
    if (said := version_of(packet)) != VERSION:
        raise Refused(f"it speaks version {said} of the protocol and this server version {VERSION}; update the older")
    head, items = packet.head, len(job.items)
    users = whole(head, "users", most_users)
    clients = min(users, 1) if job.together else users
    sizes, groups = head.get("sizes"), head.get("groups", [])
    if not isinstance(sizes, list) or len(sizes) != clients:
        raise Refused("it announces clients that do not add up")
    most = items * (users if job.together else 1)
    if any(type(size) is not int or not 0 <= size <= most for size in sizes):
        raise Refused(f"a client's number of interactions is not a whole number from 0 to {most:,}")
    if not isinstance(groups, list) or len(groups) not in (0, clients):
        raise Refused(f"its groups are not a list of {clients}")
    if any(not isinstance(group, str) or len(group) > MOST_NAME or not group.isprintable() for group in groups):
        raise Refused(f"the name of a group is not a text of at most {MOST_NAME} letters")
    name = name or head.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME or not name.isprintable():
        raise Refused(f"its name is not a text of at most {MOST_NAME} letters")
    return Here(name, users, tuple(sizes), whole(head, "dropped"), whole(head, "duplicates"), tuple(groups))


def whole(head: dict[str, Any], name: str, most: int = MOST_COUNT) -> int:
    """A whole number from 0 to `most`; 0 where nothing is said."""
    value = head.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise Refused(f"'{name}' is {repr(value)[:40]}, not a whole number from 0 to {most:,}")
    return value
