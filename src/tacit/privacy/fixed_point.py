"""Real numbers as whole ones modulo 2³² or 2⁶⁴, so that masks can hide them and sums stay exact."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Words = NDArray[np.uint32] | NDArray[np.uint64]


@dataclass(frozen=True)
class FixedPoint:
    """Values within ±bound in steps of a power of two, the finest at which a sum over all clients cannot overflow."""

    bound: float
    clients: int  # how many summands there may be
    word: Literal[32, 64] = 64

    def __post_init__(self) -> None:
        if not (0 < self.bound < math.inf and self.clients > 0):
            raise ValueError(f"no fixed point for ±{self.bound} and {self.clients} clients")

    @property
    def bits(self) -> int:
        """f, binary places behind the point: the largest with clients · ⌈bound · 2^f⌉ < 2^(word − 1)."""
        places = self.word - math.frexp(self.bound)[1] - self.clients.bit_length() + 1
        while self.clients * math.ceil(math.ldexp(self.bound, places)) >= 2 ** (self.word - 1):
            places -= 1
        return places

    @property
    def step(self) -> float:
        """The distance between neighbouring values; a client's own is off by at most half of it."""
        return 2.0**-self.bits

    def encode(self, values: Reals) -> Words:
        """The nearest multiples of the step, clipped to the bound; negative ones stand in the upper half."""
        if np.isnan(values).any():
            raise ValueError("a value to be summed is not a number")
        whole = np.rint(np.ldexp(np.clip(values.astype(np.float64), -self.bound, self.bound), self.bits))
        return whole.astype(np.int64).view(np.uint64) if self.word == 64 else whole.astype(np.int32).view(np.uint32)

    def decode(self, words: Words) -> Reals:
        """Back to real numbers; of a sum as of a single value."""
        signed = words.view(np.int64) if self.word == 64 else words.view(np.int32)
        return np.ldexp(signed.astype(np.float64), -self.bits)
