"""What client and server of a secure sum say to each other, stage by stage, and how it becomes bytes."""

import struct
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_type_hints

Stage = Literal["AdvertiseKeys", "ShareKeys", "MaskedInput", "ConsistencyCheck", "Unmask"]
STAGES: tuple[Stage, ...] = ("AdvertiseKeys", "ShareKeys", "MaskedInput", "ConsistencyCheck", "Unmask")


class BadMessage(ValueError):
    """A message that the protocol does not allow at this place."""


@dataclass(frozen=True)
class Invitation:
    """Server to client: a sum begins."""

    session: bytes  # never the same twice
    clients: int  # invited: as many summands at most
    honest: int  # of them certainly in the sum and not colluding: noise may be divided by so many


@dataclass(frozen=True)
class Keys:
    """Client to server: public keys, and who says so."""

    client: int
    mask: bytes
    share: bytes
    proof: bytes = b""  # a certificate and a signature, where clients have keys of their own


@dataclass(frozen=True)
class Neighbours:
    """Server to client: the neighbours' public keys, and how many shares shall open a secret."""

    threshold: int
    mask: dict[int, bytes]
    share: dict[int, bytes]
    proof: dict[int, bytes]


@dataclass(frozen=True)
class Shares:
    """Client to server: for each neighbour two shares that the server cannot read."""

    client: int
    sealed: dict[int, bytes]


@dataclass(frozen=True)
class Delivery:
    """Server to client: what its neighbours sealed for it. These neighbours have a mask with it."""

    sealed: dict[int, bytes]


@dataclass(frozen=True)
class Masked:
    """Client to server: the vector under its masks, as little-endian words of `width` bytes."""

    client: int
    width: int
    words: bytes


@dataclass(frozen=True)
class Survivors:
    """Server to client: whose vectors are in the sum; of all clients, not of its neighbours alone."""

    clients: tuple[int, ...]


@dataclass(frozen=True)
class Confirmed:
    """Client to server: for each neighbour in the sum a tag over the survivors as this client was told them."""

    client: int
    tags: dict[int, bytes]


@dataclass(frozen=True)
class Question:
    """Server to client: what its neighbours confirmed to it. Now it may open the sum."""

    tags: dict[int, bytes]


@dataclass(frozen=True)
class Answer:
    """Client to server: shares of the seeds of those that stayed, and of the mask keys of those that dropped."""

    client: int
    seeds: dict[int, bytes]
    keys: dict[int, bytes]


Message = Invitation | Keys | Neighbours | Shares | Delivery | Masked | Survivors | Confirmed | Question | Answer
M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """Field after field: numbers and lengths in four bytes, a dictionary as ids and values of one length."""
    out = []
    for f in fields(message):
        value = getattr(message, f.name)
        if isinstance(value, int):
            out.append(struct.pack("<I", value))
        elif isinstance(value, bytes):
            out.append(struct.pack("<I", len(value)) + value)
        elif isinstance(value, tuple):
            out.append(struct.pack(f"<I{len(value)}I", len(value), *value))
        else:
            width = len(next(iter(value.values()), b""))
            out.append(struct.pack(f"<II{len(value)}I", len(value), width, *value) + b"".join(value.values()))
    return b"".join(out)


def decode(kind: type[M], blob: bytes) -> M:
    """A message of that kind from its bytes; anything malformed raises BadMessage."""
    place = 0

    def take(size: int) -> bytes:
        nonlocal place
        if size > len(blob) - place:
            raise BadMessage(f"a {kind.__name__} that ends too early")
        place += size
        return blob[place - size : place]

    def numbers(count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", take(4 * count))

    hints, values = get_type_hints(kind), {}
    for f in fields(kind):
        value: Any
        if hints[f.name] is int:
            (value,) = numbers(1)
        elif hints[f.name] is bytes:
            value = take(*numbers(1))
        elif hints[f.name] == tuple[int, ...]:
            value = numbers(*numbers(1))
        else:
            count, width = numbers(2)
            ids = numbers(count)
            value = {i: take(width) for i in ids}
            if len(value) != count:
                raise BadMessage(f"a {kind.__name__} that names a client twice")
        values[f.name] = value
    if place != len(blob):
        raise BadMessage(f"a {kind.__name__} with something behind it")
    return kind(**values)
