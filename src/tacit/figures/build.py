"""The figures of finished and running runs, each a specification that `page/draw.js` turns into a drawing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tacit.data.protocols import SHARES
from tacit.figures.records import Record
from tacit.figures.rows import Ground, Row, Spread, grounds, spread

Spec = dict[str, Any]
MOST = 9  # bars beside one another


def main_metric(protocol: str) -> str:
    """What a protocol is read by first."""
    return "NDCG@20" if protocol in SHARES else "NDCG@10"


def curves(rows: Sequence[Row], where: str = "") -> Spec | None:
    """Validation by round: mean and deviation over seeds, the best round marked."""
    series: list[Spec] = []
    select = next((r.config.get("select", "NDCG@10") for row in rows for r in row.records), "NDCG@10")
    for row in rows:
        by_round: dict[int, list[float]] = {}
        for record in row.records:
            for line in record.rounds:
                if line.get("valid") and select in line["valid"]:
                    by_round.setdefault(line["round"], []).append(line["valid"][select])
        whole = max((len(v) for v in by_round.values()), default=0)
        points = [_point(x, spread(v)) for x, v in sorted(by_round.items()) if len(v) == whole]
        if points:
            best = max(points, key=lambda p: p[1])
            series.append({"name": row.label, "style": row.style, "points": points, "best": best[:2]})
    if not any(len(s["points"]) > 1 for s in series):
        return None
    return {
        "kind": "lines",
        "name": "learning-curves",
        "title": "Learning curve" if len(series) == 1 else "Learning curves",
        "note": f"Validation {select} by round{where}; ringed: the best round, which is the one reported."
        + _over_seeds(rows),
        "x": {"label": "round"},
        "y": {"label": f"validation {select}"},
        "series": [s for s in series if len(s["points"]) > 1],
        # what is there after a single round is a level, not a curve
        "rules": [{"y": s["points"][0][1], "label": s["name"]} for s in series if len(s["points"]) == 1],
    }


def leak(found: dict[Ground, list[Row]], data: str) -> Spec | None:
    """The same methods under the papers' protocol and the strict one, both among 99 others."""
    paper = {row.label: row for row in found.get((data, "paper"), [])}
    strict = {row.label: row for row in found.get((data, "strict"), [])}
    series = []
    for label in [name for name in paper if name in strict]:
        left, right = paper[label].metric("HR@10"), strict[label].metric("HR@10", sampled=True)
        if left and right:
            series.append({"name": label, "style": paper[label].style, "left": left, "right": right})
    if not series:
        return None
    return {
        "kind": "slope",
        "name": "leak",
        "title": "The leak",
        "note": f"HR@10 among 99 others on {data}: the papers' protocol, which never draws the answer as a negative, "
        "and the strict one. The oracle has no model; what falls with it had read the answer from the protocol."
        + _over_seeds([*paper.values()]),
        "ends": ["paper", "strict"],
        "y": {"label": "HR@10, 1 of 100", "domain": [0, 1]},
        "series": series,
        "rules": [{"y": 0.1, "label": "chance"}],
    }


def traffic(rows: Sequence[Row], metric: str) -> Spec | None:
    """What a client moves over a whole run against accuracy, and the frontier of the two."""
    points = []
    for row in rows:
        value, moved = row.metric(metric), spread([_moved(s) for s in row.finished])
        if value and moved and (row.pooled or moved[0] > 0):
            points.append(_dot(row, moved[0], value, "pooled" if row.pooled else None))
    inside = [p for p in points if not p["lane"]]
    if not inside:
        return None
    return {
        "kind": "dots",
        "name": "traffic",
        "title": "Bytes against accuracy",
        "note": "What one client uploads and downloads in the whole run. On the line: nobody is better with less."
        + _over_seeds(rows),
        "x": {"label": "bytes of a client", "scale": "log", "format": "bytes"},
        "y": {"label": f"test {metric}"},
        "points": points,
        "lanes": ["pooled"] if len(inside) < len(points) else [],
        "frontier": frontier([(p["x"], p["y"]) for p in inside]),
    }


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that nobody beats with less."""
    out: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda p: (p[0], -p[1])):
        if not out or y > out[-1][1]:
            out.append((x, y))
    return out


def budgets(rows: Sequence[Row], metric: str) -> Spec | None:
    """ε against accuracy; an infinite one, and runs without any promise, in lanes of their own."""
    points = []
    for row in rows:
        value = row.metric(metric)
        spent = [s.get("epsilon") for s in row.finished]
        if not value or row.pooled:
            continue
        finite = [float(e) for e in spent if isinstance(e, int | float) and math.isfinite(e)]
        lane = None if finite else "∞" if any(e is not None for e in spent) else "none promised"
        points.append(_dot(row, max(finite, default=None), value, lane))
    protected = {p["name"].split(" ")[0] for p in points if p["lane"] != "none promised"}
    points = [p for p in points if p["name"].split(" ")[0] in protected]  # beside them what they are without it
    if not points:
        return None
    return {
        "kind": "dots",
        "name": "budgets",
        "title": "Privacy against accuracy",
        "note": "ε that the whole run costs a client at most. ∞: noise without clipping, which bounds nothing."
        + _over_seeds(rows),
        "x": {"label": "ε", "scale": "log"},
        "y": {"label": f"test {metric}"},
        "points": points,
        "lanes": [lane for lane in ("∞", "none promised") if any(p["lane"] == lane for p in points)],
        "frontier": [],
    }


def groups(rows: Sequence[Row], metric: str) -> Spec | None:
    """Bars by user group: how methods fare with people of little and of much history."""
    chosen = sorted((row for row in rows if row.metric(metric)), key=lambda row: -(row.metric(metric) or (0.0,))[0])
    cells = []
    for row in chosen[:MOST]:
        names = dict.fromkeys(name for s in row.finished for name in s.get("groups", {}))
        for name in names:
            values = [s["groups"][name][metric] for s in row.finished if metric in s.get("groups", {}).get(name, {})]
            if found := spread(values):
                cells.append({"group": name, "series": row.label, "style": row.style, "y": found[0], "dev": found[1]})
    shared = [g for g in dict.fromkeys(c["group"] for c in cells) if "interactions" in g] or list(
        dict.fromkeys(c["group"] for c in cells)
    )
    if len(shared) < 2:
        return None
    return {
        "kind": "bars",
        "name": "groups",
        "title": "By users' activity",
        "note": f"Test {metric} of users with few and with many interactions"
        + (f"; the best {MOST} of {len(chosen)}." if len(chosen) > MOST else ".")
        + _over_seeds(rows),
        "y": {"label": f"test {metric}"},
        "groups": shared,
        "cells": [c for c in cells if c["group"] in shared],
    }


def sweeps(rows: Sequence[Row], metric: str) -> list[Spec]:
    """A line for each setting that alone differs between three rows of a method or more."""
    found: dict[tuple[str, str], dict[str, list[tuple[float, Spread]]]] = {}
    for row in rows:
        method, _, rest = row.label.partition(" ")
        settings = dict(part.split("=", 1) for part in rest.split(", ") if "=" in part)
        value = row.metric(metric)
        if len(settings) == 1 and "ε" not in settings and value:
            ((key, text),) = settings.items()
            try:
                found.setdefault((method, key), {}).setdefault(method, []).append((float(text), value))
            except ValueError:
                continue
    return [
        sweep(key, metric, list(lines.items()))
        for (_, key), lines in found.items()
        if any(len(points) > 2 for points in lines.values())
    ]


def sweep(
    setting: str, metric: str, lines: Sequence[tuple[str, Sequence[tuple[float, Spread]]]], note: str = ""
) -> Spec:
    """A metric by the values of one setting."""
    values = sorted({x for _, points in lines for x, _ in points})
    least = next((x for x in values if x > 0), 1.0)
    wide = len(values) > 2 and values[0] >= 0 and values[-1] / least >= 30
    scale = "linear" if not wide else "log" if values[0] > 0 else "symlog"  # 0 has a place beside powers of ten
    ticks = values if len(values) < 12 else None
    return {
        "kind": "lines",
        "name": f"sweep-{setting}",
        "title": f"Sweep of {setting}",
        "note": note or f"Test {metric} by the value of {setting}.",
        "x": {"label": setting, "scale": scale, "constant": least, "ticks": ticks},
        "y": {"label": metric},
        "dots": True,
        "series": [
            {"name": name, "style": place, "points": [_point(x, y) for x, y in sorted(points, key=lambda p: p[0])]}
            for place, (name, points) in enumerate(lines)
        ],
        "rules": [],
    }


def histogram(name: str, bins: Sequence[tuple[int, int, int]]) -> Spec:
    """Users by the length of their history."""
    return {
        "kind": "histogram",
        "name": f"histories-{name}",
        "title": f"Histories of {name}",
        "note": "Users by their number of interactions; each bar is twice as wide as the one before.",
        "x": {"label": "interactions of a user"},
        "y": {"label": "users"},
        "bins": [[f"{low:,}–{high:,}" if high > low else f"{low:,}", count] for low, high, count in bins],
    }


def lorenz(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Spec:
    """How unequally the items of data sets are liked (CGFedRec's Figure 8)."""
    return {
        "kind": "lines",
        "name": "lorenz",
        "title": "Popularity of items",
        "note": "Share of the interactions that the least popular items have; a straight line if all were alike.",
        "x": {"label": "share of the items"},
        "y": {"label": "share of the interactions", "zero": True},
        "series": [
            {"name": name, "style": place, "points": [list(point) for point in points]}
            for place, (name, points) in enumerate(curves.items())
        ],
        "rules": [],
    }


def comparison(records: Iterable[Record]) -> list[Spec]:
    """Every figure that these runs give, ground by ground."""
    found = grounds(records)
    out = [leak(found, data) for data in dict.fromkeys(data for data, _ in found)]
    for (data, protocol), rows in found.items():
        metric, where = main_metric(protocol), f" on {data}, {protocol}"
        made = [curves(rows, where), traffic(rows, metric), budgets(rows, metric), groups(rows, metric)]
        place = f"{data} · {protocol}"
        found_here = [spec for spec in [*made, *sweeps(rows, metric)] if spec]
        out += [spec | {"name": f"{spec['name']}-{data}-{protocol}", "where": place} for spec in found_here]
    return [spec for spec in out if spec]


def _moved(summary: dict[str, Any]) -> float:
    moved: float = summary.get("bytes_up", 0) + summary.get("bytes_down", 0)
    return moved / max(int(summary.get("clients", 1)), 1)


def _point(x: float, y: Spread | None) -> list[float]:
    """[x, y], with the deviation behind where there is one."""
    assert y is not None
    return [x, y[0]] if y[1] is None else [x, y[0], y[1]]


def _dot(row: Row, x: float | None, y: Spread, lane: str | None) -> Spec:
    return {"name": row.label, "style": row.style, "x": x, "y": y[0], "dev": y[1], "lane": lane}


def _over_seeds(rows: Sequence[Row]) -> str:
    most = max((len(row.records) for row in rows), default=1)
    return f" Mean ± standard deviation over {most} seeds." if most > 1 else ""
