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
        rows = self.rows
        order = np.lexsort((self.values, rows))
        row, value = rows[order], self.values[order]
        new = np.ones(len(row), dtype=bool)
        new[1:] = (row[1:] != row[:-1]) | (value[1:] != value[:-1])
        return Ragged.of(row[new], value[new], len(self))

    def padded(self, rows: Ints, fill: int = -1) -> Ints:
        """(len(rows), longest) matrix of the chosen rows, filled up with `fill`."""
        lengths = self.lengths[rows]
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
