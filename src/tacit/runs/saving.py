"""When a simulated run is saved: its private state can be gigabytes, and rounds can be shorter than writing it.

A run is deterministic, so that what was not saved comes out the same when it is trained again: after a kill, and at
the end where the best round has no checkpoint of its own.
"""

import time
from collections.abc import Callable

from tacit.core.payload import State
from tacit.core.rounds import Progress
from tacit.runs.folder import RunFolder

SHARE = 20  # training takes so many times as long as saving, at least


class Saver:
    """Saves the first round, then better ones and every so many, whenever enough time has gone by."""

    def __init__(self, folder: RunFolder, every: int, clients: State, spent: Callable[[], dict[str, float]]) -> None:
        self.folder = folder
        self.every = every
        self.clients = clients
        self.spent = spent
        self.round = folder.last_round
        self.cost = 0.0  # seconds the last save took
        self._ended = time.perf_counter()

    def offer(self, progress: Progress, improved: bool) -> None:
        """A round is finished: save it if it is due and the time is there."""
        due = improved or progress.round % self.every == 0 or not self.round
        if due and time.perf_counter() - self._ended >= SHARE * self.cost:
            self.save(progress)

    def save(self, progress: Progress) -> None:
        """Save a finished round, unless that is done."""
        if progress.round != self.round:
            began = time.perf_counter()
            self.folder.save(progress, self.clients, self.spent())
            self.round = progress.round
            self._ended = time.perf_counter()
            self.cost = self._ended - began
