"""What came out of a search: its trials as a table, what each setting mattered, and rows for an experiment file."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.config import build
from tacit.errors import UserError
from tacit.methods import find
from tacit.runs.files import write_text
from tacit.runs.search import Search, Trial
from tacit.runs.search_final import figures
from tacit.runs.search_space import START, Dimension

if TYPE_CHECKING:
    from rich.table import Table

FEW = 5  # trials below which nothing is said about settings
WRITTEN = "# written by tacit search\n"


def table(one: Search) -> "Table":
    """Trials from the best to the worst."""
    from rich.table import Table

    asked = one.asked
    out = Table(title=f"{asked.method} on {asked.data}, {asked.protocol}", title_justify="left")
    out.add_column("trial", justify="right")
    out.add_column(f"valid {asked.select}", justify="right", no_wrap=True)
    out.add_column("best round", justify="right", no_wrap=True)
    out.add_column("CPU s", justify="right", no_wrap=True)
    out.add_column("state", no_wrap=True)
    out.add_column("settings")
    for trial in sorted(one.trials, key=lambda t: (not t.counts, -(t.value or 0.0), t.number)):
        rounds = f"{trial.best_round}/{trial.rounds}" if trial.rounds else "–"
        value = "–" if trial.value is None else f"{trial.value:.4f}"
        out.add_row(str(trial.number), value, rounds, f"{trial.cpu_seconds:.1f}", _state(trial), shown(trial.settings))
    return out


def _state(trial: Trial) -> str:
    return "default" if trial.state == "finished" and not trial.settings else trial.state


def shown(settings: dict[str, Any]) -> str:
    """Settings as they are typed."""
    return " ".join(f"{key}={_text(value)}" for key, value in settings.items()) or "the method's own"


def importance(one: Search) -> dict[str, float]:
    """Setting -> its share in what a random forest explains of validation by settings, the largest first."""
    trials = [t for t in one.trials if t.value is not None and t.state not in ("failed", "repeated", "running")]
    values = np.array([t.value for t in trials])
    if len(trials) < FEW or not one.space or np.ptp(values) == 0:
        return {}
    from sklearn.ensemble import RandomForestRegressor

    space = [d for d in one.space if d.name != START and not d.start]
    places = np.array([[_place(d, t.settings.get(d.name, d.default)) for d in space] for t in trials])
    forest = RandomForestRegressor(n_estimators=100, min_samples_leaf=2, random_state=0).fit(places, values)
    shares = zip((d.name for d in space), forest.feature_importances_.tolist(), strict=True)
    return dict(sorted(shares, key=lambda pair: -pair[1]))


def _place(dimension: Dimension, value: Any) -> float:
    """A value as a number that a tree can cut at."""
    if dimension.values:
        return float(dimension.values.index(_tupled(value))) if _tupled(value) in dimension.values else -1.0
    return math.log(value) if dimension.log and value > 0 else float(value)


def summary(one: Search) -> dict[str, Any]:
    """A search as plain JSON."""
    return {
        "method": one.asked.method,
        "data": one.asked.data,
        "protocol": one.asked.protocol,
        "select": one.asked.select,
        "seeds": list(one.seeds),
        "folder": str(one.folder),
        "best": dataclasses.asdict(one.best) if one.best else None,
        "importance": importance(one),
        "test": figures(one),
        "trials": [dataclasses.asdict(trial) for trial in one.trials],
    }


def save(searches: Sequence[Search], path: Path) -> None:
    """An experiment file with two rows a search: the method's own settings, and the best ones found."""
    check_save(path)
    first = searches[0].asked
    lines = [
        WRITTEN.strip(),
        'title = "Default settings, and the best of a search on validation"',
        'metrics = ["HR@10", "NDCG@10"]',
        f"protocols = [{json.dumps(first.protocol)}]",
        f"seeds = {json.dumps(searches[0].seeds)}",
        'figures = ["up", "down", "cpu"]',
        f"note = {json.dumps(f'Chosen on validation {first.select} by tacit search; the test set was not read.')}",
        "",
    ]
    for name in dict.fromkeys(one.asked.data for one in searches):
        lines += ["[[data]]", f"name = {json.dumps(name)}", f"min_interactions = {first.min_interactions}", ""]
    for one in searches:
        if one.best is None:
            continue
        best = one.run_of(one.best)
        count = len(one.trials)
        for label, run in (("default", one.run({}, one.seeds[0])), (f"best of {count}", best)):
            build(find(run.method), run.settings)
            options = {
                key: value
                for key, value in run.model_dump(mode="json", exclude_defaults=True).items()
                if key in ("rounds", "clients", "select", "evaluate_every", "patience", "secure", "dp", "ldp")
            }
            lines += [
                "[[run]]",
                f"label = {json.dumps(f'{run.method} ({label})')}",
                f"method = {json.dumps(run.method)}",
                f"data = {json.dumps([run.data])}",
                f"settings = {_inline(run.settings)}",
                f"options = {_inline(options)}",
                "",
            ]
    write_text(path, "\n".join(lines))


def check_save(path: Path) -> None:
    """Refuse, before anything runs, a place where the rows could not be written."""
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UserError(f"--save {path} cannot be written: {reason}")
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(WRITTEN):
        raise UserError(f"{path} is not a file that tacit search wrote; name another --save")


def _inline(values: dict[str, Any]) -> str:
    return (
        "{ "
        + ", ".join(f"{key} = {_inline(v) if isinstance(v, dict) else json.dumps(v)}" for key, v in values.items())
        + " }"
    )


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
