"""What is measured of one row of a published table: figures over seeds, and what they cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from tacit.runs.run import Summary

Kind = Literal["valid", "test", "sampled"]
Figure = tuple[float, float | None]  # mean and, over several seeds, standard deviation

# Megabytes are per client and round, seconds per round.
FIGURES: dict[str, tuple[str, Callable[[Summary], float | None]]] = {
    "up": ("MB up", lambda s: s.bytes_up / s.client_rounds / 1e6),
    "down": ("MB down", lambda s: s.bytes_down / s.client_rounds / 1e6),
    "cpu": ("CPU s", lambda s: s.cpu_seconds / s.rounds),
    "memory": ("peak MB", lambda s: s.peak_memory_mb),
    # what a client has while it trains, and the server between rounds
    "client": ("client MiB", lambda s: _mebibytes(s.bytes_kept, s.bytes_down / s.client_rounds)),
    "server": ("server MiB", lambda s: _mebibytes(s.bytes_server)),
    "epsilon": ("ε", lambda s: s.epsilon),
    "small": ("NDCG@20, small", lambda s: s.groups.get("small", {}).get("NDCG@20")),
    "medium": ("NDCG@20, medium", lambda s: s.groups.get("medium", {}).get("NDCG@20")),
    "large": ("NDCG@20, large", lambda s: s.groups.get("large", {}).get("NDCG@20")),
    "bytes-small": ("kB, small", lambda s: _kilobytes(s, "small")),
    "bytes-medium": ("kB, medium", lambda s: _kilobytes(s, "medium")),
    "bytes-large": ("kB, large", lambda s: _kilobytes(s, "large")),
}


def _kilobytes(summary: Summary, group: str) -> float | None:
    """What a client of a group sends in a round."""
    return summary.group_bytes[group]["up"] / 1e3 if group in summary.group_bytes else None


def _mebibytes(value: float | None, beside: float = 0) -> float | None:
    return None if value is None else (value + beside) / 2**20


@dataclass(frozen=True)
class Cell:
    """What is known of a row on a data set under a protocol: the finished runs, one a seed."""

    runs: tuple[Summary, ...]

    def figure(self, metric: str, kind: Kind = "test") -> Figure | None:
        """Mean and, over several seeds, standard deviation; None where nothing is finished."""
        chosen = [{"valid": s.valid, "test": s.test, "sampled": s.test_sampled99}[kind] for s in self.runs]
        return _spread([c[metric] for c in chosen if c is not None and metric in c])

    def cost(self, name: str) -> Figure | None:
        """The same for one of FIGURES."""
        return _spread([value for s in self.runs if (value := FIGURES[name][1](s)) is not None])


def _spread(values: list[float]) -> Figure | None:
    if not values:
        return None
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return mean(values), stdev(values) if finite else None
