"""What nodes answer, read and counted: anything but what was asked for is refused, with the reason."""

from dataclasses import dataclass
from typing import Any

from tacit.deploy.checks import Refused
from tacit.deploy.wire import BadPacket, Packet, unpack
from tacit.evaluation.metrics import KS, NAMES


@dataclass
class Count:
    """What happened between the server and its nodes since the last look."""

    refused: int = 0
    silent: int = 0
    failed: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    waited: float = 0.0  # seconds in which the server waited for nodes
    worked: float = 0.0  # of these, seconds in which the slowest node computed

    def since(self, before: "Count") -> dict[str, float]:
        """The difference, by name."""
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


class Failed(RuntimeError):
    """A node that says it could not do what it was asked."""


def of_kind(packet: Packet, kind: str) -> Packet:
    """The packet, if it is of that kind."""
    if packet.kind == "sorry":
        raise Failed(ascii(packet.head.get("error", "it does not say why"))[:80].strip("'"))
    if packet.kind != kind:
        raise Refused(f"it is {packet.kind[:40]!a}, not '{kind}'")
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
