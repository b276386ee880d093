"""One training round as a thing to time, and clocks that take turns."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Payload, State
from tacit.core.rounds import sample
from tacit.core.trained import Trained
from tacit.core.workers import cpu_seconds
from tacit.data.cohort import Federation
from tacit.data.sources import load
from tacit.data.splits import split
from tacit.methods.fedmf import FedMF

# PFedCLR's setting of the baseline, every value that matters spelled out: the method's defaults are tuned and move
FEDMF = FedMF(
    dim=16, lr=0.01, table_lr=0.0, epochs=10, batch=256, negatives=4, fraction=0.6, optimizer="adam", init=0.01
)


def federation(data: str, pooled: bool = False) -> Federation:
    """A data set under the protocol `strict`, seed 0: one client per user, or one for all of them."""
    divided = split(load(data), "strict", seed=0)
    return Federation.of_groups(divided, 1) if pooled else Federation.of_users(divided)


class Round:
    """A training round of a method, the first or a later one; called again it does the same work."""

    def __init__(self, method: Trained, federation: Federation, threads: int = 1, number: int = 1) -> None:
        self.method = method
        self.number = number
        self.ids = sample(federation.n_clients, method.fraction, federation.seed, round=1)
        self.interactions = int(federation.sizes[self.ids.numpy()].sum())
        self.server = method.init_server(federation)
        self.fleet = SimulatedFleet(method, federation, threads=threads, sums=True)
        self.cpu_clients: list[float] = []  # of each round: what its clients took, the server's work left out
        for earlier in range(1, number):
            self.server = self._run(earlier)

    def __call__(self) -> State:
        return self._run(self.number)

    def _run(self, number: int) -> State:
        return self.method.aggregate(self.server, self._uploads(number), Moment(number, 0))

    def _uploads(self, number: int) -> Iterator[Payload]:
        self.cpu_clients.append(0.0)
        uploads = self.fleet.train(self.server, self.ids, number, Traffic())
        while True:
            start = time.process_time()
            up = next(uploads, None)
            self.cpu_clients[-1] += time.process_time() - start
            if up is None:
                return
            yield up


@dataclass
class Times:
    """Seconds of each repeat."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def median_cpu(self) -> float:
        return median(self.cpu)

    @property
    def median_wall(self) -> float:
        return median(self.wall)


def in_turns(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """Time every work once in each of several passes, after a pass to warm up: noise then meets all alike."""
    times = {name: Times() for name in works}
    for number in range(repeats + 1):
        for name, work in works.items():
            cpu, wall = cpu_seconds(), time.perf_counter()
            work()
            if number:
                times[name].cpu.append(cpu_seconds() - cpu)
                times[name].wall.append(time.perf_counter() - wall)
    return times


def machine() -> dict[str, Any]:
    """Where and when this was measured."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),  # above zero before the start: someone else is at work
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
