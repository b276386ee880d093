"""The additive statistics of item sequences, cell by cell, without ever writing a history out.

A decayed history h_t is a geometric weight on the last W items, so Σ_t h_t h_tᵀ between two items of a sequence is a
geometric series that depends only on their distance and on how many steps follow. Every pair of places is visited once:
n·W cells for a sequence of n items, whatever the catalogue's size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.core.payload import Sparse
from tacit.data.splits import Orders

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sequences:
    """Item sequences laid end to end."""

    items: Ints  # (T,)
    owner: Ints  # (T,) which sequence
    place: Ints  # (T,) from 0, the oldest
    length: Ints  # (T,) of the own sequence
    weight: Floats  # (T,) of the own sequence in what it adds

    @classmethod
    def of(cls, lists: Sequence[Ints]) -> "Sequences":
        """From one array of items per sequence."""
        lengths = np.array([len(x) for x in lists], dtype=np.int64)
        items = np.concatenate([*lists, np.zeros(0, dtype=np.int64)])
        place = np.concatenate([*(np.arange(n) for n in lengths.tolist()), np.zeros(0, dtype=np.int64)])
        owner = np.repeat(np.arange(len(lists)), lengths)
        return cls(items, owner, place, np.repeat(lengths, lengths), np.ones(len(items)))

    @classmethod
    def of_orders(cls, histories: Sequence[Orders]) -> "Sequences":
        """From histories in one order or several, which then weigh less each; the owner is the history."""
        each = np.array([len(orders) for orders in histories], dtype=np.int64)
        laid = cls.of([order for orders in histories for order in orders])
        owner = np.repeat(np.arange(len(histories)), each)[laid.owner]
        return replace(laid, owner=owner, weight=1 / each[owner])

    @property
    def longest(self) -> int:
        """Length of the longest sequence."""
        return int(self.length.max(initial=0))


@dataclass(frozen=True)
class Cells:
    """Entries of one matrix per sequence."""

    owner: Ints  # (n,)
    row: Ints
    column: Ints
    value: Floats

    def scaled(self, factor: Floats) -> "Cells":
        """Each sequence's entries times its own factor."""
        return Cells(self.owner, self.row, self.column, self.value * factor[self.owner])

    def squares(self, owners: int) -> Floats:
        """(owners,) sum of squares of each sequence's entries."""
        return sums(self.owner, self.value**2, owners)

    def lower(self) -> "Cells":
        """Entries above the diagonal moved below it: a symmetric matrix by one half."""
        return Cells(self.owner, np.maximum(self.row, self.column), np.minimum(self.row, self.column), self.value)

    def both(self) -> "Cells":
        """A symmetric matrix by one half written out."""
        off = self.row != self.column
        return _join([self, Cells(self.owner[off], self.column[off], self.row[off], self.value[off])])

    def at(self, row: Ints | None, column: Ints | None) -> "Cells":
        """Entries moved to the rows and columns that `row` and `column` name; −1: gone, None: as they are."""
        moved = Cells(
            self.owner,
            self.row if row is None else row[self.row],
            self.column if column is None else column[self.column],
            self.value,
        )
        keep = (moved.row >= 0) & (moved.column >= 0)
        return Cells(moved.owner[keep], moved.row[keep], moved.column[keep], moved.value[keep])


def places(inputs: Ints, n_items: int) -> Ints:
    """(M,) where each item stands in `inputs`; −1: nowhere."""
    out = np.full(n_items, -1, dtype=np.int64)
    out[inputs] = np.arange(len(inputs))
    return out


def sums(place: Ints, value: Floats, places: int) -> Floats:
    """(places,) sums of the values at each place."""
    return np.bincount(place, weights=value, minlength=places).astype(np.float64)


def _join(parts: list[Cells]) -> Cells:
    empty = np.zeros(0, dtype=np.int64)
    parts = [*parts, Cells(empty, empty, empty, np.zeros(0))]
    return Cells(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("owner", "row", "column", "value")))


def transitions(s: Sequences, windows: Sequence[int], decays: Sequence[float], n_items: int) -> Cells:
    """C = Σ_t h_t e_{i_t}ᵀ: an item `lag` steps before another adds γ^(lag−1). Rows of scale k start at k·M."""
    parts = []
    for scale, (window, decay) in enumerate(zip(windows, decays, strict=True)):
        for lag in range(1, min(window, s.longest - 1) + 1):
            early = np.flatnonzero(s.place + lag < s.length)
            value = decay ** (lag - 1) * s.weight[early]
            parts.append(Cells(s.owner[early], scale * n_items + s.items[early], s.items[early + lag], value))
    return _join(parts)


def recurrences(s: Sequences, windows: Sequence[int], decays: Sequence[float], n_items: int) -> Cells:
    """A = Σ_t h_t h_tᵀ over t = 1 … n−1, its lower half.

    Places a (scale p) and b (scale q) are both in h_t from the step after the later of them until one leaves its window
    or the sequence ends: m steps, each γ_p γ_q times the one before.
    """
    parts = []
    scales = list(enumerate(zip(windows, decays, strict=True)))
    for p, (wide_p, decay_p) in scales:
        for q, (wide_q, decay_q) in scales[p:]:
            shortest = 0 if p == q else 1 - wide_q  # of one scale, each pair once
            for lag in range(max(shortest, 1 - s.longest), min(wide_p, s.longest)):  # b = a + lag
                inside = (s.place + lag < s.length) & (s.place + lag >= 0)
                later = s.place + max(lag, 0)
                room = min(wide_p - max(lag, 0), wide_q - max(-lag, 0))
                steps = np.minimum(s.length - 1 - later, room)
                a = np.flatnonzero(inside & (steps > 0))
                series = np.concatenate([[0.0], np.cumsum((decay_p * decay_q) ** np.arange(room))])
                start = decay_p ** max(lag, 0) * decay_q ** max(-lag, 0)
                row, column = p * n_items + s.items[a], q * n_items + s.items[a + lag]
                parts.append(Cells(s.owner[a], row, column, start * series[steps[a]] * s.weight[a]))
    return _join(parts).lower()


def gram(s: Sequences) -> Cells:
    """G = x xᵀ, its lower half: each item of a sequence beside itself and all smaller ones."""
    items = s.items[np.lexsort((s.items, s.owner))]
    upto = s.place + 1
    begin = np.arange(len(items)) - s.place  # of the own sequence
    column = items[np.arange(int(upto.sum())) - np.repeat(np.cumsum(upto) - upto - begin, upto)]
    return Cells(np.repeat(s.owner, upto), np.repeat(items, upto), column, np.ones(len(column)))


def counts(s: Sequences) -> Cells:
    """x of every sequence, a single row."""
    return Cells(s.owner, np.zeros_like(s.items), s.items, np.ones(len(s.items)))


def recent(s: Sequences, windows: Sequence[int], decays: Sequence[float], n_items: int) -> Cells:
    """h_now of every sequence, a single row: the places within each window from the end. Scale k starts at k·M."""
    age = s.length - 1 - s.place
    parts = []
    for scale, (window, decay) in enumerate(zip(windows, decays, strict=True)):
        a = np.flatnonzero(age < window)
        column = scale * n_items + s.items[a]
        parts.append(Cells(s.owner[a], np.zeros_like(a), column, decay ** age[a].astype(np.float64) * s.weight[a]))
    return _join(parts)


def steps(items: Ints, windows: Sequence[int], decays: Sequence[float], n_items: int, first: int = 1) -> Cells:
    """The histories h_first … h_{n−1} of one sequence, a single row each; the owner is the step, from 0."""
    parts = []
    at = np.arange(first, len(items))
    for scale, (window, decay) in enumerate(zip(windows, decays, strict=True)):
        for lag in range(1, min(window, len(items) - 1) + 1):
            a = at[at >= lag]
            column = scale * n_items + items[a - lag]
            parts.append(Cells(a - first, np.zeros_like(a), column, np.full(len(a), decay ** (lag - 1))))
    return _join(parts)


def sparse_field(cells: Cells, client: Ints, shape: tuple[int, int], many: bool) -> Sparse:
    """A field of a payload: `client` owns each sequence; `many`: several sequences of one, whose cells are added up."""
    owner, index, value = client[cells.owner], cells.row * shape[1] + cells.column, cells.value
    if many:  # several users of a client may fill one cell
        size = shape[0] * shape[1]
        key, place = np.unique(owner * size + index, return_inverse=True)
        owner, index, value = key // size, key % size, sums(place, value, len(key))
    return Sparse(torch.from_numpy(owner), torch.from_numpy(index), torch.from_numpy(value).float(), shape)
