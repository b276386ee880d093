"""The leaderboard: every method on one ground, from finished runs, kept in a small file so that it can be drawn again.

A line is a method; it has the runs of its own settings, `default`, and of the best that a search found, `best`, a run
a seed. Runs that no search made are `default` where nothing was set, else lines of their own.
"""

import base64
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tacit.errors import UserError
from tacit.figures.command import repeating
from tacit.figures.records import Record
from tacit.figures.rows import Spread, ground_of, spread

METRICS = ("HR@10", "NDCG@10", "Coverage@10", "Novelty@10")
MAIN = "NDCG@10"
PLACES = 10  # a hit further down counts as none
Kind = Literal["default", "best"]
Entry = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A method on a data set."""

    method: str
    tag: str  # what was fixed: settings, noise; empty: nothing
    trials: int  # of the search; 0: there was none
    runs: dict[Kind, tuple[Entry, ...]]

    @property
    def label(self) -> str:
        """Its name in a table."""
        return f"{self.method} {self.tag}".strip()

    @property
    def shown(self) -> tuple[Entry, ...]:
        """The runs that it is ranked by."""
        return self.runs.get("best") or self.runs["default"]

    def figure(self, name: str, kind: Kind | None = None) -> Spread | None:
        """A figure over seeds; of what it is ranked by, or of one kind."""
        runs = self.shown if kind is None else self.runs.get(kind, ())
        return spread([run[name] for run in runs if isinstance(run.get(name), int | float)])

    @property
    def epsilon(self) -> float | None:
        """The largest ε of its runs; None where nothing is promised."""
        stated = [float(run["epsilon"]) for run in self.shown if run.get("epsilon") is not None]
        return max(stated, default=None)

    @property
    def pooled(self) -> bool:
        """Whether all data were in one place."""
        return all(run["clients"] == 1 for run in self.shown)


def entries(records: Iterable[Record]) -> list[Entry]:
    """What is kept of finished runs under `strict`; trials of a search, which have no test, are left out."""
    out = []
    for record in records:
        try:
            entry = _entry(record)
            if entry is not None:
                _check(entry)
                out.append(entry)
        except _DAMAGED as error:
            raise UserError(f"{record.path} cannot be taken: its files are damaged ({error}); remove it") from error
    return out


def _entry(record: Record) -> Entry | None:
    summary, asked = record.summary, record.config
    if summary is None or not summary.get("test") or asked.get("protocol") != "strict":
        return None
    kinds, fixed, trials = _place(record)
    if not kinds:
        return None
    clients = max(int(summary["clients"]), 1)
    return {
        "data": ground_of(record)[0],
        "method": record.method,
        "tag": _tag(asked, fixed),
        "kinds": kinds,
        "trials": trials,
        "seed": asked.get("seed", 0),
        "settings": asked.get("settings", {}),
        "command": repeating(record.run),
        "version": record.run.get("versions", {}).get("tacit", ""),
        "clients": summary["clients"],
        "valid": summary["valid"].get(MAIN),
        **{name: summary["test"].get(name) for name in METRICS},
        "best_round": summary["best_round"],
        "rounds": summary["rounds"],
        "up": summary["bytes_up"] / clients,
        "down": summary["bytes_down"] / clients,
        "cpu_seconds": summary.get("cpu_seconds"),
        "epsilon": summary.get("epsilon"),
        "users": _packed(record.path / "users.npz"),
    }


# what reading something else than what was written ends in
_DAMAGED = (
    ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


def _check(one: Entry) -> None:
    """Refuse a line that could not be drawn."""
    sound = {
        "a name is not a text": all(isinstance(one[key], str) for key in ("data", "method", "tag", "command")),
        "it is neither default nor best": one["kinds"] and set(one["kinds"]) <= {"default", "best"},
        "a count is not a number": all(isinstance(one[key], int) for key in ("seed", "trials", "clients")),
        "a metric is not between 0 and 1": all(0 <= one[key] <= 1 for key in ("HR@10", MAIN)),
        "epsilon is not a number": one["epsilon"] in (None, "inf") or one["epsilon"] >= 0,
    }
    for what, holds in sound.items():
        if not holds:
            raise ValueError(what)
    json.dumps(one, ensure_ascii=False).encode()  # letters that cannot be written
    if one["users"]:
        _gain(one["users"])


def _place(record: Record) -> tuple[list[str], dict[str, Any], int]:
    """(what a run stands for, the settings that were fixed, trials of its search); no kind: it is out of date."""
    folder = record.path.parent
    try:
        found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        fixed = dict(json.loads((folder / "search.json").read_text(encoding="utf-8"))["config"]["settings"])
        number = int(record.path.name.split("-")[1])
        return [kind for kind, trial in found["rows"].items() if trial == number], fixed, int(found["trials"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        if (folder / "search.json").exists():
            return [], {}, 0  # of a search whose final runs are not all done, or that is damaged
        rounds = {"rounds": record.config["rounds"]} if record.config.get("rounds") else {}
        return ["default"], record.config.get("settings", {}) | rounds, 0


def _tag(asked: dict[str, Any], fixed: dict[str, Any]) -> str:
    words = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in fixed.items()]
    for name in (name for name in ("ldp", "dp") if asked.get(name)):
        words += [f"{name} " + ",".join(f"{k}={v}" for k, v in asked[name].items() if v is not None)]
    words += [f"{name}={asked[name]}" for name in ("clients", "bound", "robust", "evaluate_users") if asked.get(name)]
    return " ".join([*words, *(["secure"] if asked.get("secure") else [])])


def merged(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    """Both; a new run takes the place of that of its seed, and of all others of its line with other settings."""
    kept = list(old)
    for entry in new:
        key = _key(entry)
        kept = [
            one
            for one in kept
            if _key(one) != key
            or not set(one["kinds"]) & set(entry["kinds"])
            or (one["settings"] == entry["settings"] and one["seed"] != entry["seed"])
        ]
        kept.append(entry)
    return sorted(kept, key=lambda one: (*_key(one), one["kinds"], one["seed"]))


def _key(entry: Entry) -> tuple[str, str, str]:
    return entry["data"], entry["method"], entry["tag"]


def boards(kept: Sequence[Entry]) -> dict[str, list[Line]]:
    """Data set -> its lines, the best first; the data set with most lines comes first."""
    found: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in kept:
        found.setdefault(_key(entry), []).append(entry)
    out: dict[str, list[Line]] = {}
    for (data, method, tag), runs in found.items():
        kinds: dict[Kind, tuple[Entry, ...]] = {}
        for kind in ("default", "best"):
            if those := tuple(run for run in runs if kind in run["kinds"]):
                kinds[kind] = those
        line = Line(method, tag, max(run["trials"] for run in runs), kinds)
        out.setdefault(data, []).append(line)
    for lines in out.values():
        lines.sort(key=lambda line: -(line.figure(MAIN) or (0.0, None))[0])
    return dict(sorted(out.items(), key=lambda item: (-len(item[1]), item[0])))


def chance(upper: Line, lower: Line) -> float | None:
    """p of a paired t-test over users on NDCG@10, each user's mean over the seeds that both have; None: not known."""
    one, other = ({run["seed"]: run for run in line.shown if run.get("users")} for line in (upper, lower))
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    gains = [[_gain(runs[seed]["users"]) for seed in seeds] for runs in (one, other)]
    users = {len(gain) for each in gains for gain in each}
    if len(users) > 1 or min(users) < 2:
        return None
    apart = np.mean(gains[0], axis=0) - np.mean(gains[1], axis=0)
    if not apart.any():
        return 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(apart, 0.0).pvalue)


def _packed(path: Path) -> str:
    """The place of each user's held-out item, 0 beyond the tenth, as text; empty where a run did not keep it."""
    if not path.exists():
        return ""
    with np.load(path) as there:
        hits = np.unpackbits(there["hits"], axis=1)[np.argsort(there["user"]), :PLACES].astype(bool)
    place = np.where(hits.any(1), hits.argmax(1) + 1, 0).astype(np.uint8)
    return base64.b64encode(zlib.compress(place.tobytes(), 9)).decode()


def _gain(text: str) -> NDArray[np.float64]:
    """(n,) NDCG@10 of each user, from the places of `_packed`."""
    place = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    gain: NDArray[np.float64] = np.where(place > 0, 1 / np.log2(np.maximum(place, 1) + 1.0), 0.0)
    return gain


def read(path: Path) -> list[Entry]:
    """What was kept before; nothing where there is no file yet."""
    if not path.exists():
        return []
    try:
        kept = list(json.loads(path.read_text(encoding="utf-8"))["runs"])
        for one in kept:
            _check(one)
        return kept
    except (OSError, *_DAMAGED):
        raise UserError(f"{path} is not what tacit leaderboard keeps; restore it from a copy, or remove it") from None


def written(kept: Sequence[Entry]) -> str:
    """What is kept, as text: each run on a line, so that a change can be read."""
    plain = [{k: "inf" if v == math.inf else v for k, v in one.items()} for one in kept]
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in plain)
    return f'{{"runs": [\n{lines}\n]}}\n'
