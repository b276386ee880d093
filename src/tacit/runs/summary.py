"""The result of a run, in simulation and over nodes, and what it took."""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tacit.config import RunConfig
from tacit.core.method import Method
from tacit.core.payload import State
from tacit.core.rounds import Progress
from tacit.core.workers import cpu_seconds, workers_memory
from tacit.evaluation.metrics import Metrics
from tacit.evaluation.protocol import Result
from tacit.runs.assembly import Protecting, stated
from tacit.runs.compact import compacted


@dataclass(frozen=True)
class Summary:
    """The result of a run: summary.json."""

    method: str
    data: str
    protocol: str
    seed: int
    rounds: int
    best_round: int
    valid: Metrics
    test: Metrics
    test_sampled99: Metrics | None
    groups: dict[str, Metrics]  # of `test`, by users' activity and, where the method has any, by its groups of clients
    bytes_up: int
    bytes_down: int
    bytes_to_rank: float  # what a client downloads before it can rank, on average
    clients: int
    client_rounds: int  # trainings of a client, over all rounds
    seconds: float
    cpu_seconds: float
    peak_memory_mb: float
    epsilon: float | None
    scored_with: str
    users_evaluated: int
    users_too_short: int
    duplicates: int
    settings: dict[str, Any] = field(default_factory=dict)
    folder: str = ""
    group_bytes: dict[str, dict[str, int]] = field(default_factory=dict)  # clients; a client's bytes a round, by group
    ldp: dict[str, Any] | None = None  # the noise on uploads, and `epsilon_round`, what a round costs a client
    dp: dict[str, Any] | None = None  # the noise on secure sums, likewise
    bytes_kept: float | None = None  # what a client keeps for its next training, on average; None: not known here
    bytes_server: float | None = None  # the server's state
    gap: Metrics = field(default_factory=dict)  # of `groups` by activity, the largest of each metric minus the smallest


def restored(written: dict[str, Any]) -> Summary | None:
    """A summary as some version wrote it; None where it lacks what this one needs."""
    known = {one.name for one in fields(Summary)}
    try:
        return Summary(**{name: value for name, value in written.items() if name in known})
    except TypeError:
        return None


def summarise(
    asked: RunConfig,
    method: Method,
    folder: Path,
    progress: Progress,
    best: State,
    test: Result,
    mechanism: Protecting | None,
    spent: dict[str, float],
    beside: tuple[int, int] = (0, 0),
    **measured: Any,
) -> Summary:
    """The result at the best round; `beside` are the bytes (up, down) of the last test where they are counted."""
    history = progress.history
    chosen = next((r for r in history if r.round == progress.best_round), history[-1])
    return Summary(
        method=asked.method,
        data=asked.data,
        protocol=asked.protocol,
        seed=asked.seed,
        rounds=progress.round,
        best_round=chosen.round,
        valid=chosen.valid or {},
        test=test.main,
        test_sampled99=test.sampled99,
        groups=test.groups,
        bytes_up=sum(r.bytes_up for r in history) + beside[0],
        bytes_down=sum(r.bytes_down for r in history) + beside[1],
        client_rounds=sum(r.clients for r in history),
        seconds=spent["seconds"],
        cpu_seconds=spent["cpu_seconds"],
        peak_memory_mb=spent["peak_memory_mb"],
        epsilon=history[-1].epsilon,
        scored_with=method.scored_with,
        users_evaluated=test.users,
        settings=dataclasses.asdict(method),
        folder=str(folder),
        bytes_server=sum(leaf.nbytes for leaf in compacted(best).values()),
        **stated(mechanism, cost=True),
        **measured,
    )


def clock(before: dict[str, float]) -> Callable[[], dict[str, float]]:
    """Started now: what a run has spent, with what it had spent before."""
    began, cpu = time.perf_counter(), cpu_seconds()

    def spent() -> dict[str, float]:
        return {
            "seconds": before.get("seconds", 0.0) + time.perf_counter() - began,
            "cpu_seconds": before.get("cpu_seconds", 0.0) + cpu_seconds() - cpu,
            "peak_memory_mb": max(before.get("peak_memory_mb", 0.0), peak_memory_mb() + workers_memory() / 2**20),
        }

    return spent


def peak_memory_mb() -> float:
    """The most memory this process has held. Linux hands ru_maxrss down from the parent, so its own figure is read."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        try:
            import resource
        except ImportError:  # Windows
            return math.nan
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
