"""When a simulated run is saved: its private state can be gigabytes, and rounds can be shorter than writing it.

A run is deterministic, so that what was not saved comes out the same when it is trained again: after a kill, and at
the end where the best round has no checkpoint of its own.
"""

import time
from collections.abc import Callable

from tacit.core.payload import State
from tacit.core.rounds import Progress
from tacit.runs.folder import RunFolder

CPU, WALL = 20, 5  # a run takes this many times as much as its saves: of the processor, and of time with a slow disk
PAUSE = 60.0  # seconds after which a round that is no better is saved, too


class Saver:
    """Saves better rounds while saving stays within its share, others when nothing was saved for a while."""

    def __init__(
        self, folder: RunFolder, every: int, clients: Callable[[], State], spent: Callable[[], dict[str, float]]
    ) -> None:
        self.folder = folder
        self.every = every
        self.clients = clients
        self.spent = spent
        self.round = folder.last_round
        self.began = self.ended = _now()
        self.taken = self.last = (0.0, 0.0)  # by all saves, by the last

    def offer(self, progress: Progress, improved: bool) -> None:
        """A round is finished: save it if it is due and can be afforded. The first is: a better one builds on it."""
        due = improved or (progress.round % self.every == 0 and _since(self.ended)[1] >= PAUSE)
        # with this one and that at the end
        cpu, wall = (all_so_far + 2 * one for all_so_far, one in zip(self.taken, self.last, strict=True))
        affordable = cpu * CPU <= _since(self.began)[0] and wall * WALL <= _since(self.began)[1]
        if not self.round or (due and affordable):
            self.save(progress)

    def save(self, progress: Progress) -> None:
        """Save a finished round, unless that is done."""
        if progress.round != self.round:
            before = _now()
            self.folder.save(progress, self.clients(), self.spent())
            self.round = progress.round
            self.ended = _now()
            self.last = _since(before)
            self.taken = self.taken[0] + self.last[0], self.taken[1] + self.last[1]


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _since(then: tuple[float, float]) -> tuple[float, float]:
    """(CPU seconds, seconds) since then."""
    cpu, wall = _now()
    return cpu - then[0], wall - then[1]
