"""A published table as a file: what to run, what the paper printed, and what came out here."""

import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.config import RunConfig, build, config
from tacit.core.capabilities import refined
from tacit.data.protocols import Protocol
from tacit.errors import UserError, unknown
from tacit.evaluation import metrics
from tacit.methods import find
from tacit.runs.compare import is_of, once
from tacit.runs.folder import RunFolder
from tacit.runs.published import located
from tacit.runs.run import Summary, Watch
from tacit.runs.summary import restored

Kind = Literal["valid", "test", "sampled"]
NOTHING = "nothing is finished yet"

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


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSet(_Part):
    """A column group of the table."""

    name: str
    min_interactions: int = 0
    options: dict[str, Any] = Field(default_factory=dict)  # of every run on it
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


@dataclass(frozen=True)
class Cell:
    """What is known of a row on a data set under a protocol: the finished runs, one a seed."""

    runs: tuple[Summary, ...]

    def figure(self, metric: str, kind: Kind = "test") -> tuple[float, float | None] | None:
        """Mean and, over several seeds, standard deviation; None where nothing is finished."""
        chosen = [{"valid": s.valid, "test": s.test, "sampled": s.test_sampled99}[kind] for s in self.runs]
        return _spread([c[metric] for c in chosen if c is not None and metric in c])

    def cost(self, name: str) -> tuple[float, float | None] | None:
        """The same for one of FIGURES."""
        return _spread([value for s in self.runs if (value := FIGURES[name][1](s)) is not None])


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
    planned(made)
    return made


def altered(experiment: Experiment, data: Iterable[str] = (), rounds: int | None = None) -> Experiment:
    """An experiment with further data sets, of which nothing was published, and with other rounds."""
    listed = [place.name for place in experiment.data]
    places = [*experiment.data, *(DataSet(name=name) for name in dict.fromkeys(data) if name not in listed)]
    change: dict[str, Any] = {"data": places}
    if rounds is not None:
        change |= {"options": experiment.options | {"rounds": rounds}, "settings": _without(experiment.settings)}
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
            for protocol in ways or experiment.protocols:
                for seed in numbers or experiment.seeds:
                    asked = config(
                        **{"metrics": outside} | experiment.options | place.options | line.options,
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

    A finished run's checkpoints go unless they are to be kept: a table of private item tables fills a disk.
    """
    for plan in runs:
        path = out / plan.folder
        if (path / "summary.json").exists() and not is_of(RunFolder.open(path), plan.asked):
            raise UserError(f"{path} holds a run with other options; remove it, or name another --out")
        once(plan.asked, path, begin(plan) if begin else None)
        if not keep:
            RunFolder.open(path).drop_checkpoints()


def collect(experiment: Experiment, out: Path) -> dict[tuple[str, str, str], Cell]:
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


def printed(line: Line, data: str, place: int | None, metric: str) -> list[tuple[str, float]]:
    """(source, figure) of a metric as papers print it."""
    entries = line.published.get(data, [])
    if place is not None:
        entries = entries[place : place + 1]
    return [
        (str(e.get("source", "")), float(figure))
        for e in entries
        for name, figure in e.items()
        if name.lower() == metric.lower()
    ]


def markdown(experiment: Experiment, found: dict[tuple[str, str, str], Cell]) -> str:
    """The tables of an experiment, one a data set, with the number of seeds behind every row."""
    out = [f"# {experiment.title}", ""]
    if experiment.source:
        out += [f"Published: {experiment.source}.", ""]
    for place in experiment.data:
        filtered = f", users with at least {place.min_interactions}" if place.min_interactions else ""
        lines = _one_table(experiment, place.name, found) if begun(place.name, found) else [NOTHING]
        out += [f"## {place.name}{filtered}", "", *lines, ""]
    if experiment.note:
        out += [experiment.note, ""]
    return "\n".join(out)


def begun(data: str, found: dict[tuple[str, str, str], Cell]) -> bool:
    """Whether a run on a data set is finished."""
    return any(cell.runs for (_, where, _), cell in found.items() if where == data)


def headings(experiment: Experiment) -> list[str]:
    """The columns of a table."""
    out = ["method", "published"]
    for protocol in experiment.protocols:
        out += _kinds(experiment, protocol)
    told = {name for line in experiment.run for entries in line.published.values() for e in entries for name in e}
    out += [FIGURES[f][0] + (" (published)" if f in told else "") for f in experiment.figures]
    return [*out, "seeds"]


def table_rows(experiment: Experiment, data: str, found: dict[tuple[str, str, str], Cell]) -> list[list[list[str]]]:
    """The cells below the headings, each a list of texts: one a metric, or one for all."""
    out = []
    for label, line, _, place in rows(experiment):
        if line.data and data not in line.data:
            continue
        metrics = experiment.metrics
        cells = [[label], [_published(printed(line, data, place, m)) for m in metrics]]
        counts = []
        for protocol in experiment.protocols:
            cell = found.get((label, data, protocol), Cell(()))
            counts.append(len(cell.runs))
            kinds = _kinds(experiment, protocol)
            cells += [[_text(cell.figure(m, kind)) for m in metrics] for kind in kinds.values()]
        first = found.get((label, data, experiment.protocols[0]), Cell(()))
        cells += [[_cost(first.cost(f), printed(line, data, place, f))] for f in experiment.figures]
        cells.append([str(counts[0]) if len(set(counts)) == 1 else "/".join(map(str, counts))])
        out.append(cells)
    return out


def _kinds(experiment: Experiment, protocol: Protocol) -> dict[str, Kind]:
    """Heading -> what is shown of a protocol's runs."""
    if experiment.shown == "valid":
        return {f"{protocol}, validation": "valid"}
    if protocol == "strict":
        return {"strict (1 of 100)": "sampled", "strict (all items)": "test"}
    return {f"{protocol} (1 of 100)" if protocol in ("paper", "symmetric") else protocol: "test"}


def slug(label: str) -> str:
    """A label as part of a folder's name."""
    return re.sub(r"[^a-z0-9.=+]+", "-", label.lower()).strip("-")


def _one_table(experiment: Experiment, data: str, found: dict[tuple[str, str, str], Cell]) -> list[str]:
    heads = headings(experiment)
    lines = [f"Columns: {' / '.join(experiment.metrics)}, mean ± deviation over seeds.", ""]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for cells in table_rows(experiment, data, found):
        texts = ["–" if set(cell) == {"–"} else " / ".join(cell) for cell in cells]
        lines.append(f"| {' | '.join(texts)} |")
    return lines


def _published(figures: list[tuple[str, float]]) -> str:
    """What papers print of one metric, each with its source."""
    return ", ".join(f"{_number(value)} {source}".strip() for source, value in figures) or "–"


def _without(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "rounds"}


def _asked(label: str, wanted: list[str]) -> bool:
    """Whether a row is meant by one of these words: its label, or the label of its sweep."""
    return any(label.lower() == w.lower() or label.lower().startswith(w.lower() + " ") for w in wanted)


def _seeds(out: Path) -> list[int]:
    """Every seed that has a run below `out`."""
    found = {int(m[1]) for p in out.glob("*") if (m := re.search(r"-s(\d+)$", p.name))}
    return sorted(found)


def _spread(values: list[float]) -> tuple[float, float | None] | None:
    if not values:
        return None
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return mean(values), stdev(values) if finite else None


def _text(figure: tuple[float, float | None] | None) -> str:
    if figure is None:
        return "–"
    value, spread = figure
    return _number(value) + (f" ±{spread:.3f}".replace("±0.", "±.") if spread is not None else "")


def _cost(measured: tuple[float, float | None] | None, told: list[tuple[str, float]]) -> str:
    """A figure of ours, and behind it what papers print of it."""
    text = "–" if measured is None else _number(measured[0], 4 if told else 3)
    return f"{text} ({_published(told)})" if told else text


def _number(value: float, digits: int = 4) -> str:
    return "∞" if value == math.inf else f"{value:.{digits}f}"
