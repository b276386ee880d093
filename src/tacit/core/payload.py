"""What travels between server and clients, with its exact bytes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from tacit.core.fields import KINDS, Change, Each, Field, Rows, Shared, State, rows_at, rows_of
from tacit.core.packed import Cut, Few, Product, Sparse
from tacit.core.reading import Wire

__all__ = [
    "BadPayload",
    "Change",
    "Cut",
    "Each",
    "Few",
    "Field",
    "Payload",
    "Product",
    "Rows",
    "Shared",
    "Sparse",
    "State",
    "decode",
    "rows_at",
    "rows_of",
    "stacked",
]

MOST = 1 << 34  # bytes of a message as it comes and unfolded, where nobody says less


class BadPayload(ValueError):
    """Bytes that are not a payload."""


@dataclass(frozen=True)
class Payload:
    """Named fields for the clients `ids`. The ids are addresses: they are not counted as content."""

    ids: Tensor  # (C,)
    fields: Mapping[str, Field]

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name].dense()

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def nbytes(self) -> int:
        """Content bytes that pass between the server and all these clients."""
        return sum(f.nbytes(len(self.ids)) for f in self.fields.values())

    def only(self, places: Tensor) -> "Payload":
        """The payload of some of its clients, by their places in `ids`."""
        return Payload(self.ids[places], {n: f.only(places, len(self.ids)) for n, f in self.fields.items()})

    def kinds(self) -> dict[str, str]:
        """The names of its fields and of their kinds, as they are on the wire."""
        return {n: f.kind for n, f in self.fields.items()}

    def encode(self) -> bytes:
        """The safetensors layout: a JSON header and raw tensors; nothing in it can execute."""
        tensors: State = {"ids": self.ids}
        kinds: dict[str, dict[str, Any]] = {}
        for name, field in self.fields.items():
            told, parts = field.encoded(len(self.ids))
            kinds[name] = {"kind": field.kind, **told}
            tensors |= {f"{part}.{name}": value for part, value in parts.items()}
        return save_tensors(tensors, metadata={"kinds": json.dumps(kinds)})


def stacked(parts: Sequence[Payload]) -> Payload:
    """One payload for the clients of all parts, in their order; touched rows are written out as whole tables."""
    counts = [len(part.ids) for part in parts]
    first, *others = parts
    fields = {n: f.joined([part.fields[n] for part in others], counts) for n, f in first.fields.items()}
    return Payload(torch.cat([part.ids for part in parts]), fields)


def decode(blob: bytes, most: float = MOST, expected: Mapping[str, str] | None = None) -> Payload:
    """Rebuild a payload; whatever is wrong with the bytes raises BadPayload, and nothing else ever does.

    Neither the bytes nor what they unfold to may be more than `most`. `expected` are the kinds by name, as
    `Payload.kinds` gives them: others are refused before a field is looked at.
    """
    try:
        wire = Wire(blob, most)
        if expected is not None and set(wire.kinds) != set(expected):
            raise ValueError(f"its fields are {_listed(wire.kinds)}, not {_listed(expected)}")
        for name, told in wire.kinds.items():
            if told["kind"] not in KINDS or (expected is not None and told["kind"] != expected[name]):
                raise ValueError(
                    f"'{name}' is {told['kind']}, not {expected[name] if expected else ' or '.join(KINDS)}"
                )
        fields = {name: KINDS[told["kind"]].decoded(told, wire.at(name)) for name, told in wire.kinds.items()}
        if wire.tensors:
            raise ValueError(f"it has {_listed(wire.tensors)} beside its fields")
        return Payload(wire.ids, fields)
    except Exception as error:  # bytes can be wrong in more ways than there are names for
        raise BadPayload(f"not a payload: {str(error)[:300]}") from error


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "none"
