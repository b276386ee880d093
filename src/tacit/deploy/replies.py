"""What nodes answer, read and counted: anything but what was asked for is refused, with the reason."""

from dataclasses import dataclass
from typing import Any

from tacit.deploy.checks import Refused
from tacit.deploy.wire import BadPacket, Packet, unpack
from tacit.evaluation.metrics import Metrics, by_hits, combined


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


def plain(text: str) -> str:
    """What came from elsewhere, for a log or a terminal: one line, and nothing that moves a cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


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


def metrics_of(found: Any, select: str) -> Metrics:
    """What this server knows of a node's metrics, each between 0 and 1; other versions may know more or fewer."""
    given = found if isinstance(found, dict) else {}
    known = {name: between(given[name], 0, 1) for name in map(str, by_hits()) if name in given}
    if select not in combined([(1, known)]):
        raise Refused(f"its metrics are without {select}, which selects the reported round")
    return known


def seconds_of(reply: bytes) -> float:
    """How long a node says it computed; 0 where it says nothing of use."""
    try:
        return between(unpack(reply).head.get("seconds", 0.0), 0, 1e9)
    except (BadPacket, Refused):
        return 0.0
