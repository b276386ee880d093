"""What a server knows of each node: whether it is there, what it sent, why it was refused, and how long to wait for it.

Silence costs the silent one alone. A node that has not answered is left alone for a while, twice as long each time, and
is waited for no longer than the others take; each time it gets more, so that one that is only slow is heard in the end.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SHORTEST = 10.0  # seconds that a node which was silent may take
SLOWER = 3.0  # times the slowest of the others, if that is longer
LONGEST = 3600.0  # seconds that a silent node is left alone at most


@dataclass
class Standing:
    """One node, since the run began."""

    users: int = 0
    member: bool = False  # its clients are in the run
    up: bool = False
    last_seen: float = 0.0  # seconds since 1970; 0: never
    bytes_up: int = 0
    bytes_down: int = 0
    refused: int = 0
    silent: int = 0
    failed: int = 0
    reason: str = ""  # the last refusal, or why the node waits
    strikes: int = 0  # times in a row that it did not answer
    took: float = 0.0  # seconds of its last answer

    def __post_init__(self) -> None:
        self.node = -1  # of the link
        self.rests = 0.0  # until then it is not asked, on the monotonic clock


@dataclass
class Board:
    """All nodes, and where the run stands. One thread runs the rounds, another shows the board."""

    nodes: dict[str, Standing] = field(default_factory=dict)
    state: str = "waiting"  # for nodes; or training, finished, stopped
    method: str = ""
    round: int = 0
    rounds: int = 0
    quorum: bool = False  # whether enough nodes are there for a round
    needs: str = ""  # what a quorum is
    rejected: dict[str, int] = field(default_factory=dict)  # addresses without a key that is known -> requests
    sums: dict[str, int] = field(default_factory=dict)  # the last secure sum: its round, nodes asked and survived
    certificate_days: int | None = None  # until the first of the certificates ends

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def of(self, name: str) -> Standing:
        """The standing of a node, a new one where there is none."""
        with self._lock:
            return self.nodes.setdefault(name, Standing())

    def look(self, there: Mapping[int, str | None]) -> None:
        """Note who is there now."""
        for node, name in there.items():
            if name is not None:
                self.of(name).node = node
        with self._lock:
            for one in self.nodes.values():
                one.up = one.node in there
                if one.up:
                    one.last_seen = time.time()

    def rename(self, before: str, name: str) -> None:
        """A node has said who it is: what it was sent until then is its own."""
        with self._lock:
            old = self.nodes.pop(before, None)
        if old is not None:
            one = self.of(name)
            one.bytes_up, one.bytes_down = one.bytes_up + old.bytes_up, one.bytes_down + old.bytes_down

    def answered(self, name: str, seconds: float) -> None:
        """A node did what it was asked."""
        one = self.of(name)
        one.strikes, one.rests, one.took, one.last_seen = 0, 0.0, seconds, time.time()

    def was_silent(self, name: str, cost: float, there: bool) -> None:
        """A node did not answer and was waited for in vain; one whose process has ended may come back once at once."""
        one = self.of(name)
        one.silent += 1
        one.strikes += 1
        times = 2.0 ** min(one.strikes, 30)
        one.rests = time.monotonic() + min(LONGEST, cost * (times if there else times / 2 - 1))

    def rests(self, name: str) -> bool:
        """Whether a node is to be left alone now."""
        return name in self.nodes and time.monotonic() < self.nodes[name].rests

    def pardon(self) -> None:
        """Without those that rest nothing can go on: ask them all."""
        for one in list(self.nodes.values()):
            one.rests = 0.0

    def patience(self, name: str, deadline: float) -> float:
        """Seconds to wait for a node."""
        if name not in self.nodes or not (strikes := self.nodes[name].strikes):
            return deadline
        slowest = max((one.took for other, one in list(self.nodes.items()) if other != name), default=0.0)
        return min(deadline, max(SHORTEST, SLOWER * slowest) * 2.0 ** min(strikes - 1, 30))

    def shown(self) -> dict[str, Any]:
        """As a file or a browser shows it: no secrets, and nothing that a node did not send in the open."""
        with self._lock:
            nodes = {name: asdict(one) for name, one in self.nodes.items()}
        plain = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        return {"written": time.time()} | plain | {"nodes": nodes, "rejected": dict(self.rejected)}

    def take(self, before: Mapping[str, Any]) -> None:
        """Go on counting where an earlier server of this run stopped."""
        known = set(Standing.__dataclass_fields__) - {"up", "strikes", "took"}
        found = before.get("nodes")
        for name, values in found.items() if isinstance(found, dict) else ():
            if isinstance(values, dict):
                self.nodes[name] = Standing(**{key: value for key, value in values.items() if key in known})
