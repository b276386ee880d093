"""Randomness that depends on (seed, purpose, round, client) and a counter, on nothing else.

Every draw is a hash, so a client gets the same numbers in any chunk, thread, process or machine. The hash is
SplitMix64's finaliser over a keyed counter (Steele, Lea, Flood 2014), vectorised in NumPy.
"""

import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def _mix(x: Bits) -> Bits:
    """Scramble in place: SplitMix64's finaliser, a bijection of 64 bits."""
    x ^= x >> _30
    x *= _A
    x ^= x >> _27
    x *= _B
    x ^= x >> _31
    return x


def _keys(seed: int, purpose: str, round: int, ids: Tensor | NDArray[np.int64]) -> Bits:
    """One 64-bit key per client, shape (C,)."""
    key = np.asarray(ids).astype(np.uint64)
    for word in (seed, zlib.crc32(purpose.encode()), round):
        key = _mix(key * _GOLDEN + np.uint64(word & 0xFFFFFFFFFFFFFFFF))
    return key


def bits(seed: int, purpose: str, round: int, ids: Tensor | NDArray[np.int64], count: int) -> Bits:
    """(C, count) independent 64-bit words."""
    counter = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mix(_keys(seed, purpose, round, ids)[:, None] + counter)


def uniform(seed: int, purpose: str, round: int, ids: Tensor | NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """(C, count) numbers in the open interval (0, 1), 53 bits each."""
    return unit(bits(seed, purpose, round, ids, count))


def unit(words: Bits) -> NDArray[np.float64]:
    """A number in the open interval (0, 1) from the high 53 bits of every word."""
    return ((words >> _11).astype(np.float64) + 0.5) * 2.0**-53


def normal_of(words: Bits) -> NDArray[np.float64]:
    """A standard normal from every word, by inverting the distribution function."""
    from scipy.special import ndtri

    return np.asarray(ndtri(unit(words)))


def laplace_of(words: Bits) -> NDArray[np.float64]:
    """A Laplace variable of scale 1 from every word: −ln u of its high bits, the sign of its lowest."""
    sign = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
    return sign * np.log(unit(words))


def below(words: Bits, bound: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map words to integers in [0, bound), bound broadcasting and under 2³¹.

    The high 32 bits are scaled, so the bias is below bound / 2³².
    """
    high = np.uint64(32)
    return (((words >> high) * bound.astype(np.uint64)) >> high).astype(np.int64)


def normal(seed: int, purpose: str, round: int, ids: Tensor | NDArray[np.int64], *shape: int) -> Tensor:
    """(C, *shape) standard normals, by inverting the distribution function."""
    count = int(np.prod(shape, dtype=np.int64))
    return torch.from_numpy(normal_of(bits(seed, purpose, round, ids, count)).astype(np.float32)).view(-1, *shape)


def generator(seed: int, purpose: str, round: int = 0) -> np.random.Generator:
    """A NumPy generator for work that is done once, in one place (making data, splitting it)."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round])


def drawn(seed: int, purpose: str, round: int, total: int, part: slice) -> NDArray[np.int64]:
    """Part of a random order of 0..total-1, ascending; nothing is sorted but that part."""
    key = bits(seed, purpose, round, np.arange(total), 1)[:, 0]
    ends = [place for place in (part.start, part.stop - 1) if 0 <= place < total]
    return np.sort((np.argpartition(key, ends) if ends else np.arange(total))[part])


def bits_at(seed: int, purpose: str, round: int, ids: Tensor | NDArray[np.int64], counters: NDArray[np.int64]) -> Bits:
    """One word for each (id, counter), shapes broadcasting: the same words as `bits`, picked at will."""
    counter = (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return _mix(_keys(seed, purpose, round, ids) + counter)


def distinct(
    seed: int, purpose: str, ids: NDArray[np.int64], bound: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """(C, count) distinct integers below each client's bound; -1 where the bound is too small.

    Floyd's sampling: step j draws below j + 1 and takes j itself on a repeat. Vectorised over clients.
    """
    words = bits(seed, purpose, 0, ids, count)
    chosen = np.full((len(ids), count), -1, dtype=np.int64)
    for k in range(count):
        top = bound - count + k  # the largest number that may be drawn at this step
        draw = below(words[:, k], np.maximum(top + 1, 1))
        repeat = (chosen[:, :k] == draw[:, None]).any(1)
        chosen[:, k] = np.where(top < 0, -1, np.where(repeat, top, draw))
    return chosen
