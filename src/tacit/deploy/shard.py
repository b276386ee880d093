"""A node's own data, numbered as the whole federation numbers it.

Every random draw depends on the number of a user or of a client. The server therefore hands every node a run of
neighbouring numbers, and the node's arrays reach up to its last one: the users before are there, and empty.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.data.cohort import Federation
from tacit.data.interactions import Interactions
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from tacit.deploy.job import Job


@dataclass(frozen=True)
class Known:
    """A node's interactions with items of the catalogue."""

    data: Interactions  # `item` by place in the catalogue, `user` by place in `data.user_ids`
    dropped: int  # interactions with items the catalogue does not have


@dataclass(frozen=True)
class Shard:
    """A node's part of the federation."""

    federation: Federation
    clients: range
    users: range

    @property
    def too_short(self) -> int:
        """Users with fewer than three interactions, who are never evaluated."""
        split = self.federation.split
        lengths = split.train.lengths + split.valid.lengths + split.test.lengths
        return int((lengths[self.users.start :] < 3).sum())


def known(data: Interactions, job: Job) -> Known:
    """Leave out, and count, what the catalogue does not have."""
    place = {item: index for index, item in enumerate(job.items)}
    index = np.array([place.get(item, -1) for item in data.item_ids.tolist()], dtype=np.int64)
    item = index[data.item]
    kept = item >= 0
    repeats = 0 if data.repeats is None else int(data.repeats[~kept].sum())
    fresh = Interactions(
        name=data.name,
        user=data.user[kept],
        item=item[kept],
        time=None if data.time is None else data.time[kept],
        user_ids=data.user_ids,
        item_ids=np.array(job.items, dtype=np.str_),
        titles=None if job.titles is None else np.array(job.titles, dtype=np.str_),
        repeats=None if data.repeats is None else data.repeats[kept],
        groups=data.groups,
    )
    return Known(fresh, int((~kept).sum()) + repeats)


def roster(data: Interactions) -> list[str]:
    """The users of a node who have anything to train on, in the order of their numbers."""
    return [str(user) for user in data.user_ids[np.bincount(data.user, minlength=data.n_users) > 0]]


def is_roster(written: Any) -> bool:
    """Whether this is what a node writes down: users, and the place they were given or none."""
    if not isinstance(written, dict) or set(written) != {"users", "place"} or not isinstance(written["users"], list):
        return False
    place = written["place"]
    return all(isinstance(user, str) for user in written["users"]) and (
        place is None or (isinstance(place, list) and [type(number) for number in place] == [int, int])
    )


def shard(data: Interactions, job: Job, users: list[str], first_user: int, first_client: int) -> Shard:
    """These users with numbers from `first_user` on; each is a client, or all are one (`job.together`)."""
    number = {user: first_user + place for place, user in enumerate(users)}
    new = np.array([number.get(user, -1) for user in data.user_ids.tolist()], dtype=np.int64)[data.user]
    mine = new >= 0
    ids = np.zeros(first_user + len(users), dtype=f"<U{max(map(len, users), default=1)}")
    ids[first_user:] = users
    groups = None
    if data.groups is not None:
        groups = np.zeros(len(ids), dtype=data.groups.dtype)
        groups[[number[user] for user in data.user_ids.tolist() if user in number]] = [
            group for user, group in zip(data.user_ids.tolist(), data.groups, strict=True) if user in number
        ]
    placed = Interactions(
        name=data.name,
        user=new[mine],
        item=data.item[mine],
        time=None if data.time is None else data.time[mine],
        user_ids=ids,
        item_ids=data.item_ids,
        titles=data.titles,
        repeats=None if data.repeats is None else data.repeats[mine],
        groups=groups,
    )
    count = min(len(users), 1) if job.together else len(users)
    own = np.arange(first_user, first_user + len(users))
    client = np.full(len(own), first_client) if job.together else first_client + np.arange(len(own))
    members = Ragged.of(client, own, first_client + count)
    federation = Federation(split(placed, job.protocol, job.seed), members)
    return Shard(federation, range(first_client, first_client + count), range(first_user, first_user + len(users)))
