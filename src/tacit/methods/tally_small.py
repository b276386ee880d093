"""A small model cut from tally's exact solution: the same bytes for everyone, and NumPy is all it takes to rank.

A row of B or E is what all rows have in common (`base`) plus a rest. Every row has a step, finer the more often its
item stands in histories; the rest is rounded to whole steps, at most 127 of them, and what is not zero is kept.

The file, little-endian throughout:

    bytes 0–7     "tally", 0, 0, 1
    bytes 8–11    uint32: length of the JSON that follows, in UTF-8
    JSON          items: M; inputs: K, 0 for all items; windows, decays: of each time scale; blend: w; tilt;
                  gap: bytes of a gap, g; parts: [{name: "B" or "E", rows: R, entries: n}, …], a part that w leaves out
                  is missing
    the rest      one zlib stream (in a browser `new DecompressionStream("deflate")`), unpacked:
        int32[K]                                    the items that have rows, ascending; K = 0: all have
        float32[M], float32[R], uint32[R] a part    base, steps, and how many entries each row has
        uint8[n] · g, int8[n] a part                bytes of the gaps, all lowest ones first, and values in steps

Entries are in the order of rows, then of columns. A row's first gap is its first column, every other one is the
distance from the column before. Row s·K' + i is that of the i-th input at time scale s (K' = K, or M).

A part's scores are Σ_r h_r · (base + step_r · values of row r), with h the decayed recent history for B and ones at the
user's items for E. They are standardised (mean 0, deviation 1 over all items) and summed with weights 1 − w and w;
w between 0 and 1 is w + tilt · log₂(max(n, 16) / 64) for n items that have rows, and no less than 0 nor more than 1.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Items = Sequence[int] | Ints

MAGIC = b"tally\0\0\1"
BLOCK = 256  # rows cut at a time
TRIED = 128  # rows of a matrix from which the size of all is told
USUAL, SHORT = 64, 16  # items of a history for which w is as chosen; fewer than the second count as these


def shares_of(blend: float, tilt: float, lengths: Ints) -> NDArray[np.float64]:
    """w of users with this many items, (n,); 0 and 1 are one part alone and stay.

    The longer a history, the better the item weights know a user, and the less the last few items say.
    """
    if blend in (0.0, 1.0):
        return np.full(len(lengths), blend)
    return np.clip(blend + tilt * np.log2(np.maximum(lengths, SHORT) / USUAL), 0.0, 1.0)


@dataclass(frozen=True)
class Part:
    """A matrix by its rows: what they have in common, and entries in steps."""

    base: Floats  # (M,)
    step: Floats  # (R,)
    start: Ints  # (R + 1,) where each row's entries begin
    column: Ints  # (n,)
    value: NDArray[np.int8]  # (n,)

    def scores(self, row: Ints, weight: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """(M,) the sum of these rows times their weights; without, each once, and of most rows as the others' rest."""
        base = (len(row) if weight is None else weight.sum()) * self.base
        if weight is None and 2 * len(row) > len(self.step):
            return np.asarray(base + self._all - self._entries(np.delete(np.arange(len(self.step)), row)))
        return np.asarray(base + self._entries(row, weight))

    def _entries(self, row: Ints, weight: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        begin, end = self.start[row], self.start[row + 1]
        pieces = [slice(a, b) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        column, value = (np.concatenate([x[:0], *(x[p] for p in pieces)]) for x in (self.column, self._rest))
        value = value if weight is None else value * np.repeat(weight, end - begin)
        return np.bincount(column, weights=value, minlength=len(self.base)).astype(np.float64)

    @cached_property
    def _rest(self) -> Floats:
        """(n,) the entries themselves."""
        return np.repeat(self.step, np.diff(self.start)) * self.value

    @cached_property
    def _all(self) -> NDArray[np.float64]:
        """(M,) the sum of all rows' entries."""
        return self._entries(np.arange(len(self.step)))

    def dense(self) -> Floats:
        """(R, M) written out."""
        out = np.tile(self.base, (len(self.step), 1))
        row = np.repeat(np.arange(len(self.step)), np.diff(self.start))
        out[row, self.column] += self._rest
        return out


@dataclass(frozen=True)
class SmallModel:
    """All that a device needs to rank."""

    n_items: int
    windows: tuple[int, ...]
    decays: tuple[float, ...]
    blend: float  # w
    inputs: Ints  # the items that have rows; empty: all
    parts: Mapping[str, Part]  # B and E, or one of them
    tilt: float = 0.0  # what w gains with every doubling of a history

    def scores(self, items: Items, other: Items | None = None) -> NDArray[np.float64]:
        """(M,) for a user with these items, oldest first; `other`: those that came at once the other way round."""
        orders = [np.asarray(x, dtype=np.int64) for x in (items, other) if x is not None]
        place, rows = np.arange(self.n_items), len(self.inputs) or self.n_items
        if len(self.inputs):
            place = np.full(self.n_items, -1)
            place[self.inputs] = np.arange(rows)
        seen = place[orders[0]]
        seen = seen[seen >= 0]
        (share,) = shares_of(self.blend, self.tilt, np.array([len(seen)]))
        total = np.zeros(self.n_items)
        if "B" in self.parts:
            row, weight = [], []
            scales = enumerate(zip(self.windows, self.decays, strict=True))
            for (scale, (window, decay)), history in product(scales, orders):
                recent = place[history[::-1][:window]]
                row.append(scale * rows + recent[recent >= 0])
                weight.append(decay ** np.flatnonzero(recent >= 0).astype(np.float64) / len(orders))
            total += (1 - share) * _standardised(self.parts["B"].scores(np.concatenate(row), np.concatenate(weight)))
        if "E" in self.parts:
            total += share * _standardised(self.parts["E"].scores(seen))
        return total

    def rank(self, items: Items, k: int = 10, other: Items | None = None) -> Ints:
        """The k best items that the user does not have."""
        scores = self.scores(items, other)
        scores[np.asarray(items, dtype=np.int64)] = -np.inf
        best = np.argpartition(-scores, min(k, len(scores) - 1))[:k]
        return best[np.argsort(-scores[best], kind="stable")]

    def encode(self) -> bytes:
        """As it is written to a file and sent."""
        wide = 2 if self.n_items <= 1 << 16 else 4
        head = {
            "items": self.n_items,
            "inputs": len(self.inputs),
            "windows": self.windows,
            "decays": self.decays,
            "blend": self.blend,
            "tilt": self.tilt,
            "gap": wide,
            "parts": [{"name": n, "rows": len(p.step), "entries": len(p.value)} for n, p in self.parts.items()],
        }
        told = json.dumps(head).encode()
        body = [self.inputs.astype("<i4").tobytes()]
        for part in self.parts.values():
            counts = np.diff(part.start).astype("<u4")
            body += [part.base.astype("<f4").tobytes(), part.step.astype("<f4").tobytes(), counts.tobytes()]
        for part in self.parts.values():
            body += [*_planes(_gaps(part), wide), part.value.tobytes()]
        return MAGIC + len(told).to_bytes(4, "little") + told + zlib.compress(b"".join(body), 6)

    def save(self, path: Path) -> None:
        """Write the file, at once or not at all."""
        beside = path.with_name(f".{path.name}.part")
        beside.write_bytes(self.encode())
        beside.replace(path)


def load(path: Path) -> SmallModel:
    """A model from its file."""
    return decode(path.read_bytes())


def decode(blob: bytes) -> SmallModel:
    """Back from what `encode` gave; ValueError where the bytes are something else."""
    if blob[: len(MAGIC)] != MAGIC:
        raise ValueError("this is not a small model of tally")
    try:
        model = _decoded(blob)
    except (KeyError, TypeError, OverflowError, RecursionError, AttributeError, zlib.error) as error:
        raise ValueError(f"a small model is damaged ({type(error).__name__})") from None
    rows = len(model.inputs) or model.n_items
    tall = {"B": len(model.windows) * rows, "E": rows}
    numbers = [np.array([model.tilt]), *(x for part in model.parts.values() for x in (part.base, part.step))]
    if (
        not 0 <= model.blend <= 1
        or not all(np.isfinite(x).all() for x in numbers)
        or not model.parts
        or any(len(part.step) != tall.get(name) for name, part in model.parts.items())
        or len(model.windows) != len(model.decays)
        or not all(type(window) is int and window > 0 for window in model.windows)
        or not all(0 < decay <= 1 for decay in model.decays)
        or (len(model.inputs) and not 0 <= model.inputs.min() <= model.inputs.max() < model.n_items)
    ):
        raise ValueError("what a small model says of itself does not fit together")
    return model


def _decoded(blob: bytes) -> SmallModel:
    told = int.from_bytes(blob[8:12], "little")
    head: dict[str, Any] = json.loads(blob[12 : 12 + told])
    n_items, wide, shapes = int(head["items"]), int(head["gap"]), head["parts"]
    rest = 4 * head["inputs"] + sum(4 * n_items + 8 * p["rows"] + (wide + 1) * p["entries"] for p in shapes)
    unpacked = zlib.decompressobj()
    body = unpacked.decompress(blob[12 + told :], rest + 1)
    if len(body) != rest or not unpacked.eof:
        raise ValueError(f"a small model of {rest:,} bytes unpacks to others")
    at = 0

    def take(kind: str, count: int) -> NDArray[Any]:
        nonlocal at
        out = np.frombuffer(body, dtype=kind, count=count, offset=at)
        at += out.nbytes
        return out

    inputs = take("<i4", head["inputs"]).astype(np.int64)
    begun = [(take("<f4", n_items), take("<f4", p["rows"]), take("<u4", p["rows"])) for p in shapes]
    parts = {}
    for shape, (base, step, counts) in zip(shapes, begun, strict=True):
        count = int(shape["entries"])
        gap = np.zeros(count, dtype=np.int64)
        for byte in range(wide):
            gap |= take("u1", count).astype(np.int64) << (8 * byte)
        start = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        if start[-1] != count:
            raise ValueError("the rows of a small model do not add up to its entries")
        total = np.concatenate([[0], np.cumsum(gap)])
        column = total[1:] - np.repeat(total[start[:-1]], counts)
        if count and not 0 <= column.min() <= column.max() < n_items:
            raise ValueError("a small model names items beyond its catalogue")
        parts[str(shape["name"])] = Part(base, step, start, column, take("i1", count))
    scales = tuple(head["windows"]), tuple(head["decays"])
    return SmallModel(n_items, *scales, float(head["blend"]), inputs, parts, float(head.get("tilt", 0.0)))


@dataclass(frozen=True)
class Whole:
    """A matrix of the exact solution, and how much each of its rows is used."""

    matrix: Floats  # (R, M)
    used: NDArray[np.float64]  # (R,) Σ h_r² over all histories
    own: Ints  # (R,) the item of each row: its own score is never looked at
    share: float  # of the score: 1 − w, or w


def cut(
    parts: Mapping[str, Whole],
    size: float,
    windows: Sequence[int],
    decays: Sequence[float],
    blend: float,
    inputs: Ints | None = None,
    tilt: float = 0.0,
) -> bytes:
    """The closest model of at most `size` bytes, encoded; parts without a share are left out.

    The squared error of scores is Σ_r used_r · (error of row r)², relative to what the part's scores vary by, times its
    share: all rows of all parts get steps of equal weight in it. One number, the common step, then makes the size.
    """
    held = {name: _Rests.of(whole) for name, whole in parts.items() if whole.share > 0}
    chosen = np.zeros(0, dtype=np.int64) if inputs is None else inputs
    n_items = next(iter(parts.values())).matrix.shape[1]

    def made(common: float, sample: bool) -> bytes:
        rows = {name: rests.part(common, rests.sample if sample else None) for name, rests in held.items()}
        return SmallModel(n_items, tuple(windows), tuple(decays), blend, chosen, rows, tilt).encode()

    tried = sum(len(rests.sample) for rests in held.values()) / sum(len(rests.used) for rests in held.values())
    fixed = len(made(1e6, sample=True))  # without an entry
    low, high = 1e-4, 4.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        found = fixed + (len(made(middle, sample=True)) - fixed) / tried
        low, high = (low, middle) if found <= size else (middle, high)
    while len(blob := made(high, sample=False)) > size and high < 1e6:
        high *= 1.03
    return blob


@dataclass(frozen=True)
class _Rests:
    """What rows have beside what all have in common, cut into entries with any step."""

    whole: Whole
    base: Floats
    used: NDArray[np.float64]
    unit: float  # a step of 1 for a row of use 1
    sample: Ints  # rows from which the size of all is told

    @classmethod
    def of(cls, whole: Whole) -> "_Rests":
        used = np.maximum(whole.used, 0) + 0.1 * max(float(whole.used.mean()), 1e-12)
        base = (used @ whole.matrix / used.sum()).astype(np.float32)
        every = max(1, len(used) // TRIED)
        sample = np.arange(every // 2, len(used), every)
        part = whole.matrix[sample] - base
        part -= part.mean(1, keepdims=True)
        varies = float(np.sqrt((used[sample] @ part**2).mean() / used[sample].sum()))
        return cls(whole, base, used, varies * float(np.sqrt(used.mean())) / whole.share, sample)

    def part(self, common: float, rows: Ints | None) -> Part:
        every = np.arange(len(self.used)) if rows is None else rows
        steps, counts, columns, values = [], [], [], []
        for begin in range(0, len(every), BLOCK):
            here = every[begin : begin + BLOCK]
            rest = self.whole.matrix[here] - self.base
            rest -= rest.mean(1, keepdims=True)  # a constant on all items changes no order
            rest[np.arange(len(here)), self.whole.own[here]] = 0
            step = np.maximum(common * self.unit / np.sqrt(self.used[here]), np.abs(rest).max(1) / 127)
            rest /= np.maximum(step, 1e-30).astype(np.float32)[:, None]
            whole = np.rint(rest).astype(np.int8)
            row, column = np.nonzero(whole)
            steps.append(step.astype(np.float32))
            counts.append(np.bincount(row, minlength=len(here)))
            columns.append(column)
            values.append(whole[row, column])
        start = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        return Part(self.base, np.concatenate(steps), start, np.concatenate(columns), np.concatenate(values))


def _gaps(part: Part) -> Ints:
    """(n,) distances of columns within their rows."""
    gap = np.diff(part.column, prepend=0)
    first = part.start[:-1][np.diff(part.start) > 0]
    gap[first] = part.column[first]
    return gap


def _planes(number: Ints, wide: int) -> list[bytes]:
    """The lowest bytes of all numbers, then the next: the high ones are nearly all zero, and pack to nothing."""
    return [((number >> (8 * byte)) & 255).astype(np.uint8).tobytes() for byte in range(wide)]


def _standardised(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((scores - scores.mean()) / (float(scores.std(ddof=1)) or 1.0), dtype=np.float64)
