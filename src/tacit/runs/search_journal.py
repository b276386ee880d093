"""The journal of a search: one file that its workers append to, and locks that say who is at work on which trial.

Locks are the system's: it frees them when their holder dies, however it dies, and a half line it left is cut off.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tacit import rng
from tacit.errors import UserError
from tacit.runs.files import released, taken
from tacit.runs.search_space import START

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

    Claim = tuple[Trial, IO[bytes]]

JOURNAL, LOCK = "journal.log", ".lock"
STARTING = 6  # trials before a model of the earlier ones proposes: those to start from, then others with half of them


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for a lock, hold it, free it."""
    while (file := taken(path)) is None:
        time.sleep(0.01)
    try:
        yield
    finally:
        released(file)


def optuna() -> Any:
    """Optuna, quiet; without it a sentence."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError("a search needs Optuna: pip install 'tacit[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def opened(folder: Path, warmup: int) -> "Study":
    """The study of a folder; trials are not pruned in their first `warmup` rounds."""
    library = optuna()
    from optuna.storages.journal import JournalFileBackend

    path = folder / JOURNAL

    lock: Any = _Lock(path)
    lock.acquire()  # what a killed process left is mended before anything is read
    lock.release()
    pruner = library.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=warmup)
    study: Study
    try:
        storage = library.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        try:
            study = library.load_study(storage=storage, study_name="search", pruner=pruner)
        except KeyError:  # there is none yet
            study = library.create_study(storage=storage, study_name="search", direction="maximize", pruner=pruner)
        study.get_trials(deepcopy=False)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged line makes of Optuna's reader
        raise UserError(f"{path} is damaged ({type(error).__name__}); restore it, or remove {folder}") from None
    return study


def claimed(study: "Study", folder: Path, seed: int, first: list[dict[str, Any]], more: bool) -> "Claim | None":
    """A trial whose worker is gone, else a new one if there may be `more`; with its lock. It begins with `first`.

    Of the next few each keeps half of one of these, drawn at random: who wrote a method has found some of its settings.
    """
    from optuna.trial import Trial, TrialState

    trials = study.get_trials(deepcopy=False)
    for one in trials:
        if one.state == TrialState.RUNNING and (lock := taken(lock_of(folder, one.number))) is not None:
            if study._storage.get_trial(one._trial_id).state != TrialState.RUNNING:  # it ended in between
                released(lock)
                continue
            study.sampler = _sampler(seed, one.number)
            return Trial(study, one._trial_id), lock
    if not more:
        return None
    waiting = [one.number for one in trials if one.state == TrialState.WAITING]  # killed before it began
    number = min(waiting, default=len(trials))
    if number < STARTING and first and not waiting:
        point = first[number % len(first)]
        chance = rng.uniform(seed, "search/kept", number, np.arange(1), len(point))[0]
        kept = zip(point.items(), chance, strict=True)
        study.enqueue_trial({k: v for (k, v), x in kept if number < len(first) or k == START or x < 0.5})
    lock = taken(lock_of(folder, number))
    assert lock is not None
    study.sampler = _sampler(seed, number)
    return study.ask(), lock


def busy(study: "Study", folder: Path) -> bool:
    """Whether somebody is at work on a trial."""
    from optuna.trial import TrialState

    for one in study.get_trials(deepcopy=False):
        if one.state == TrialState.RUNNING:
            if (lock := taken(lock_of(folder, one.number))) is None:
                return True
            released(lock)
    return False


def _sampler(seed: int, number: int) -> Any:
    """What is drawn depends on the seed, the trial's number and the trials before it, not on who asks."""
    return optuna().samplers.TPESampler(
        seed=int(rng.bits(seed, "search", number, np.arange(1), 1)[0, 0]) & 0x7FFFFFFF,
        n_startup_trials=STARTING,
        multivariate=True,
        group=True,
        constant_liar=True,
    )


def lock_of(folder: Path, number: int) -> Path:
    """Held by the worker of a trial."""
    return folder / f".trial-{number:03d}"


class _Lock:
    """Of the journal. Optuna's own outlives a holder that is killed, and everybody else waits for half a minute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for it; what is half written then has no writer any more."""
        while (file := taken(self.path.with_name(f".{self.path.name}"))) is None:
            time.sleep(0.01)
        self.own = file
        _mend(self.path)
        return True

    def release(self) -> None:
        """Free it."""
        if self.own is not None:
            released(self.own)


def _mend(path: Path) -> None:
    """Cut off a line that a killed process left half written."""
    if not path.exists() or not (size := path.stat().st_size):
        return
    with path.open("rb+") as file:
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read(size).rfind(b"\n") + 1)
