"""A published table as a file: what to run, what the paper printed, and what came out here."""

import math
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.config import RunConfig, build, config
from tacit.core.capabilities import refined
from tacit.data.protocols import Protocol
from tacit.data.sources import load
from tacit.errors import UserError, unknown
from tacit.evaluation import metrics
from tacit.methods import find
from tacit.runs.cells import FIGURES, Cell
from tacit.runs.compare import is_of, once
from tacit.runs.folder import RunFolder
from tacit.runs.published import located
from tacit.runs.run import Summary, Watch
from tacit.runs.summary import restored


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSet(_Part):
    """A column group of the table."""

    name: str
    min_interactions: int = 0
    options: dict[str, Any] = Field(default_factory=dict)  # of every run on it
    under: dict[Protocol, dict[str, Any]] = Field(default_factory=dict)  # options of those under one protocol
    settings: dict[str, Any] = Field(default_factory=dict)


class Sweep(_Part):
    """One setting, several values: a row each."""

    setting: str
    values: list[Any]


class Line(_Part):
    """A row of the table, or several by `sweep`."""

    label: str
    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    data: list[str] = Field(default_factory=list)  # only these data sets; all where empty
    on: dict[str, dict[str, Any]] = Field(default_factory=dict)  # settings for one data set
    sweep: Sweep | None = None
    # data set -> what papers print: {source = "…", "HR@10" = …}, figures by their names; of a sweep an entry a value
    published: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)


class Experiment(_Part):
    """One file of `experiments/`."""

    title: str
    source: str = ""  # where the published figures stand
    metrics: list[str]
    protocols: list[Protocol] = ["paper", "strict"]
    seeds: list[int] = [0]
    figures: list[str] = Field(default_factory=list)  # of FIGURES, beside the metrics
    shown: Literal["test", "valid"] = "test"  # valid: a search for settings, which has no business with the test set
    options: dict[str, Any] = Field(default_factory=dict)  # of every run
    settings: dict[str, Any] = Field(default_factory=dict)  # of every method that has them
    data: list[DataSet]
    run: list[Line]
    note: str = ""  # printed below the table


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    label: str
    data: str
    asked: RunConfig
    folder: str


Found = dict[tuple[str, str, str], Cell]  # (label, data set, protocol) -> what is finished


def read(path: Path) -> Experiment:
    """An experiment by its file or name, checked down to the settings of every method before anything runs."""
    path = located(path)
    try:
        made = Experiment(**tomllib.loads(path.read_text()))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: '{where}' is invalid: {first['msg'][:1].lower() + first['msg'][1:]}") from None
    made.metrics[:] = [str(metrics.find(metric)) for metric in made.metrics]
    for figure in made.figures:
        if figure not in FIGURES:
            raise unknown("figure", figure, FIGURES)
    names = [d.name for d in made.data]
    for line in made.run:
        for name in (*line.data, *line.on, *line.published):
            if name not in names:
                raise UserError(f"{path}: '{line.label}' mentions data set '{name}', which the file does not list")
        for figure, value in (pair for told in line.published.values() for one in told for pair in one.items()):
            number = isinstance(value, int | float) and math.isfinite(value) and value >= 0
            if figure != "source" and not number:
                raise UserError(f"{path}: '{line.label}': published {figure} = {value!r} is not a number from 0 on")
        if line.sweep is not None and not line.sweep.values:
            raise UserError(f"{path}: '{line.label}' sweeps {line.sweep.setting} over no values; name some")
    labels = [label for label, *_ in rows(made)]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"{path}: two rows are called '{label}'; give each a label, or a value, of its own")
    planned(made)
    return made


def others(experiment: Experiment, out: Path) -> list[str]:
    """Data sets of the runs below `out` that an experiment does not list."""
    found = set()
    for place in out.glob("*/run.json"):
        try:
            name = RunFolder.open(place.parent).run["config"]["data"]
        except (UserError, KeyError, TypeError):  # damaged
            continue
        if isinstance(name, str):
            found.add(name)
    return sorted(found - {place.name for place in experiment.data})


def altered(experiment: Experiment, data: Iterable[str] = (), rounds: int | None = None) -> Experiment:
    """An experiment with further data sets, of which nothing was published, and with other rounds."""
    listed = [place.name for place in experiment.data]
    places = [*experiment.data, *(DataSet(name=name) for name in dict.fromkeys(data) if name not in listed)]
    change: dict[str, Any] = {"data": places}
    if rounds is not None:
        change |= {"options": experiment.options | {"rounds": rounds}, "settings": _without(experiment.settings)}
        places = [
            place.model_copy(update={"under": {p: _without(told) for p, told in place.under.items()}})
            for place in places
        ]
        for name, parts in (("data", places), ("run", experiment.run)):
            change[name] = [
                part.model_copy(update={"options": _without(part.options), "settings": _without(part.settings)})
                for part in parts
            ]
    return experiment.model_copy(update=change)


def rows(experiment: Experiment) -> list[tuple[str, Line, dict[str, Any], int | None]]:
    """(label, line, settings, place in its sweep) of every row, sweeps written out."""
    out: list[tuple[str, Line, dict[str, Any], int | None]] = []
    for line in experiment.run:
        if line.sweep is None:
            out.append((line.label, line, line.settings, None))
            continue
        for place, value in enumerate(line.sweep.values):
            label = f"{line.label} {line.sweep.setting}={value}"
            out.append((label, line, line.settings | {line.sweep.setting: value}, place))
    return out


def planned(
    experiment: Experiment,
    only: Iterable[str] = (),
    data: Iterable[str] = (),
    protocols: Iterable[str] = (),
    seeds: Iterable[int] = (),
) -> list[Planned]:
    """Every run of a file, or those of some rows, data sets, protocols and seeds."""
    wanted, sets, ways, numbers = list(only), list(data), list(protocols), list(seeds)
    labels = [label for label, *_ in rows(experiment)]
    for name in wanted:
        if not any(_asked(label, [name]) for label in labels):
            raise unknown("row", name, labels)
    for name in sets:
        if name not in (known := [d.name for d in experiment.data]):
            raise unknown("data set of this experiment", name, known)
    outside = [metric for metric in experiment.metrics if ":" in metric]
    out = []
    for place in experiment.data:
        for label, line, settings, _ in rows(experiment):
            if (line.data and place.name not in line.data) or (sets and place.name not in sets):
                continue
            if wanted and not _asked(label, wanted):
                continue
            cls = refined(find(line.method), settings)
            fields = cls.__dataclass_fields__
            common = {k: v for k, v in (experiment.settings | place.settings).items() if k in fields}
            chosen = common | settings | line.on.get(place.name, {})
            build(cls, chosen)
            for protocol in cast(list[Protocol], ways) or experiment.protocols:
                for seed in numbers or experiment.seeds:
                    asked = config(
                        **{"metrics": outside}
                        | experiment.options
                        | place.options
                        | place.under.get(protocol, {})
                        | line.options,
                        method=line.method,
                        data=place.name,
                        min_interactions=place.min_interactions,
                        protocol=protocol,
                        seed=seed,
                        settings=chosen,
                    )
                    out.append(Planned(label, place.name, asked, f"{slug(label)}-{place.name}-{protocol}-s{seed}"))
    return out


def carry_out(
    runs: Iterable[Planned],
    out: Path,
    begin: Callable[[Planned], Watch | None] | None = None,
    keep: bool = False,
) -> None:
    """Run what is not finished yet below `out`; a stopped run goes on where it was.

    A finished run's checkpoints go unless they are to be kept: a table of private item tables fills a disk. A run that
    another experiment beside `out` has finished is taken from there: one run is a row of several tables.
    """
    for plan in runs:
        path = out / plan.folder
        if not keep and not path.exists():
            _take(plan.asked, out, path)
        if (path / "summary.json").exists() and not is_of(RunFolder.open(path), plan.asked):
            raise UserError(f"{path} holds a run with other options; remove it, or name another --out")
        once(plan.asked, path, begin(plan) if begin else None)
        if not keep:
            RunFolder.open(path).drop_checkpoints()


def _take(asked: RunConfig, out: Path, path: Path) -> None:
    """Copy a finished run of the same options and the same version from a folder beside `out`, if there is one."""
    for found in sorted(out.parent.glob(f"*/*-{asked.data}-{asked.protocol}-s{asked.seed}/summary.json")):
        try:
            folder = RunFolder.open(found.parent)
            same = folder.run["versions"]["tacit"] == version("tacit") and is_of(folder, asked) and folder.summary
        except (UserError, KeyError, TypeError):  # somebody else's, or damaged
            continue
        if same and folder.run["fingerprint"] == load(asked.data, asked.min_interactions).fingerprint():
            copy = path.with_name(f".{path.name}")
            shutil.rmtree(copy, ignore_errors=True)  # of a copy that was cut off
            shutil.copytree(found.parent, copy, ignore=shutil.ignore_patterns("checkpoints"))
            copy.rename(path)
            return


def collect(experiment: Experiment, out: Path) -> Found:
    """(label, data set, protocol) -> what is finished below `out`; runs with other options do not count."""
    found: dict[tuple[str, str, str], list[Summary]] = {}
    for plan in planned(experiment, seeds=_seeds(out) or experiment.seeds):
        key = (plan.label, plan.data, plan.asked.protocol)
        found.setdefault(key, [])
        path = out / plan.folder
        if not (path / "summary.json").exists():
            continue
        folder = RunFolder.open(path)
        if is_of(folder, plan.asked) and (summary := restored(folder.summary or {})):
            found[key].append(summary)
    return {key: Cell(tuple(runs)) for key, runs in found.items()}


def slug(label: str) -> str:
    """A label as part of a folder's name."""
    return re.sub(r"[^a-z0-9.=+]+", "-", label.lower()).strip("-")


def _without(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "rounds"}


def _asked(label: str, wanted: list[str]) -> bool:
    """Whether a row is meant by one of these words: its label, or the label of its sweep."""
    return any(label.lower() == w.lower() or label.lower().startswith(w.lower() + " ") for w in wanted)


def _seeds(out: Path) -> list[int]:
    """Every seed that has a run below `out`."""
    found = {int(m[1]) for p in out.glob("*") if (m := re.search(r"-s(\d+)$", p.name))}
    return sorted(found)
