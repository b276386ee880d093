"""The figures of a single run: its course, and what it recorded of its tables, its users' vectors and its audits."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.figures.build import Spec, curves, groups, main_metric
from tacit.figures.records import Record
from tacit.figures.rows import Row

DIAGNOSTICS, AUDITS, PLANES, POISON = "diagnostics.jsonl", "audit.jsonl", "plane.json", "poison.json"


def of_run(record: Record) -> list[Spec]:
    """Every figure that one run gives, live or finished."""
    row = Row(record.method, 0, (record,))
    course: list[Spec | None] = [
        curves([row]),
        _by_round(record, "loss", "Training loss", "loss"),
        _by_round(record, "epsilon", "Privacy spent", "ε"),
        _bytes(record),
        groups([row], main_metric(str(record.config.get("protocol")))),
    ]
    lines = record.lines(DIAGNOSTICS)
    inside = [*spectra(lines), clusters(lines), planes(record), poisoning(record), trajectories(record.path.parent)]
    return [spec for spec in [*course, *inside] if spec]


def _by_round(record: Record, key: str, title: str, label: str) -> Spec | None:
    points = [[r["round"], r[key]] for r in record.rounds if isinstance(r.get(key), int | float)]
    return _line(key, title, label, points) if len(points) > 1 else None


def _bytes(record: Record) -> Spec | None:
    points, total = [], 0
    for line in record.rounds:
        total += line.get("bytes_up", 0) + line.get("bytes_down", 0)
        points.append([line["round"], total])
    return _line("bytes", "Bytes moved", "bytes of all clients", points, "bytes") if total and len(points) > 1 else None


def _line(name: str, title: str, label: str, points: list[list[float]], kind: str | None = None) -> Spec:
    return {
        "kind": "lines",
        "name": name,
        "title": title,
        "note": f"{label[:1].upper()}{label[1:]} by round.",
        "x": {"label": "round"},
        "y": {"label": label, "format": kind, "zero": kind == "bytes"},
        "series": [{"name": "", "style": 0, "points": points}],
        "rules": [],
    }


def spectra(lines: Sequence[dict[str, Any]]) -> list[Spec]:
    """Singular values of the tables at the last recorded round, and information abundance by round."""
    found = [line for line in lines if "spectrum" in line]
    if not found:
        return []
    last = max(line["round"] for line in found)
    rank = [
        {"name": _table(line), "style": place, "points": [[i, v] for i, v in enumerate(line["spectrum"], 1)]}
        for place, line in enumerate(line for line in found if line["round"] == last)
    ]
    out: list[Spec] = [
        {
            "kind": "lines",
            "name": "spectra",
            "title": "Spectra of item tables",
            "note": f"Singular values at round {last}, means over the tables of a group: a steep fall is a table that "
            "uses few of its dimensions.",
            "x": {"label": "singular value"},
            "y": {"label": "size", "zero": True},
            "series": rank,
            "rules": [],
        }
    ]
    names = list(dict.fromkeys(map(_table, found)))
    by_round: list[Spec] = [
        {
            "name": name,
            "style": place,
            "points": [[line["round"], line["abundance"]] for line in found if _table(line) == name],
        }
        for place, name in enumerate(names)
    ]
    if any(len(s["points"]) > 1 for s in by_round):
        out.append(
            {
                "kind": "lines",
                "name": "abundance",
                "title": "Information abundance",
                "note": "The sum of a table's singular values over the largest, by round.",
                "x": {"label": "round"},
                "y": {"label": "information abundance"},
                "series": by_round,
                "rules": [],
            }
        )
    return out


def _table(line: dict[str, Any]) -> str:
    return f"{line['of']}: {line['table']}" + ("" if line["group"] == "everyone" else f", {line['group']}")


def clusters(lines: Sequence[dict[str, Any]]) -> Spec | None:
    """How well a server's clusters separate the tables of users, by round: a heat map."""
    cells = [
        [str(line["round"]), line["group"], line["separability"]]
        for line in lines
        if line.get("of") == "clients" and line.get("separability") is not None
    ]
    if len(cells) < 2:
        return None
    return {
        "kind": "heat",
        "name": "clusters",
        "title": "Separability of clusters",
        "note": "Silhouette of the tables that clients rank with under the server's clusters; 0: they overlap.",
        "x": {"label": "round"},
        "y": {"label": "users"},
        "value": "silhouette",
        "cells": cells,
    }


def trajectories(folder: Path) -> Spec | None:
    """The paths of users' vectors through training, from the study of skew: `tacit skew` writes them."""
    try:
        with (folder / "trajectories.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return None
    panels: dict[str, dict[str, list[list[float]]]] = {}
    for row in rows:
        place = panels.setdefault(f"user {row['user']}", {}).setdefault(row["group"], [])
        place.append([float(row["x"]), float(row["y"]), float(row["round"])])
    return {
        "kind": "plane",
        "name": "trajectories",
        "title": "Users' vectors through training",
        "note": "Each path is one user's vector by round, on a plane by t-SNE; the dot is where it ends.",
        "paths": True,
        "panels": [{"name": user, "series": _plane(found)} for user, found in panels.items()],
    }


def planes(record: Record) -> Spec | None:
    """Tables of a few clients, their own items among the others; `tacit diagnose --plane` maps them."""
    found = _read(record.path / PLANES)
    if found is None:
        return None
    told = [s["auc"] for x in record.lines(AUDITS) if x.get("protection") == "none" for s in x["attacks"].values()]
    beside = f" The audit tells them from uploads with an AUC of {max(told):.3f}." if told else ""
    panels = []
    for one in found["users"]:
        own, points = one["own"], one["points"]
        parts = [("other items", -1, points[own:]), ("own items", 1, points[:own])]
        series = [{"name": name, "style": style, "points": some} for name, style, some in parts]
        panels.append({"name": f"user {one['user']}", "series": series})
    return {
        "kind": "plane",
        "name": "planes",
        "title": "Own items among the others",
        "note": f"The table that each client ranks with at round {found['round']}, on a plane by t-SNE." + beside,
        "paths": False,
        "panels": panels,
    }


def poisoning(record: Record) -> Spec | None:
    """In how many lists a pushed item ends up, by attack and defence; `tacit audit --poison` plays it."""
    plays = (_read(record.path / POISON) or {}).get("plays", [])
    if not plays:
        return None
    one = plays[0]
    return {
        "kind": "heat",
        "name": "poisoning",
        "title": "What a few clients can push",
        "note": f"ER@10: share of honest users in whose first ten an item of {one['interactions']} interactions ends "
        f"up. {one['clients']:,} clients take part, attackers for {one['rounds']} rounds.",
        "x": {"label": "defence"},
        "y": {"label": "attack"},
        "value": "ER@10",
        "domain": [0, 1],
        "cells": [[play["defence"], _attack(play), play["exposure"]] for play in plays],
    }


def _attack(play: dict[str, Any]) -> str:
    return f"{play['attackers']} x {play['attack']}" if play["attackers"] else "nobody"


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON file that may not be there."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _plane(found: dict[str, list[list[float]]]) -> list[Spec]:
    return [{"name": name, "style": place, "points": points} for place, (name, points) in enumerate(found.items())]


def audits(lines: Sequence[dict[str, Any]]) -> Spec | None:
    """How well a curious server tells a client's items, by attack and protection: the AUC, 0.5 is guessing."""
    cells = []
    for line in lines:
        for attack, found in line.get("attacks", {}).items():
            of = f"{line['method']}, {line['protection']}" if attack != "popularity" else "popularity, no upload"
            cells.append([attack, of, found["auc"]])
    if not cells:
        return None
    last = {(x, y): v for x, y, v in cells}  # of an audit that was repeated the later counts
    return {
        "kind": "heat",
        "name": "audits",
        "title": "What uploads give away",
        "note": "AUC with which an attack on the uploads tells a client's own items from others. 0.5 is guessing, 1 is "
        "certainty; popularity needs no upload.",
        "x": {"label": "attack"},
        "y": {"label": "method and protection"},
        "value": "AUC",
        "domain": [0.5, 1],
        "cells": [[x, y, v] for (x, y), v in last.items()],
    }
