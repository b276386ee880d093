"""What server and nodes say to each other: a kind, a few named values, and the bytes of a payload.

    hello      version, job          ->  here       version, how many clients and users, how large
    train      round, place, model   ->  trained    the uploads, stacked, or where it says `fold` one for all of them
    evaluate   phase, place, model   ->  evaluated  mean metrics over the node's users
                                         sorry      the name of what went wrong, never its text

and in a secure sum, with the messages of `privacy.secure_sum` as bodies, around `train`, whose answer is then a vector
under masks:

    invite     a session             ->  keys       public keys
    introduce  the others' keys      ->  shared     shares of its secrets, sealed
    confirm    who is in the sum     ->  confirmed  the same, to each neighbour
    reveal     what they confirmed   ->  revealed   a share of each neighbour's mask

Nothing in it can execute: JSON and the safetensors layout.
"""

import json
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"tacit1"
VERSION = 4  # of what is said here; a node and a server of different versions do not run together
MOST_HEAD = 16 << 20  # bytes
ANSWERS = {
    "invite": "keys",
    "introduce": "shared",
    "train": "trained",
    "confirm": "confirmed",
    "reveal": "revealed",
}


class BadPacket(ValueError):
    """Bytes that are not a packet."""


@dataclass(frozen=True)
class Packet:
    """One message, whatever carries it."""

    kind: str
    head: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def pack(self) -> bytes:
        """As bytes."""
        head = json.dumps([self.kind, self.head]).encode()
        return MAGIC + len(head).to_bytes(4, "little") + head + self.body


def unpack(blob: bytes) -> Packet:
    """Back from bytes; anything else raises BadPacket."""
    length = int.from_bytes(blob[len(MAGIC) : len(MAGIC) + 4], "little")
    start = len(MAGIC) + 4
    if blob[: len(MAGIC)] != MAGIC or length > MOST_HEAD or len(blob) < start + length:
        raise BadPacket("not a packet, or cut short")
    try:
        found = json.loads(blob[start : start + length])
    except (ValueError, RecursionError) as error:
        raise BadPacket("its head is not JSON") from error
    if not isinstance(found, list) or [type(part) for part in found] != [str, dict]:
        raise BadPacket("its head is not a kind with named values")
    kind, head = found
    return Packet(kind, head, blob[start + length :])


def version_of(packet: Packet) -> int:
    """The version that a greeting speaks; the first edition did not say."""
    said = packet.head.get("version", 1)
    if type(said) is not int:
        raise BadPacket("its version is not a number")
    return said
