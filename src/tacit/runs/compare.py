"""Several methods and seeds on one ground, as the rows of one table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from tacit.config import OUTSIDE, RunConfig, build, canonical, config
from tacit.data.frames import Kind, as_kind, kind_of, named
from tacit.data.interactions import Interactions
from tacit.errors import UserError
from tacit.methods import find
from tacit.runs.assembly import check, fitted
from tacit.runs.folder import RunFolder
from tacit.runs.run import Summary, Watch, resume, start

SANITY = ("popularity", "oracle")


@dataclass(frozen=True)
class Row:
    """One method over all seeds."""

    method: str
    runs: tuple[Summary, ...]

    def values(self, metric: str, sampled: bool = False) -> list[float]:
        """A test metric of every seed; `sampled` reads the sampled ranking beside a full one."""
        chosen = [r.test_sampled99 if sampled else r.test for r in self.runs]
        return [c[metric] for c in chosen if c is not None and metric in c]

    def mean(self, metric: str, sampled: bool = False) -> float:
        """Mean over seeds."""
        return mean(self.values(metric, sampled))

    def deviation(self, metric: str, sampled: bool = False) -> float | None:
        """Standard deviation over seeds; None for a single one."""
        values = self.values(metric, sampled)
        return stdev(values) if len(values) > 1 else None


class Rows(list[Row]):
    """The rows of a comparison."""

    kind: Kind = "polars"

    def frame(self, kind: Kind | None = None) -> Any:
        """A line a run: method, seed, rounds, test metrics, bytes and seconds; of the kind that the data came in."""
        import polars as pl

        lines = [
            {"method": row.method, "seed": run.seed, "best_round": run.best_round}
            | run.test
            | {f"{metric} (1 of 100)": value for metric, value in (run.test_sampled99 or {}).items()}
            | {"bytes_up": run.bytes_up, "bytes_down": run.bytes_down, "seconds": run.seconds}
            for row in self
            for run in row.runs
        ]
        return as_kind(pl.DataFrame(lines, infer_schema_length=None), kind or self.kind)


def compare(
    methods: str | Iterable[str],
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    begin: Callable[[RunConfig], Watch | None] | None = None,
    data: Any = "ml-100k",
    **options: Any,
) -> Rows:
    """Run every method with every seed, popularity and the oracle beside them.

    `data` is a data set's name, a `tacit.Data`, or what `tacit.Data.of` takes; `frame` gives the rows as one table.
    Runs already finished in `out` are read, not run again. Settings apply to every method that has them; one
    that no method has is an error. Noise on uploads is not for centralised references and sanity rows.
    """
    names = list(dict.fromkeys(map(canonical, [methods] if isinstance(methods, str) else methods)))
    called, own = named(data)
    options["data"] = called
    given = options.pop("settings", {})
    classes = {name: find(name) for name in [*names, *(s for s in SANITY if s not in names)]}
    fields = {name: cls.__dataclass_fields__ for name, cls in classes.items()}
    for key in given:
        if not any(key in fields[name] for name in names):
            raise UserError(f"no method here has a setting '{key}': {', '.join(names)}")
    numbers = list(seeds)
    for seed in set(numbers):
        if numbers.count(seed) > 1:
            raise UserError(f"seed {seed} is given twice, and the same seed gives the same run; name each once")
    planned: dict[str, list[RunConfig]] = {}  # everything is checked before anything runs
    for name, cls in classes.items():
        settings = {} if name in SANITY and name not in names else {k: v for k, v in given.items() if k in fields[name]}
        build(cls, settings)
        chosen = _options(name, names, options)
        planned[name] = [config(method=name, seed=seed, settings=settings, **chosen) for seed in numbers]
        check(planned[name][0], own)
    rows = Rows()
    rows.kind = kind_of(data)
    for name, configurations in planned.items():
        runs = []
        for asked in configurations:
            path = None if out is None else Path(out) / f"{name}-{asked.data}-{asked.protocol}-s{asked.seed}"
            runs.append(once(asked, path, begin(asked) if begin else None, own))
        rows.append(Row(name, tuple(runs)))
    return rows


def sanity(like: RunConfig, names: Iterable[str] = SANITY, own: Interactions | None = None) -> list[Row]:
    """The rows a single run is shown with, on the same data, split and seed; `own` data where they have no name."""
    rows = []
    for name in names:
        changed: dict[str, Any] = {"method": name, "settings": {}, "rounds": None}
        asked = config(**like.model_dump() | changed | _options(name, [], {}))
        rows.append(Row(name, (once(asked, None, None, own),)))
    return rows


def _options(name: str, asked_for: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """The oracle needs no validation on the way; what nobody asked for and what is centralised needs no protection."""
    out = dict(options)
    if find(name).pooled or name not in asked_for:
        out |= {"ldp": None, "secure": False, "dp": None}
    if name == "oracle" and name not in asked_for:
        out |= {"evaluate_every": 10_000, "checkpoint_every": 10_000}
    return out


def once(asked: RunConfig, path: Path | None, watch: Watch | None, own: Interactions | None = None) -> Summary:
    """The result of a run: read where it is finished, else run or resumed in `path`."""
    if path is not None and (path / "run.json").exists():
        folder = RunFolder.open(path)
        if not is_of(folder, asked):
            raise UserError(f"{path} holds a run with other options; name another --out")
        if own is not None and folder.run["fingerprint"] != own.at_least(asked.min_interactions).fingerprint():
            raise UserError(f"{path} holds a run on other data; name another --out")
        return resume(path, watch)
    if path is not None:
        return start(asked, path, own=own).go_on(watch)
    with TemporaryDirectory(prefix="tacit-") as place:
        return start(asked, Path(place), own=own, keep=False).go_on(watch)


def is_of(folder: RunFolder, asked: RunConfig) -> bool:
    """Whether a folder holds the run asked for: where it runs does not matter, a method's changed default does."""
    cls = find(asked.method)
    method = build(cls, asked.settings)
    try:  # with what has become an option or a setting since; nothing that a run names is imported
        written = _plain(RunConfig(**folder.run["config"]))
        before = build(cls, folder.run["settings"])
        items = int(folder.run.get("data", {}).get("items", 0))
    except (UserError, ValueError, KeyError, TypeError, AttributeError):  # of another version, or damaged
        return False
    one, other = (
        {k: v for k, v in c.items() if k not in (*OUTSIDE, "settings")} | {"rounds": c["rounds"] or method.length()}
        for c in (written, _plain(asked))
    )
    left_to_the_data = (fitted(method, items, ordered)[0] for ordered in (True, False))
    return one == other and before in (method, *left_to_the_data)


def _plain(asked: RunConfig) -> dict[str, Any]:
    return asked.model_dump(mode="json")
