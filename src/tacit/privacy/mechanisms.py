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
from tacit.core.payload import Cut, Each, Few, Field, Payload, Product, Rows, Shared, Sparse
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
        parts = {n: _part(n, field, down) for n, field in up.fields.items() if self._covers(n, field)}
        factor = self._factor(parts.values(), len(up.ids)) if self.clips else None
        fields: dict[str, Field] = {}
        for name, field in up.fields.items():
            if name in parts:
                noisy = Each(self._noisy(name, parts.pop(name), factor, up.ids, seed, round))
                fields[name] = Cut(Each(noisy.value * field.mask()), field.columns) if isinstance(field, Cut) else noisy
            else:
                fields[name] = Each(torch.ones_like(field.dense()), private=False) if self.clips else field
        return Payload(up.ids, fields)

    def epsilon(self, rounds: int) -> float:
        """What a client that took part in so many rounds has spent, at δ."""
        if not self.clips:
            return math.inf if rounds else 0.0
        return local_epsilon(self.noise, self.scale / (2 * self.clip), rounds, self.delta)

    def _covers(self, name: str, field: Field) -> bool:
        return name != "weight" if self.clips else not isinstance(field, Shared | Few) and field.private

    def _factor(self, parts: Iterable["_Part"], clients: int) -> Tensor:
        """(C,) what every client's changes are multiplied with: at most one."""
        power = 1 if self.noise == "laplace" else 2
        size = torch.zeros(clients, dtype=torch.float64)
        for part in parts:
            part.change.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # no factor could bound these
            size += part.change.reshape(clients, -1).double().abs().pow(power).sum(1)
        return (HAIR * self.clip / size.pow(1 / power).clamp(min=1e-300)).clamp(max=1.0)

    def _noisy(self, name: str, part: "_Part", factor: Tensor | None, ids: Tensor, seed: int, round: int) -> Tensor:
        """(C, …) base + (clipped change + noise). The server knows the base, so that adding it tells nothing."""
        change = part.change
        if factor is not None:
            change *= factor.to(change.dtype).view(-1, *[1] * (change.dim() - 1))
        count = math.prod(part.shape)
        out = torch.empty(len(ids), count, dtype=change.dtype)
        for some in torch.split(torch.arange(len(ids)), max(1, BLOCK // max(count, 1))):
            out[some] = torch.from_numpy(self._draw(name, ids[some], count, seed, round)).to(out.dtype)
        out = out.view(len(ids), *part.shape)
        if part.rows is None:
            out += change
        else:
            client = torch.arange(len(ids))[:, None].expand_as(part.rows.rows)
            real = part.rows.real
            out[client[real], part.rows.rows[real]] += change[real]
        return out if part.base is None else out.add_(part.base)

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


@dataclass(frozen=True)
class _Part:
    """A field taken apart."""

    change: Tensor  # (C, L, …) of touched rows, or (C, …); free to be written to
    base: Tensor | None  # what the server had sent
    rows: Rows | None  # where the touched rows are
    shape: tuple[int, ...]  # of one client's whole value


def _part(name: str, field: Field, down: Payload) -> _Part:
    """What a client added to what the server sent, or all there is where it sent nothing of the kind."""
    if isinstance(field, Sparse):
        raise UserError(
            f"'{name}' of the upload is sparse: which cells it names tells more than noise on them could hide; "
            "tally has central differential privacy of its own: --set clip=1 --set dp_noise=1"
        )
    if isinstance(field, Shared | Few):
        raise UserError(f"'{name}' of the upload is one value for all clients; noise needs one for each of them")
    if isinstance(field, Cut):  # what noise falls outside a client's columns is not sent
        field = field.of
    if isinstance(field, Product):  # noise goes on the matrix that is sent, not on its factors
        field = Each(field.dense(), field.private)
    if not field.value.is_floating_point():
        kind = str(field.value.dtype).removeprefix("torch.")
        raise UserError(f"'{name}' of the upload is of type {kind}: noise can be added to real numbers alone")
    shape = field.value.shape[1:] if isinstance(field, Each) else field.base.shape[int(field.own_base) :]
    base = _sent(name, shape, down)
    if isinstance(field, Rows) and base is field.base:
        return _Part(field.change(), base, field, shape)
    whole = field.dense()  # touched rows over another base: the client's own, which must not show
    return _Part(whole.clone() if base is None else whole - base, base, None, shape)


def _sent(name: str, shape: tuple[int, ...], down: Payload) -> Tensor | None:
    """What the server sent under a name, for all or for each, if it is of the shape of a client's value."""
    if name not in down:
        return None
    field = down.fields[name]
    value = field.dense()
    alike = value.shape == shape if isinstance(field, Shared) else value.shape[1:] == shape
    return value if alike else None
