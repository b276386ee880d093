"""What travels between server and clients, with its exact bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

State: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Shared:
    """One value that every client of the payload gets or sends alike."""

    value: Tensor

    def bytes_each(self) -> int:
        """Bytes one client receives or sends."""
        return self.value.nbytes

    def dense(self) -> Tensor:
        """The value itself."""
        return self.value


@dataclass(frozen=True)
class Each:
    """A value per client: leading axis C. `private` values are what a privacy mechanism has to cover."""

    value: Tensor
    private: bool = True

    def bytes_each(self) -> int:
        """Bytes one client receives or sends."""
        return self.value[0].nbytes

    def dense(self) -> Tensor:
        """The value itself."""
        return self.value


@dataclass(frozen=True)
class Rows:
    """A whole table per client that differs from `base` only in the rows a client touched.

    The simulation keeps the touched rows; on the wire goes the whole table, because naming the touched rows
    would tell the server what the client holds. Its bytes are therefore those of the table.
    """

    value: Tensor  # (C, L, …) new values of the touched rows
    rows: Tensor  # (C, L)
    real: Tensor  # (C, L)
    base: Tensor  # (M, …)
    private: bool = True

    def bytes_each(self) -> int:
        """Bytes one client receives or sends: the whole table."""
        return self.base.nbytes

    def change(self) -> Tensor:
        """(C, L, …) what the clients added to the base; zero on padding."""
        mask = self.real.view(*self.real.shape, *[1] * (self.value.dim() - 2))
        return (self.value - self.base[self.rows]) * mask

    def dense(self) -> Tensor:
        """(C, M, …) the tables written out."""
        out = self.base.expand(len(self.value), *self.base.shape).clone()
        client = torch.arange(len(out))[:, None].expand_as(self.rows)
        out[client[self.real], self.rows[self.real]] = self.value[self.real]
        return out


Field: TypeAlias = Shared | Each | Rows


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
        return len(self.ids) * sum(f.bytes_each() for f in self.fields.values())

    def encode(self) -> bytes:
        """The safetensors layout: a JSON header and raw tensors; nothing in it can execute."""
        # copies: safetensors refuses one memory under two names
        dense = {n: f.dense().clone(memory_format=torch.contiguous_format) for n, f in self.fields.items()}
        tensors = {"ids": self.ids} | {f"field.{n}": x for n, x in dense.items()}
        kinds = {
            n: "shared" if isinstance(f, Shared) else "private" if f.private else "each" for n, f in self.fields.items()
        }
        return save_tensors(tensors, metadata={"kinds": json.dumps(kinds)})


def decode(blob: bytes) -> Payload:
    """Rebuild a payload; anything malformed raises BadPayload."""
    try:
        tensors = load_tensors(blob)
        length = int.from_bytes(blob[:8], "little")
        kinds = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"]["kinds"])
        ids = tensors["ids"]
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise ValueError("ids are not a list of whole numbers")
        return Payload(ids, {n: _field(n, kind, tensors[f"field.{n}"], len(ids)) for n, kind in kinds.items()})
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadPayload(f"not a payload: {error}") from error


def _field(name: str, kind: str, value: Tensor, clients: int) -> Field:
    if kind == "shared":
        return Shared(value)
    if kind not in ("private", "each"):
        raise KeyError(kind)
    if value.shape[:1] != (clients,):
        raise ValueError(f"'{name}' of shape {tuple(value.shape)} is not a value for each of {clients} clients")
    return Each(value, private=kind == "private")
