"""A search for settings: trials are ordinary runs in one folder, and validation alone decides between them.

FOLDER/DATA/METHOD/   search.json     what is searched: the options of every run, and the range of every setting
                      journal.log     Optuna's own: the trials, what they drew and what came out
                      trial-NNN-sS/   a run without any test items, resumable like every run
                      final-NNN-sS/   the default and the best trial with test figures, where they were asked for
                      result.json     which trials these are
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.config import OUTSIDE, RunConfig, canonical, config
from tacit.core.closed_form import ClosedForm
from tacit.core.workers import cores
from tacit.data import kept
from tacit.data.frames import named
from tacit.data.interactions import Interactions
from tacit.errors import UserError
from tacit.runs import search_journal as journal
from tacit.runs.assembly import check, method_of
from tacit.runs.files import write_bytes, write_json
from tacit.runs.run import Watch
from tacit.runs.search_space import Dimension, Space, shared_ranges, space_of

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

FILE = "search.json"
Begin = Callable[[str], Watch | None]


@dataclass(frozen=True)
class Budget:
    """What a method may spend; 0: as much as it likes."""

    trials: int = 20
    cpu_seconds: float = 0.0  # of all its trials
    minutes: float = 0.0  # of all its trials, by the clock, on each worker
    trial_seconds: float = 0.0  # of the CPU, of one trial; what it has found until then counts


@dataclass(frozen=True)
class Trial:
    """What is known of a trial."""

    number: int
    state: str  # finished, pruned, out of time, repeated (as an earlier one), failed, running
    settings: dict[str, Any]
    value: float | None = None  # of the validation metric at the best round, mean over seeds
    rounds: int = 0
    best_round: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    reason: str = ""  # why it failed

    @property
    def counts(self) -> bool:
        """Whether it can be the best."""
        return self.value is not None and self.state in ("finished", "out of time")


@dataclass(frozen=True)
class Search:
    """A search of one method on one data set."""

    folder: Path
    asked: RunConfig  # with the settings that are fixed
    space: Space
    seeds: tuple[int, ...]

    def study(self) -> "Study":
        """Its journal, open; pruning begins after a fifth of the rounds."""
        return journal.opened(self.folder, max(5, self.rounds // 5))

    @property
    def rounds(self) -> int:
        """Of a trial, at most."""
        return method_of(self.asked).length(self.asked.rounds)

    @property
    def data(self) -> Interactions | None:
        """Its own data; None where they have a name."""
        return kept.unpacked(self.folder / kept.FILE) if (self.folder / kept.FILE).exists() else None

    def run(self, settings: Mapping[str, Any], seed: int, **changed: Any) -> RunConfig:
        """What a trial asks for."""
        return config(
            **self.asked.model_dump() | {"settings": self.asked.settings | dict(settings), "seed": seed} | changed
        )

    @property
    def trials(self) -> list[Trial]:
        """All so far, by number."""
        if not (self.folder / journal.JOURNAL).exists():
            return []
        return [trial_of(one) for one in self.study().get_trials(deepcopy=False)]

    @property
    def best(self) -> Trial | None:
        """The first of the best on validation."""
        return max((one for one in self.trials if one.counts), key=lambda one: (one.value, -one.number), default=None)

    def run_of(self, trial: Trial, seed: int | None = None) -> RunConfig:
        """What repeats a trial, with test figures; one that time ended has the rounds that it had, the default all."""
        limit = {"rounds": trial.rounds, "patience": 0} if trial.settings and trial.state == "out of time" else {}
        return self.run(trial.settings, self.seeds[0] if seed is None else seed, tested=True, **limit)


def search(
    methods: str | Iterable[str],
    data: Any = "ml-100k",
    trials: int = 20,
    *,
    settings: Mapping[str, Any] | None = None,
    ranges: Mapping[str, str] | None = None,
    seeds: Iterable[int] = (0,),
    cpu_seconds: float = 0.0,
    minutes: float = 0.0,
    trial_seconds: float = 0.0,
    workers: int = 1,
    out: str | Path | None = None,
    begin: Begin | None = None,
    **options: Any,
) -> list[Search]:
    """Search for the settings of each method by validation: `tacit.search("fedmf", trials=20)[0].best.settings`.

    `settings` are fixed, `ranges` are searched in place of those that a method declares: `{"lr": "0.01:1:log"}`. Each
    method has the same budget. What is in `out`, by default a folder below `runs`, is continued.
    """
    from tacit.runs.search_work import carry_out

    budget = Budget(trials, cpu_seconds, minutes, trial_seconds)
    name, own = named(data)
    where = Path(out or Path("runs") / "search")
    searches = prepared(methods, [name], where, settings or {}, ranges or {}, seeds, own, workers=workers, **options)
    for one in searches:
        settle(one, own)
        carry_out(one, budget, workers, begin)
    return searches


def prepared(
    methods: str | Iterable[str],
    data: Iterable[str],
    out: Path,
    settings: Mapping[str, Any],
    ranges: Mapping[str, str],
    seeds: Iterable[int],
    own: Interactions | None = None,
    workers: int = 1,
    **options: Any,
) -> list[Search]:
    """Every search of a call, checked before anything runs."""
    journal.optuna()
    names = list(dict.fromkeys(map(canonical, [methods] if isinstance(methods, str) else methods)))
    fixed, given = shared_ranges(names, settings, "--set"), shared_ranges(names, ranges, "--range")
    if not (numbers := tuple(seeds)):
        raise UserError("a search needs a seed; name one")
    options["threads"] = options.get("threads") or (max(1, cores() // workers) if workers > 1 else 0)
    made = []
    for place in dict.fromkeys(data):
        for name in names:
            space = space_of(name, fixed[name], given[name])
            asked = config(
                **options,
                method=name,
                data=place,
                settings=fixed[name],
                tested=False,
                seed=numbers[0],
            )
            if asked.protocol == "everything":
                raise UserError("protocol 'everything' withholds nothing to validate on; search under another one")
            if isinstance(method_of(asked), ClosedForm):  # its rounds are solutions, and none is left out
                asked = asked.model_copy(update={"patience": 0, "evaluate_every": 1})
            check(asked, own)
            made.append(Search(out / place / name.replace(":", "."), asked, space, numbers))
    return made


def settle(one: Search, own: Interactions | None = None) -> None:
    """Write down what is searched, or see that it is what an earlier call wrote down."""
    if (one.folder / FILE).exists():
        before = opened(one.folder)
        for what, there, asked in (
            ("options", _plain(before.asked), _plain(one.asked)),
            ("ranges", before.space, one.space),
            ("seeds", before.seeds, one.seeds),
            ("data", before.data and before.data.fingerprint(), own and own.fingerprint()),
        ):
            if there != asked:
                what += _apart(there, asked)
                raise UserError(f"{one.folder} holds a search with other {what}; name another --out, or remove it")
        return
    try:
        one.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {one.folder}: {error.strerror}; name another --out") from error
    if own is not None:
        write_bytes(one.folder / kept.FILE, kept.packed(own))
    space = [dataclasses.asdict(dimension) for dimension in one.space]
    write_json(one.folder / FILE, {"config": _plain(one.asked), "space": space, "seeds": one.seeds})


def _apart(there: object, asked: object) -> str:
    if not isinstance(there, dict) or not isinstance(asked, dict):
        return ""
    return f" ({', '.join(key for key in asked if there.get(key) != asked[key])})"


def _plain(asked: RunConfig) -> dict[str, Any]:
    """A configuration without what says where it runs."""
    return asked.model_dump(mode="json", exclude=set(OUTSIDE))


def opened(folder: Path, threads: int = 0) -> Search:
    """The search of a folder."""
    try:
        written = json.loads((folder / FILE).read_text(encoding="utf-8"))
        space = tuple(
            Dimension(**d | {"values": tuple(map(_tupled, d["values"])), "default": _tupled(d["default"])})
            for d in written["space"]
        )
        asked, seeds = written["config"] | {"threads": threads}, tuple(map(int, written["seeds"]))
    except (OSError, ValueError):
        raise UserError(f"{folder} is not the folder of a search: it has no {FILE}") from None
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / FILE} is damaged; restore it, or remove {folder}") from None
    return Search(folder, config(**asked), space, seeds)


def trial_of(one: "FrozenTrial") -> Trial:
    """A trial as the journal has it."""
    if found := one.user_attrs.get("found"):
        try:
            return Trial(**found)
        except TypeError:
            raise UserError(f"the journal's trial {one.number} is of another version; remove the search") from None
    return Trial(
        one.number, "running", one.user_attrs.get("settings", {}), max(one.intermediate_values.values(), default=None)
    )


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
