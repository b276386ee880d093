"""The five protocols: what is trained on, what is held out, what may be drawn as a negative.

`strict` is the default and the only one for claims. `paper` repeats the field's usual protocol, leak included.
docs/protocols.md says why there are five. `everything` is none of them: it withholds nothing, for a model that is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit import rng
from tacit.data.interactions import Interactions
from tacit.data.protocols import PROTOCOLS, SHARES, Protocol
from tacit.data.ragged import Complement, Ragged, union
from tacit.errors import UserError, unknown

Ints = NDArray[np.int64]
Orders = Sequence[Ints]  # one history in one order or, where times are equal, in two that are as good
SAMPLED = 99  # negatives beside each held-out item in sampled ranking


class Candidates:
    """The 99 items, outside all of a user's interactions, that a held-out item is ranked among: drawn once for a part.

    A user's depend on the seed, the part and the user alone. They are drawn when they are asked for and then kept, so
    that users who are not evaluated cost nothing.
    """

    def __init__(self, parts: tuple[Ragged, ...], n_items: int, part: str, seed: int) -> None:
        self._parts, self._n_items, self._part, self._seed = parts, n_items, part, seed
        # pages that are never written to take no memory
        self._kept = np.zeros((len(parts[0]), SAMPLED), dtype=np.int32)
        self._done = np.zeros(len(parts[0]), dtype=bool)

    def __getitem__(self, users: Ints) -> Ints:
        """(n, 99) of these users, -1 where a user has fewer items left."""
        fresh = users[~self._done[users]]
        if len(fresh):
            outside = Complement(union(*(rows.only(fresh) for rows in self._parts)), self._n_items)
            rank = rng.distinct(self._seed, f"candidates/{self._part}", fresh, outside.count, SAMPLED)
            item = outside.item(np.arange(len(fresh))[:, None], np.maximum(rank, 0))
            self._kept[fresh] = np.where(rank < 0, -1, item)
            self._done[fresh] = True
        return self._kept[users].astype(np.int64)


@dataclass(frozen=True)
class Split:
    """One user's interactions divided, for all users at once."""

    data: Interactions
    protocol: Protocol
    seed: int
    train: Ragged  # per user, oldest first
    valid: Ragged
    test: Ragged
    barred: Ragged  # per user, ascending: never drawn as a training negative
    negatives: dict[str, Candidates]  # part -> fixed candidates beside the held-out item
    too_short: int  # users with fewer than three interactions: trained on, never evaluated

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.data.n_users

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.data.n_items

    @property
    def sampled_only(self) -> bool:
        """Whether the protocol ranks only the held-out item and its 99 fixed negatives."""
        return self.protocol in ("paper", "symmetric")

    @property
    def evaluates(self) -> bool:
        """Whether anything is withheld to evaluate on."""
        return len(self.valid.values) > 0

    def untested(self) -> "Split":
        """The same without the test items and their rivals: who has it cannot read them."""
        nothing = np.zeros(0, dtype=np.int64)
        negatives = {part: drawn for part, drawn in self.negatives.items() if part != "test"}
        return replace(self, test=Ragged.of(nothing, nothing, self.n_users), negatives=negatives)

    def held_out(self, part: str) -> Ragged:
        """The items to be found in a part: `valid` or `test`."""
        return self.test if part == "test" else self.valid

    def known(self, part: str) -> Ragged:
        """The items left out of the full ranking: training, and at test time the validation items too."""
        return union(self.train, self.valid) if part == "test" else self.train

    def orders(self, user: int, items: Ints | None = None) -> Orders:
        """The orders in which items of a user's, oldest first, may have come: those with equal times came at once.

        Without `items`, those of training, which are kept: each evaluation asks for them again.
        """
        if items is None:
            if user not in self._trained:
                self._trained[user] = self.orders(user, self.train[user])
            return self._trained[user]
        if self._times is None:
            return (items,)
        keys, times = self._times
        key = user * self.n_items + items
        place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        time = np.where(keys[place] == key, times[place], np.nan)  # an item without a time came after all before it
        return in_orders(items, np.concatenate([[False], time[1:] == time[:-1]])[: len(items)])

    @cached_property
    def _trained(self) -> dict[int, Orders]:
        return {}

    @cached_property
    def _times(self) -> tuple[Ints, NDArray[np.float64]] | None:
        """The data's pairs of user and item, ascending, and their times."""
        if self.data.time is None or not len(self.data):
            return None
        keys = self.data.user * self.n_items + self.data.item
        order = np.argsort(keys)
        return keys[order], self.data.time[order]


def in_orders(items: Ints, at_once: NDArray[np.bool_]) -> Orders:
    """A history in an order that is random among items that came at once, and with those the other way round.

    `at_once` (n,): the item came with the one before it. Chance depends on the items alone, so that whoever knows which
    of them came at once knows both orders.
    """
    if not at_once.any():
        return (items,)
    moment = np.cumsum(~at_once)
    company = np.bincount(moment, weights=items).astype(np.int64)[moment]
    chance = rng.bits_at(0, "at once", 0, company, items)
    return items[np.lexsort((chance, moment))], items[np.lexsort((~chance, moment))]


def split(data: Interactions, protocol: str = "strict", seed: int = 0) -> Split:
    """Divide a data set by one of the five protocols, or put everything into training."""
    if protocol not in (*PROTOCOLS, "everything"):
        raise unknown("protocol", protocol, PROTOCOLS)
    order = _order(data, protocol, seed)
    user, item = data.user[order], data.item[order]  # by user, oldest first
    n = np.bincount(user, minlength=data.n_users)
    start = np.concatenate([[0], np.cumsum(n)])
    place = np.arange(len(user)) - start[user]
    part = _PARTS[protocol](seed, user, item, place, n)
    part[n[user] < 3] = 0

    train, valid, test = (Ragged.of(user[part == k], item[part == k], data.n_users) for k in range(3))
    negatives = {}
    if protocol not in (*SHARES, "everything"):
        negatives = {p: Candidates((train, valid, test), data.n_items, p, seed) for p in ("valid", "test")}
    match protocol:
        case "paper":
            barred = union(train, valid, test)
        case "symmetric":
            those = np.flatnonzero(n)
            drawn = (Ragged.of(*_laid_out(those, c[those]), data.n_users) for c in negatives.values())
            barred = union(train, valid, test, *drawn)
        case _:
            barred = train.sorted()
    stuck = int((barred.lengths >= data.n_items).sum())
    if stuck and protocol != "everything":  # a closed form draws none
        raise UserError(
            f"protocol '{protocol}' leaves {stuck:,} of the {data.n_users:,} users of {data.name} no item to draw as "
            f"a negative: it has only {data.n_items:,} items; use --protocol strict, or data with more items"
        )
    return Split(
        data=data,
        protocol=protocol,
        seed=seed,
        train=train,
        valid=valid,
        test=test,
        barred=barred,
        negatives=negatives,
        too_short=int((n < 3).sum()),
    )


def _order(data: Interactions, protocol: str, seed: int) -> Ints:
    """Rows by user and time. Equal times, and data without any, go in a seeded random order per user.

    `paper` keeps the order of the file for equal times, as the public code does. `fileorder` goes by nothing else and
    leaves out the first row, as a reader does that expects a heading (docs/decisions/0030-file-order.md).
    """
    if protocol == "fileorder":
        return 1 + np.argsort(data.user[1:], kind="stable")
    if data.time is None:
        return np.lexsort((rng.bits_at(seed, "order", 0, data.user, data.item), data.user))
    order = np.lexsort((data.time, data.user))
    if protocol == "paper":
        return order
    user, time = data.user[order], data.time[order]
    after = np.zeros(len(order) + 1, dtype=bool)  # whether a row comes at the time of the one before, of the same user
    after[1:-1] = (user[1:] == user[:-1]) & ~(time[1:] > time[:-1])
    tied = np.flatnonzero(after[1:] | after[:-1])
    rows = order[tied]
    chance = rng.bits_at(seed, "order", 0, data.user[rows], data.item[rows])
    order[tied] = rows[np.lexsort((chance, time[tied], user[tied]))]
    return order


def _last_two(seed: int, user: Ints, item: Ints, place: Ints, n: Ints) -> Ints:
    """Leave one out: the last is test (2), the last but one validation (1)."""
    left = n[user] - 1 - place
    return np.where(left == 0, 2, np.where(left == 1, 1, 0))


def _ratio(seed: int, user: Ints, item: Ints, place: Ints, n: Ints) -> Ints:
    """Per user 20% at random as test, a tenth of the rest as validation; at least one each."""
    chance = rng.bits_at(seed, "ratio", 0, user, item)
    rank = np.empty_like(place)
    rank[np.lexsort((chance, user))] = place  # place within the user, in random order
    n_test = np.maximum(np.round(0.2 * n), 1).astype(np.int64)
    return np.where(rank < n_test[user], 2, np.where(rank < (n_test + _a_tenth(n - n_test))[user], 1, 0))


def _fileorder(seed: int, user: Ints, item: Ints, place: Ints, n: Ints) -> Ints:
    """Per user the last ⌊20%⌋ as test, a tenth of the rest at random as validation; at least one each."""
    n_test = np.maximum(n // 5, 1)
    test = place >= (n - n_test)[user]
    chance = rng.bits_at(seed, "fileorder", 0, user, item)
    rank = np.empty_like(place)
    rank[np.lexsort((chance, test, user))] = place  # place within the user, in random order, test behind
    return np.where(test, 2, np.where(rank < _a_tenth(n - n_test)[user], 1, 0))


def _a_tenth(n: Ints) -> Ints:
    """Rounded, at least one."""
    return np.maximum(np.round(0.1 * n), 1).astype(np.int64)


def _all(seed: int, user: Ints, item: Ints, place: Ints, n: Ints) -> Ints:
    """Nothing is withheld."""
    return np.zeros_like(place)


_PARTS = {
    "strict": _last_two,
    "paper": _last_two,
    "symmetric": _last_two,
    "ratio": _ratio,
    "fileorder": _fileorder,
    "everything": _all,
}


def _laid_out(rows: Ints, padded: Ints) -> tuple[Ints, Ints]:
    """The values of padded rows, each with the number of its row."""
    place, column = np.nonzero(padded >= 0)
    return rows[place], padded[place, column]
