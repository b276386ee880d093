"""What a node answers is read here: anything but what was asked for is refused, with the reason."""

from typing import Any

from tacit.deploy.checks import Refused
from tacit.deploy.wire import BadPacket, Packet, unpack
from tacit.evaluation.metrics import KS, NAMES


class Failed(RuntimeError):
    """A node that says it could not do what it was asked."""


def of_kind(packet: Packet, kind: str) -> Packet:
    """The packet, if it is of that kind."""
    if packet.kind == "sorry":
        raise Failed(str(packet.head.get("error", "it does not say why"))[:80])
    if packet.kind != kind:
        raise Refused(f"it is '{packet.kind[:40]}', not '{kind}'")
    return packet


def between(value: Any, least: float, most: float) -> float:
    """The number, if it is one within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Refused(f"{str(value)[:40]} is not between {least} and {most}")
    return value


def metrics_of(found: Any) -> dict[str, float]:
    """Every metric, each between 0 and 1."""
    names = [f"{name}@{k}" for name in NAMES for k in KS]
    if not isinstance(found, dict) or set(found) != set(names):
        raise Refused("its metrics are not those of tacit")
    return {name: between(found[name], 0, 1) for name in names}


def seconds_of(reply: bytes) -> float:
    """How long a node says it computed; 0 where it says nothing of use."""
    try:
        return between(unpack(reply).head.get("seconds", 0.0), 0, 1e9)
    except (BadPacket, Refused):
        return 0.0
