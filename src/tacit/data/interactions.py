"""Who touched what, and when: the table every data set becomes."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tacit.errors import UserError

Ints = NDArray[np.int64]

_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Interactions:
    """Implicit feedback in the order of its file, one row per (user, item) pair.

    `user` and `item` are dense indices; `user_ids` and `item_ids` give back the names of the source. `time`
    is any increasing number, or None where the source has none. A pair that the source repeats is folded into
    its first row, and `repeats` remembers it: papers count the rows of the source (`rows_read`), which is
    `len` plus `duplicates`, with and without a filter.
    """

    name: str
    user: Ints  # (n,) in 0..n_users-1
    item: Ints  # (n,) in 0..n_items-1
    time: NDArray[np.float64] | None  # (n,)
    user_ids: NDArray[np.str_]  # (n_users,)
    item_ids: NDArray[np.str_]  # (n_items,)
    titles: NDArray[np.str_] | None = None  # (n_items,)
    repeats: Ints | None = None  # (n,) further rows of the source with this pair; None: it repeats none
    groups: NDArray[np.str_] | None = None  # (n_users,) what the source says of a user's device; empty: nothing
    about: dict[str, str] = field(default_factory=dict)

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_ids)

    @property
    def duplicates(self) -> int:
        """Rows of the source that repeat an earlier (user, item) pair."""
        return 0 if self.repeats is None else int(self.repeats.sum())

    @property
    def rows_read(self) -> int:
        """Rows of the source for these users, repeated pairs included."""
        return len(self) + self.duplicates

    def __len__(self) -> int:
        return len(self.user)

    def title(self, item: int) -> str:
        """The item's title, or its id where the data has no titles."""
        return str(self.item_ids[item] if self.titles is None else self.titles[item])

    def user_index(self, user_id: str) -> int:
        """Dense index of a user id of the source."""
        hit = np.flatnonzero(self.user_ids == str(user_id))
        if not len(hit):
            some = ", ".join(self.user_ids[:3])
            raise UserError(f"no user '{user_id}' in {self.name}; its {self.n_users:,} users are {some}, …")
        return int(hit[0])

    def fingerprint(self) -> str:
        """Hash of the content: equal for equal data wherever it came from."""
        digest = hashlib.sha256()
        for ids in (self.user_ids, self.item_ids):
            digest.update("\n".join(ids.tolist()).encode())
        for column in (self.user, self.item, self.time):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
        if self.groups is not None:
            digest.update("\n".join(self.groups.tolist()).encode())
        return digest.hexdigest()

    def at_least(self, count: int) -> "Interactions":
        """Only users with at least `count` different items, and the items left to them.

        Repeated pairs do not help a user past the filter: a split needs `count` rows, not `count` clicks.
        """
        per_user = np.bincount(self.user, minlength=self.n_users)
        if (per_user >= count).all():
            return self
        if not (per_user >= count).any():
            most = int(per_user.max())
            raise UserError(f"no user of {self.name} has {count:,} interactions; the most is {most:,}")
        kept = self.only((per_user >= count)[self.user])
        return replace(kept, about=self.about | {"min_interactions": str(count)})

    def only(self, keep: NDArray[np.bool_]) -> "Interactions":
        """Only these rows (n,), and the users and items in them."""
        users, user = np.unique(self.user[keep], return_inverse=True)
        items, item = np.unique(self.item[keep], return_inverse=True)
        return replace(
            self,
            user=user.astype(np.int64),
            item=item.astype(np.int64),
            time=None if self.time is None else self.time[keep],
            user_ids=self.user_ids[users],
            item_ids=self.item_ids[items],
            titles=None if self.titles is None else self.titles[items],
            repeats=None if self.repeats is None else self.repeats[keep],
            groups=None if self.groups is None else self.groups[users],
        )


def from_columns(
    name: str,
    user: NDArray[np.generic],
    item: NDArray[np.generic],
    time: NDArray[np.float64] | None = None,
    titles: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
) -> Interactions:
    """Index raw columns: ids of any type, sorted as numbers where all are whole numbers, else as text.

    Repeated pairs are folded into their first row and counted. `titles` is keyed by item id; an item without
    a title is called by its id. `groups` is keyed by user id.
    """
    return from_indices(name, _index(user), _index(item), time, titles, groups)


def from_indices(
    name: str,
    users: tuple[NDArray[np.str_], Ints],
    items: tuple[NDArray[np.str_], Ints],
    time: NDArray[np.float64] | None = None,
    titles: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
) -> Interactions:
    """The same from columns that are indexed: (distinct ids in order, the index of each row)."""
    (user_ids, user), (item_ids, item) = users, items
    pair = user * len(item_ids) + item
    _, place, rows = np.unique(pair, return_index=True, return_counts=True)
    first = np.zeros(len(pair), dtype=bool)
    first[place] = True
    again = np.zeros(len(pair), dtype=np.int64)
    again[place] = rows - 1
    repeats = again[first]
    return Interactions(
        name=name,
        user=user[first],
        item=item[first],
        time=None if time is None else np.asarray(time, dtype=np.float64)[first],
        user_ids=user_ids,
        item_ids=item_ids,
        titles=None if titles is None else np.array([titles.get(i, i) for i in item_ids.tolist()], dtype=np.str_),
        repeats=repeats if repeats.any() else None,
        groups=None if groups is None else np.array([groups.get(u, "") for u in user_ids.tolist()], dtype=np.str_),
    )


def _index(raw: NDArray[np.generic]) -> tuple[NDArray[np.str_], Ints]:
    """Sorted distinct ids as text, and the dense index of each row."""
    if np.issubdtype(raw.dtype, np.integer):
        numbers, index = np.unique(raw, return_inverse=True)
        return numbers.astype(np.str_), index.astype(np.int64)
    values = [str(value) for value in raw.tolist()]
    names = sorted(set(values))
    if all(_WHOLE.fullmatch(name) for name in names):
        names.sort(key=int)
    rank = {name: i for i, name in enumerate(names)}  # three times faster than np.unique on text
    return np.array(names, dtype=np.str_), np.fromiter(map(rank.__getitem__, values), np.int64, len(values))
