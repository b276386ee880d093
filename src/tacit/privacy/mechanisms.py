"""Noise on uploads before they leave a client, over any method (docs/decisions/0012-privacy-mechanisms.md)."""

import dataclasses
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.payload import Change, Each, Field, Payload
from tacit.errors import UserError
from tacit.privacy.accountant import gaussian_cost, laplace_cost, smallest
from tacit.registry import Registry

HAIR = 1 - 1e-6  # clipped to a hair below the bound, so that rounding to float32 does not pass it
TINY = 1e-30  # a smaller factor would be rounded up, by as much as itself: nothing is sent in its place
BLOCK = 1 << 16  # values drawn at a time, at least a client's: their words stay in the cache


@dataclass(frozen=True)
class Mechanism:
    """Clip what each client adds to what the server sent, all fields together, and add noise to every value of it.

    A field that the server had sent under the same name is clipped as its change, any other as it is. A table of
    touched rows becomes a whole one with noise on every row: the same bytes, and nothing says which rows were touched.
    The weight of a mean would tell |D_u|: it becomes one. No field can be left out: what is not floating point is
    refused, and `private=False` excuses nothing but the weight.
    """

    scale: float  # b of Laplace, σ of Gauss
    clip: float = 0.0  # bound on a client's norm; the unclipped have none
    delta: float = 1e-5  # at which ε is stated
    source: Literal["seed", "system"] = "seed"  # of the noise; ε holds for the system's entropy, a seed is to simulate

    name: ClassVar[str]  # by which it is asked for
    norm: ClassVar[int]  # 1 or 2: which one `clip` bounds

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Noise of scale one from random words, one value each."""
        raise NotImplementedError

    @staticmethod
    def cost(ratio: float, rounds: int, delta: float) -> float:
        """ε of this many rounds; `ratio` is the noise's scale over the sensitivity, 2 · clip."""
        raise NotImplementedError

    @classmethod
    def check(cls, clip: float | None, scale: float | None, epsilon: float | None) -> None:
        """Refuse what does not go together in `--ldp`."""
        if clip is None:
            raise UserError(f"ldp: {cls.name} needs clip=…, the bound on a client's upload, or no ε follows")
        if (scale is None) == (epsilon is None):
            raise UserError(f"ldp: {cls.name} needs either scale=…, of the noise, or epsilon=…, what a run may cost")

    @classmethod
    def for_target(cls, clip: float, epsilon: float, rounds: int, delta: float = 1e-5) -> Self:
        """The one with the least noise under which a client that takes part so often spends at most ε."""
        ratio = smallest(lambda tried: cls.cost(tried, max(rounds, 1), delta), epsilon)
        return cls(2 * clip * ratio, clip, delta)

    def epsilon(self, rounds: int) -> float:
        """What a client that took part in this many rounds has spent, at δ."""
        return self.cost(self.scale / (2 * self.clip), rounds, self.delta)

    @property
    def kind(self) -> str:
        """How it is found again."""
        cls = type(self)
        return cls.name if MECHANISMS.known().get(cls.name) is cls else f"{cls.__module__}:{cls.__qualname__}"

    def stated(self) -> dict[str, Any]:
        """As it is written down; `named` makes it again."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def __call__(self, up: Payload, down: Payload, seed: int, round: int) -> Payload:
        """The upload as it is sent."""
        changes: dict[str, Change] = {}
        for name, field in up.fields.items():
            if self.covers(name, field):
                if reason := field.uncovered():
                    raise UserError(f"'{name}' of the upload {reason}")
                changes[name] = field.against(down.fields.get(name))
        self.bound(changes.values(), len(up.ids))
        fields: dict[str, Field] = {}
        for name, field in up.fields.items():
            if name in changes:
                noise = self._draw(name, up.ids, field, changes[name].value.dtype, seed, round)
                # the server knows the base, so that adding it tells nothing
                fields[name] = field.noisy(changes.pop(name).onto(noise))
            else:
                fields[name] = self.beside(field)
        return Payload(up.ids, fields)

    def covers(self, name: str, field: Field) -> bool:
        """Whether a field gets noise."""
        return name != "weight"

    def beside(self, field: Field) -> Field:
        """What becomes of a field without noise."""
        return Each(torch.ones_like(field.dense()), private=False)

    def bound(self, changes: Collection[Change], clients: int) -> None:
        """Bring every client's changes within the norm, in place."""
        size = torch.zeros(clients, dtype=torch.float64)
        for change in changes:
            change.value.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # no factor could bound these
            size += change.value.reshape(clients, -1).double().abs().pow(self.norm).sum(1)
        factor = (HAIR * self.clip / size.pow(1 / self.norm).clamp(min=1e-300)).clamp(max=1.0)  # (C,)
        factor[factor < TINY] = 0.0
        for change in changes:
            change.value.mul_(factor.to(change.value.dtype).view(-1, *[1] * (change.value.dim() - 1)))

    def _draw(self, name: str, ids: Tensor, field: Field, dtype: torch.dtype, seed: int, round: int) -> Tensor:
        """(C, …) noise for every value of the clients."""
        count = math.prod(field.one_shape)
        out = torch.empty(len(ids), count, dtype=dtype)
        for some in torch.split(torch.arange(len(ids)), max(1, BLOCK // max(count, 1))):
            if self.source == "system":
                words = np.frombuffer(os.urandom(8 * len(some) * count), dtype=np.uint64).reshape(len(some), count)
            else:
                words = rng.bits(seed, f"ldp/{name}", round, ids[some], count)
            drawn = self.noise(words)
            drawn *= self.scale
            out[some] = torch.from_numpy(drawn).to(dtype)
        return out.view(len(ids), *field.one_shape)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise on uploads of a bounded L1 norm."""

    name: ClassVar[str] = "laplace"
    norm: ClassVar[int] = 1

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Density e^(−|x|) / 2."""
        return rng.laplace_of(words)

    @staticmethod
    def cost(ratio: float, rounds: int, delta: float) -> float:
        """By privacy loss distributions."""
        return laplace_cost(ratio, rounds, delta)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise on uploads of a bounded L2 norm."""

    name: ClassVar[str] = "gaussian"
    norm: ClassVar[int] = 2

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Standard normal."""
        return rng.normal_of(words)

    @staticmethod
    def cost(ratio: float, rounds: int, delta: float) -> float:
        """The exact one of a Gaussian release."""
        return gaussian_cost(ratio, rounds, delta)


class Unclipped(Mechanism):
    """The papers' noise on the fields marked private, everything else untouched: ε is infinite."""

    @classmethod
    def check(cls, clip: float | None, scale: float | None, epsilon: float | None) -> None:
        """A scale is all there is to say."""
        if clip is not None or epsilon is not None or scale is None:
            raise UserError(f"ldp: {cls.name} has a scale and nothing else; no finite ε follows without clipping")

    def epsilon(self, rounds: int) -> float:
        """Nothing is promised."""
        return math.inf if rounds else 0.0

    def covers(self, name: str, field: Field) -> bool:
        """What the method marks."""
        return field.private

    def beside(self, field: Field) -> Field:
        """It goes out as it is."""
        return field

    def bound(self, changes: Collection[Change], clients: int) -> None:
        """Nothing is bounded."""


class UnclippedLaplace(Unclipped, Laplace):
    """Laplace noise without a bound."""

    name: ClassVar[str] = "unclipped-laplace"


class UnclippedGaussian(Unclipped, Gaussian):
    """Gaussian noise without a bound."""

    name: ClassVar[str] = "unclipped-gaussian"


MECHANISMS = Registry("mechanism", "tacit.privacy.mechanisms", Mechanism)


def named(kind: str, scale: float, **options: Any) -> Mechanism:
    """The mechanism of that name, or of `module:Class`."""
    return MECHANISMS.find(kind)(scale, **options)
