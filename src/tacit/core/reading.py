"""Bytes from elsewhere become tensors here: whatever they say is bounded before it is used."""

import json
import math
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

HEADER = 1 << 20  # bytes of a message's header, at most
LARGEST = 1 << 40  # of an axis
DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8"}  # of fields, as safetensors names them


class Wire:
    """A message while it is read: its tensors, each taken once, and the bytes that may still be unfolded."""

    def __init__(self, blob: bytes, most: float) -> None:
        if len(blob) > most:
            raise ValueError(f"{len(blob):,} bytes are more than {most:,.0f}")
        length = int.from_bytes(blob[:8], "little")
        if not 0 < length <= min(HEADER, len(blob) - 8):
            raise ValueError("its header is not as long as it says")
        header = _json(blob[8 : 8 + length].decode())
        self.kinds = _object(_json(header.pop("__metadata__")["kinds"]))
        for name, tensor in header.items():
            if tensor["dtype"] not in DTYPES:
                raise ValueError(f"'{name}' is of type {tensor['dtype']}, which no field has")
            shape_of(tensor["shape"])
        self.tensors = load_tensors(blob)
        self.most = most
        self.name = ""  # of the field that is read
        self.ids = self.take("ids", torch.int64, dim=1)
        self.clients = len(self.ids)

    def at(self, name: str) -> "Wire":
        """The same, about to read a field."""
        self.name = name
        return self

    def take(self, part: str, *dtypes: torch.dtype, dim: int | None = None) -> Tensor:
        """A tensor of the field that is read, of one of these types and this many axes."""
        name = f"{part}.{self.name}" if self.name else part
        if name not in self.tensors:
            raise ValueError(f"there is no '{name}'")
        value = self.tensors.pop(name)
        if (dtypes and value.dtype not in dtypes) or dim not in (None, value.dim()):
            raise ValueError(f"'{name}' cannot be {value.dtype} of the shape {tuple(value.shape)}")
        return value

    def unfold(self, *shape: int, itemsize: int) -> None:
        """Take note of a tensor that will be made, and refuse what is too much; an empty axis excuses nothing."""
        self.most -= math.prod(max(length, 1) for length in shape) * itemsize
        if self.most < 0:
            raise ValueError(f"the shape {shape} is more than may be unfolded")


def whole(value: Any) -> int:
    """A number of things, and nothing that looks like one."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r} is not a number of things")
    return value


def shape_of(value: Any, least: int = 0) -> tuple[int, ...]:
    """A shape whose cells can be counted in 64 bits, each of its axes `least` long."""
    shape = tuple(whole(length) for length in value) if isinstance(value, list) and len(value) <= 8 else None
    if shape is None or min(shape, default=least) < least or math.prod(max(length, 1) for length in shape) > 2**60:
        raise ValueError(f"{value!r} is not a shape")
    return shape


def flag(value: Any) -> bool:
    """True or false, and nothing that counts as one."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("its kinds are not a table of names")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a number")
