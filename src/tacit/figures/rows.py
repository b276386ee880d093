"""Runs put together: the seeds of one configuration are a row, rows on the same data under a protocol are a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from tacit.figures.records import Record

REFERENCES = ("popularity", "oracle")  # drawn in grey
Spread = tuple[float, float | None]  # mean and, over several seeds, deviation
Ground = tuple[str, str]  # data and protocol
# what does not make another row: where a run stands in a table, and where it ran
_ELSEWHERE = (
    "method",
    "data",
    "protocol",
    "seed",
    "threads",
    "chunk",
    "mapped",
    "checkpoint_every",
    "metrics",
    "min_interactions",
    "tested",
)
_MINOR = ("evaluate_every", "evaluate_users", "rounds", "patience", "select")
_NOISE = ("ldp", "dp")


@dataclass(frozen=True)
class Row:
    """One configuration on one ground, a record a seed."""

    label: str
    style: int  # which colour, the same on a whole page; -1: grey
    records: tuple[Record, ...]

    @property
    def finished(self) -> list[dict[str, Any]]:
        """The summaries that there are."""
        return [r.summary for r in self.records if r.summary]

    def metric(self, name: str, sampled: bool = False) -> Spread | None:
        """A test metric over the seeds."""
        return spread([v for r in self.records if (v := r.metric(name, sampled)) is not None])

    @property
    def pooled(self) -> bool:
        """Whether all data were in one place."""
        return all(s.get("clients") == 1 for s in self.finished)


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and, over several values, standard deviation."""
    if not values:
        return None
    return mean(values), stdev(values) if len(values) > 1 else None


def ground_of(record: Record) -> Ground:
    """What a run can be compared on."""
    asked = record.config
    least = asked.get("min_interactions") or 0
    return str(asked.get("data")) + (f", users with {least} or more" if least else ""), str(asked.get("protocol"))


def grounds(records: Iterable[Record]) -> dict[Ground, list[Row]]:
    """Ground -> its rows, strict before the others; a label says as much as tells it from the others of its method."""
    everything = list(records)
    labels = _labels(everything)
    names = list(dict.fromkeys(labels[r.path] for r in everything if r.method not in REFERENCES))
    out: dict[Ground, dict[str, list[Record]]] = {}
    for record in everything:
        out.setdefault(ground_of(record), {}).setdefault(labels[record.path], []).append(record)

    def made(label: str, found: list[Record]) -> Row:
        style = names.index(label) if label in names else -1
        return Row(label, style, tuple(sorted(found, key=lambda r: (r.config.get("seed", 0), str(r.path)))))

    ordered = sorted(out, key=lambda ground: (ground[0], ground[1] != "strict", ground[1]))
    return {ground: [made(*pair) for pair in _in_order(out[ground])] for ground in ordered}


def _in_order(found: dict[str, list[Record]]) -> list[tuple[str, list[Record]]]:
    """References last."""
    return sorted(found.items(), key=lambda pair: pair[1][0].method in REFERENCES)


def _labels(records: Sequence[Record]) -> dict[Any, str]:
    """Path -> what tells a run from the others of its method on the same data: as few words as keep them apart."""
    alike: dict[tuple[str, str], dict[Any, dict[str, str]]] = {}
    for record in records:
        data, protocol = ground_of(record)
        alike.setdefault((data, record.method), {})[record.path] = _options(record) | {"": protocol}
    out: dict[Any, str] = {}
    for (_, method), found in alike.items():
        keys = dict.fromkeys(k for o in found.values() for k in o if k)
        differing = [k for k in keys if len({*_values(found, k)}) > 1]
        chosen: list[str] = []
        for key in sorted(differing, key=lambda k: k in _MINOR):  # minor ones only where nothing else tells rows apart
            if key not in _MINOR or _apart(found, [*chosen, key]) > _apart(found, chosen):
                chosen.append(key)
        out |= {path: f"{method} {_said(options, chosen)}".strip() for path, options in found.items()}
    return out


def _apart(found: dict[Any, dict[str, str]], keys: Sequence[str]) -> int:
    """How many rows these keys make of the runs of each protocol."""
    return len({(options[""], _said(options, keys)) for options in found.values()})


def _values(found: dict[Any, dict[str, str]], key: str) -> list[str]:
    return [options.get(key, "") for options in found.values()]


def _said(options: dict[str, str], keys: Sequence[str]) -> str:
    return ", ".join(f"{k}={options[k]}" if k not in _NOISE else options[k] for k in keys if options.get(k, ""))


def _options(record: Record) -> dict[str, str]:
    """What was asked for, without what merely says where; a reference takes part with the options of the others."""
    if record.method in REFERENCES:
        return {}
    out: dict[str, str] = {}
    for key, value in record.config.items():
        if key in _ELSEWHERE or value in (None, "", False, [], {}):
            continue
        if key == "settings":
            out |= {name: _short(part) for name, part in value.items()}
        else:
            out[key] = _noise(value) if key in _NOISE else _short(value)
    return out


def _noise(value: dict[str, Any]) -> str:
    """A protection in a few letters: its budget, or else its kind and strength."""
    if value.get("epsilon") is not None:
        return f"ε={_short(value['epsilon'])}"
    return f"{value.get('kind', 'gaussian')} {_short(value.get('scale', value.get('noise', '')))}".strip()


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
