"""Noise on uploads before they leave a client, over any method (docs/decisions/0012-privacy-mechanisms.md)."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.payload import Change, Each, Field, Payload
from tacit.errors import UserError
from tacit.privacy.accountant import Noise, local_epsilon, local_ratio

Kind: TypeAlias = Literal["laplace", "gaussian", "unclipped-laplace", "unclipped-gaussian"]

HAIR = 1 - 1e-6  # clipped to a hair below the bound, so that rounding to float32 does not pass it
BLOCK = 1 << 16  # values drawn at a time, at least a client's: their words stay in the cache


@dataclass(frozen=True)
class Mechanism:
    """Clip what each client adds to what the server sent, all fields together, and add noise to every value of it.

    `laplace` bounds the L1 norm, `gaussian` the L2 norm. A field that the server had sent under the same name is
    clipped as its change, any other as it is. A table of touched rows becomes a whole one with noise on every row: the
    same bytes, and nothing says which rows were touched. The weight of a mean would tell |D_u|: it becomes one. No
    field can be left out: what is not floating point is refused, and `private=False` excuses nothing but the weight.

    `unclipped-…` is the papers' noise on the fields marked private, everything else untouched: ε is infinite.
    """

    kind: Kind
    scale: float  # b of Laplace, σ of Gauss
    clip: float = 0.0  # bound on a client's norm; the unclipped have none
    delta: float = 1e-5  # at which ε is stated
    source: Literal["seed", "system"] = "seed"  # of the noise; ε holds for the system's entropy, a seed is to simulate

    @property
    def clips(self) -> bool:
        """Whether anything bounds an upload."""
        return not self.kind.startswith("unclipped")

    @property
    def noise(self) -> Noise:
        """The distribution of the noise."""
        return "laplace" if self.kind.endswith("laplace") else "gaussian"

    def __call__(self, up: Payload, down: Payload, seed: int, round: int) -> Payload:
        """The upload as it is sent."""
        changes: dict[str, Change] = {}
        for name, field in up.fields.items():
            if self._covers(name, field):
                if reason := field.uncovered():
                    raise UserError(f"'{name}' of the upload {reason}")
                changes[name] = field.against(down.fields.get(name))
        factor = self._factor(changes.values(), len(up.ids)) if self.clips else None
        fields: dict[str, Field] = {}
        for name, field in up.fields.items():
            if name in changes:
                part = changes.pop(name)
                fields[name] = field.noisy(self._noisy(name, part, field.one_shape, factor, up.ids, seed, round))
            else:
                fields[name] = Each(torch.ones_like(field.dense()), private=False) if self.clips else field
        return Payload(up.ids, fields)

    def epsilon(self, rounds: int) -> float:
        """What a client that took part in so many rounds has spent, at δ."""
        if not self.clips:
            return math.inf if rounds else 0.0
        return local_epsilon(self.noise, self.scale / (2 * self.clip), rounds, self.delta)

    def _covers(self, name: str, field: Field) -> bool:
        return name != "weight" if self.clips else field.private

    def _factor(self, parts: Iterable[Change], clients: int) -> Tensor:
        """(C,) what every client's changes are multiplied with: at most one."""
        power = 1 if self.noise == "laplace" else 2
        size = torch.zeros(clients, dtype=torch.float64)
        for part in parts:
            part.value.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # no factor could bound these
            size += part.value.reshape(clients, -1).double().abs().pow(power).sum(1)
        return (HAIR * self.clip / size.pow(1 / power).clamp(min=1e-300)).clamp(max=1.0)

    def _noisy(
        self,
        name: str,
        part: Change,
        shape: tuple[int, ...],
        factor: Tensor | None,
        ids: Tensor,
        seed: int,
        round: int,
    ) -> Tensor:
        """(C, …) base + (clipped change + noise). The server knows the base, so that adding it tells nothing."""
        change = part.value
        if factor is not None:
            change *= factor.to(change.dtype).view(-1, *[1] * (change.dim() - 1))
        count = math.prod(shape)
        out = torch.empty(len(ids), count, dtype=change.dtype)
        for some in torch.split(torch.arange(len(ids)), max(1, BLOCK // max(count, 1))):
            out[some] = torch.from_numpy(self._draw(name, ids[some], count, seed, round)).to(out.dtype)
        return part.onto(out.view(len(ids), *shape))

    def _draw(self, name: str, ids: Tensor, count: int, seed: int, round: int) -> NDArray[np.float64]:
        if self.source == "system":
            words = np.frombuffer(os.urandom(8 * len(ids) * count), dtype=np.uint64).reshape(len(ids), count)
        else:
            words = rng.bits(seed, f"ldp/{name}", round, ids, count)
        drawn = rng.laplace_of(words) if self.noise == "laplace" else rng.normal_of(words)
        drawn *= self.scale
        return drawn


def for_target(kind: Kind, clip: float, epsilon: float, rounds: int, delta: float = 1e-5) -> Mechanism:
    """The mechanism with the least noise under which a client that takes part so often spends at most ε."""
    plain = Mechanism(kind, 1.0, clip, delta)
    return Mechanism(kind, 2 * clip * local_ratio(plain.noise, epsilon, rounds, delta), clip, delta)
