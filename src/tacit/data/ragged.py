"""Lists of different lengths in two flat arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Row r holds values[start[r]:start[r + 1]]."""

    start: Ints  # (n + 1,)
    values: Ints

    @classmethod
    def of(cls, row: Ints, values: Ints, n: int) -> "Ragged":
        """Group `values` by `row`, keeping their order within a row."""
        order = np.argsort(row, kind="stable")
        start = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(row, minlength=n), out=start[1:])
        return cls(start, values[order])

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, row: int) -> Ints:
        return self.values[self.start[row] : self.start[row + 1]]

    @property
    def lengths(self) -> Ints:
        """(n,) length of each row."""
        return np.diff(self.start)

    @property
    def rows(self) -> Ints:
        """The row of every value."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def sorted(self) -> "Ragged":
        """The same rows, each in ascending order and without repeats."""
        wide = int(self.values.max(initial=0)) + 1
        key = self.rows * wide + self.values  # one sort of numbers: several times faster than by two columns
        key.sort()
        new = np.ones(len(key), dtype=bool)
        new[1:] = key[1:] != key[:-1]
        row, value = np.divmod(key[new], wide)
        start = np.zeros_like(self.start)
        np.cumsum(np.bincount(row, minlength=len(self)), out=start[1:])
        return Ragged(start, value)

    def lengths_of(self, rows: Ints) -> Ints:
        """The lengths of some rows, without a look at the others."""
        return self.start[rows + 1] - self.start[rows]

    def only(self, rows: Ints) -> "Ragged":
        """Some of the rows, in this order."""
        lengths = self.lengths_of(rows)
        start = np.concatenate([[0], np.cumsum(lengths)])
        place = np.arange(start[-1]) + np.repeat(self.start[rows] - start[:-1], lengths)
        return Ragged(start, self.values[place])

    def padded(self, rows: Ints, fill: int = -1) -> Ints:
        """(len(rows), longest) matrix of the chosen rows, filled up with `fill`."""
        lengths = self.lengths_of(rows)
        columns = np.arange(max(int(lengths.max(initial=0)), 1))
        real = columns < lengths[:, None]
        out = np.full(real.shape, fill, dtype=np.int64)
        out[real] = self.values[(self.start[rows][:, None] + columns)[real]]
        return out


def union(*parts: Ragged) -> Ragged:
    """Row by row union, ascending."""
    rows = np.concatenate([p.rows for p in parts])
    return Ragged.of(rows, np.concatenate([p.values for p in parts]), len(parts[0])).sorted()


class Complement:
    """What is outside each row of a sorted Ragged over 0..n-1, addressed by rank, with no pool in memory.

    Barred value number k of a row has `value - k` allowed values below it, ascending in k. A rank is therefore
    pushed past as many barred values as have that number at or below the rank.
    """

    def __init__(self, barred: Ragged, n: int) -> None:
        rows = barred.rows
        place = np.arange(len(barred.values)) - barred.start[rows]
        self.count: Ints = n - barred.lengths  # (rows,) how many values are allowed
        self._start = barred.start
        self._stride = n + 1
        self._below = rows * self._stride + barred.values - place  # ascending over the whole array

    def item(self, rows: Ints, rank: Ints) -> Ints:
        """The allowed value of each rank in 0..count[row]-1; shapes broadcast."""
        passed = np.searchsorted(self._below, rows * self._stride + rank, side="right") - self._start[rows]
        return np.asarray(rank + passed, dtype=np.int64)
