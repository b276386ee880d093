"""The four protocols: what is trained on, what is held out, what may be drawn as a negative.

`strict` is the default and the only one for claims. `paper` repeats the field's usual protocol, leak included.
docs/protocols.md says why there are four. `everything` is none of them: it withholds nothing, for a model that is used.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit import rng
from tacit.data.interactions import Interactions
from tacit.data.ragged import Complement, Ragged, union
from tacit.errors import UserError, unknown

Ints = NDArray[np.int64]
Protocol = Literal["strict", "paper", "symmetric", "ratio", "everything"]
PROTOCOLS: tuple[Protocol, ...] = ("strict", "paper", "symmetric", "ratio")  # those that evaluate
SAMPLED = 99  # negatives beside each held-out item in sampled ranking


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
    negatives: dict[str, Ints]  # part -> (n_users, 99) fixed candidates beside the held-out item, -1 padded
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
        return len(self.test.values) > 0

    def held_out(self, part: str) -> Ragged:
        """The items to be found in a part: `valid` or `test`."""
        return self.test if part == "test" else self.valid

    def known(self, part: str) -> Ragged:
        """The items left out of the full ranking: training, and at test time the validation items too."""
        return union(self.train, self.valid) if part == "test" else self.train

    @cached_property
    def allowed(self) -> Complement:
        """The items a training negative may be drawn from, per user."""
        return Complement(self.barred, self.n_items)


def split(data: Interactions, protocol: str = "strict", seed: int = 0) -> Split:
    """Divide a data set by one of the four protocols, or put everything into training."""
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
    everything = union(train, valid, test)
    negatives = (
        {}
        if protocol in ("ratio", "everything")
        else {p: _sampled(everything, data, p, seed) for p in ("valid", "test")}
    )
    match protocol:
        case "paper":
            barred = everything
        case "symmetric":
            barred = union(everything, *(_as_ragged(c) for c in negatives.values()))
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

    `paper` keeps the order of the file for equal times, as the public code does.
    """
    chance = rng.bits_at(seed, "order", 0, data.user, data.item)
    if data.time is None:
        return np.lexsort((chance, data.user))
    if protocol == "paper":
        return np.lexsort((data.time, data.user))
    return np.lexsort((chance, data.time, data.user))


def _last_two(seed: int, user: Ints, item: Ints, place: Ints, n: Ints) -> Ints:
    """Leave one out: the last is test (2), the last but one validation (1)."""
    left = n[user] - 1 - place
    return np.where(left == 0, 2, np.where(left == 1, 1, 0))


def _ratio(seed: int, user: Ints, item: Ints, place: Ints, n: Ints) -> Ints:
    """Per user 20% at random as test, a tenth of the rest as validation; at least one each."""
    chance = rng.bits_at(seed, "ratio", 0, user, item)
    shuffled = np.lexsort((chance, user))
    rank = np.empty_like(place)
    rank[shuffled] = place  # place within the user, in random order
    n_test = np.maximum(np.round(0.2 * n), 1).astype(np.int64)
    n_valid = np.maximum(np.round(0.1 * (n - n_test)), 1).astype(np.int64)
    return np.where(rank < n_test[user], 2, np.where(rank < (n_test + n_valid)[user], 1, 0))


def _all(seed: int, user: Ints, item: Ints, place: Ints, n: Ints) -> Ints:
    """Nothing is withheld."""
    return np.zeros_like(place)


_PARTS = {"strict": _last_two, "paper": _last_two, "symmetric": _last_two, "ratio": _ratio, "everything": _all}


def _sampled(everything: Ragged, data: Interactions, part: str, seed: int) -> Ints:
    """(n_users, 99) distinct items outside all of a user's interactions, drawn once for the part."""
    users = np.flatnonzero(everything.lengths)
    outside = Complement(everything, data.n_items)
    rank = rng.distinct(seed, f"candidates/{part}", users, outside.count[users], SAMPLED)
    out = np.zeros((data.n_users, SAMPLED), dtype=np.int64)  # rows never written to, of users elsewhere, cost no memory
    out[users] = np.where(rank < 0, -1, outside.item(users[:, None], np.maximum(rank, 0)))
    return out


def _as_ragged(padded: Ints) -> Ragged:
    row, column = np.nonzero(padded >= 0)
    return Ragged.of(row, padded[row, column], len(padded))
