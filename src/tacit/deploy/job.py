"""What a server publishes before the first round: method, settings, protocol, seed and the catalogue of items."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tacit.config import build
from tacit.core.method import Method
from tacit.data.imported import read_items
from tacit.errors import UserError
from tacit.methods import find
from tacit.privacy.mechanisms import Mechanism, Unclipped, named

NOISE = 1e-12, 1e12  # scales and bounds of noise that a node works with: beyond them rounding matters

Catalogue: TypeAlias = tuple[tuple[str, ...], tuple[str, ...] | None]


@dataclass(frozen=True)
class Job:
    """One run, as every node must see it. Items are numbered by their place in the catalogue."""

    method: str
    settings: dict[str, Any]
    protocol: str
    seed: int
    items: tuple[str, ...]
    titles: tuple[str, ...] | None = None
    together: bool = False  # a client is a whole node rather than each of its users
    ldp: dict[str, Any] | None = None  # noise on every upload, as `Mechanism.stated` gives it
    secure: bool = False  # the server sees only the sum of all nodes' uploads
    run: str = ""  # tells runs of equal settings apart
    id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        written = json.dumps({f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "id"})
        object.__setattr__(self, "id", hashlib.sha256(written.encode()).hexdigest()[:24])

    def dump(self) -> bytes:
        """As bytes."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def load(cls, blob: bytes) -> "Job":
        """Back from bytes; ValueError where they are none."""
        values = json.loads(blob)
        if not isinstance(values, dict) or {f.name for f in dataclasses.fields(cls)} != set(values):
            raise ValueError("not a job")
        told = values.pop("id")
        for name in ("items", "titles"):
            values[name] = None if values[name] is None else tuple(str(x) for x in values[name])
        job = cls(**values)
        if job.id != told:
            raise ValueError("a job that is not what its id says")
        return job

    def build(self, allow: tuple[str, ...] = ()) -> Method:
        """The method. A node builds only those of this package and what its owner allows by name."""
        _check_allowed(self.method, "methods", allow)
        method = build(find(self.method), self.settings)
        if method.pooled:
            raise UserError(f"{self.method} needs all data in one place; it cannot run on nodes")
        return method

    def mechanism(self, allow: tuple[str, ...] | None = None) -> Mechanism | None:
        """What a node does to its uploads. The server knows the seed, so the noise is never drawn from it.

        A node makes those of this package alone and what its owner allows by name; None: the server's own job.
        """
        if self.ldp is None:
            return None
        if allow is not None:
            _check_allowed(str(self.ldp["kind"]), "mechanisms", allow)
        made = named(**self.ldp | {"source": "system"})
        told = [made.scale] if isinstance(made, Unclipped) else [made.scale, made.clip]
        if not all(isinstance(value, int | float) and NOISE[0] <= value <= NOISE[1] for value in told):
            raise UserError(
                f"the run's noise has the scale {made.scale!r} and the bound {made.clip!r}, and both must be from "
                f"{NOISE[0]:g} to {NOISE[1]:g}; the server needs another --ldp"
            )
        return made


def _check_allowed(name: str, kinds: str, allow: tuple[str, ...]) -> None:
    if ":" in name and name not in allow:
        raise UserError(
            f"the server asks for '{name}', which is not one of tacit's {kinds}; allow it with --allow {name}"
        )


def catalogue(path: Path) -> Catalogue:
    """Item ids and, where the file has them, titles: what `items` and `titles` of a job are."""
    return read_items(path)
