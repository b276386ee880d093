"""Tables as plain JSON: what page and report show, and what is copied as Markdown, LaTeX or CSV."""

import math
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from tacit.data.protocols import SHARES
from tacit.figures.build import main_metric
from tacit.figures.command import repeating
from tacit.figures.records import Record
from tacit.figures.rows import REFERENCES, Ground, Row, Spread, grounds, spread
from tacit.runs.wording import FILE_ORDER, budget, size

Table = dict[str, Any]
Cell = dict[str, Any]


def columns(protocol: str) -> list[tuple[str, bool]]:
    """The metrics a protocol is read by, and whether each is of the sampled ranking beside a full one."""
    if protocol == "strict":
        return [("HR@10", False), ("NDCG@10", False), ("HR@10", True), ("NDCG@10", True)]
    if protocol in SHARES:
        return [("Recall@20", False), ("NDCG@20", False), ("F1@10", False), ("MRR@10", False)]
    return [("HR@5", False), ("NDCG@5", False), ("HR@10", False), ("NDCG@10", False)]


def comparison(ground: Ground, rows: Sequence[Row]) -> Table:
    """Metrics ± deviation, bytes of a client and seconds, a row a configuration; the best of each metric is marked."""
    data, protocol = ground
    shown = columns(protocol)
    kind = "1 of 100" if protocol in ("paper", "symmetric") else "all items"
    measured = [[row.metric(metric, sampled) for metric, sampled in shown] for row in rows]
    best = [max((f[0] for f in column if f), default=math.nan) for column in zip(*measured, strict=True)]
    stated = any(s.get("epsilon") is not None for row in rows for s in row.finished)
    heads: list[Cell] = [{"text": "method", "left": True}]
    heads += [{"text": metric, "note": "1 of 100" if sampled else kind} for metric, sampled in shown]
    heads += [{"text": "up", "note": "a client"}, {"text": "down", "note": "a client"}]
    heads += [{"text": "time"}, *([{"text": "ε"}] if stated else []), {"text": "seeds"}]
    body = []
    for row, figures in zip(rows, measured, strict=True):
        cells: list[Cell] = [{"text": row.label, "style": row.style, "grey": row.style < 0}]
        cells += [_figure(figure, top) for figure, top in zip(figures, best, strict=True)]
        cells += [{"text": text} for text in _costs(row)]
        cells += [{"text": _spent([s.get("epsilon") for s in row.finished])}] if stated else []
        done, there = len(row.finished), len(row.records)
        cells.append({"text": str(done) if done == there else f"{done} of {there}"})
        body.append(cells)
    return {"title": f"{data} · {protocol}", "heads": heads, "rows": body, "remarks": remarks(ground, rows)}


def _figure(figure: Spread | None, best: float) -> Cell:
    if figure is None:
        return {"text": "–"}
    value, deviation = figure
    return {
        "text": f"{value:.4f}",
        "spread": None if deviation is None else f"{deviation:.4f}",
        "best": value == best,
    }


def _costs(row: Row) -> list[str]:
    """Bytes up and down of a client, and seconds."""
    done = row.finished
    if not done:
        return ["–"] * 3
    seconds = mean(s["seconds"] for s in done)
    time = f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
    if row.pooled:
        return ["pooled", "", time]
    return [*(size(mean(s[key] / s["clients"] for s in done)) for key in ("bytes_up", "bytes_down")), time]


def remarks(ground: Ground, rows: Sequence[Row]) -> list[str]:
    """What a table does not say by itself."""
    protocol = ground[1]
    out = []
    levels = {row.label: row.metric("HR@10", protocol == "strict") for row in rows}
    oracle = next((levels[row.label] for row in rows if row.records[0].method == "oracle"), None)
    if oracle and protocol not in SHARES and oracle[0] > 0.2:
        out.append(
            f"The protocol “{protocol}” leaks the answer: the oracle has no model at all and reaches HR@10 "
            f"{oracle[0]:.3f}. Figures under it are for comparison with papers alone; strict is honest."
        )
    if protocol == "fileorder":
        out.append(FILE_ORDER)
    if not any(row.records[0].method in REFERENCES for row in rows):
        out.append("There is no popularity and no oracle to judge these figures by; tacit compare adds both.")
    return out


def significance(rows: Sequence[Row], protocol: str) -> Table | None:
    """Every row against the best one, seed by seed: the same seed is the same split, so that pairs can be compared."""
    metric = main_metric(protocol)
    scored = [row for row in rows if row.metric(metric) and row.records[0].method != "oracle"]
    if len(scored) < 2:
        return None
    best = max(scored, key=lambda row: (row.metric(metric) or (0.0,))[0])
    ours = {r.config.get("seed"): r.metric(metric) for r in best.records}
    body = []
    for row in scored:
        if row is best:
            continue
        theirs = {r.config.get("seed"): r.metric(metric) for r in row.records}
        gaps = [b - a for seed, b in ours.items() if b is not None and (a := theirs.get(seed)) is not None]
        found, chance = spread(gaps), paired(gaps)
        cells: list[Cell] = [{"text": row.label, "style": row.style, "grey": row.style < 0}]
        cells += [_figure(found, math.nan), {"text": str(len(gaps))}]
        text = "–" if chance is None else "< 0.001" if chance < 0.001 else f"{chance:.3f}"
        cells.append({"text": text, "best": chance is not None and chance < 0.05})
        body.append(cells)
    heads = [{"text": "against", "left": True}, {"text": "ahead by", "note": f"test {metric}"}]
    heads += [{"text": "pairs", "note": "seeds"}, {"text": "p", "note": "paired t-test"}]
    said = f"{best.label} against the others, seed by seed; p is two-sided and not corrected for many comparisons"
    return {"title": f"{best.label} is best", "heads": heads, "rows": body, "remarks": [said + "; – needs two seeds."]}


def paired(gaps: Sequence[float]) -> float | None:
    """The two-sided p-value of a paired t-test; None with fewer than two pairs, or where all gaps are one."""
    found = spread(gaps)
    if found is None or found[1] is None or found[1] == 0:
        return None
    from scipy.special import stdtr

    t = found[0] / (found[1] / math.sqrt(len(gaps)))
    return float(2 * stdtr(len(gaps) - 1, -abs(t)))


def repeats(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Of every row of a table the commands that repeat its runs, all settings, and the versions they were made with."""
    out = []
    for (data, protocol), rows in grounds(records).items():
        for row in rows:
            first = row.records[0]
            out.append(
                {
                    "name": row.label,
                    "where": f"{data} · {protocol}",
                    "state": ", ".join(dict.fromkeys(r.state for r in row.records if r.state != "finished")),
                    "commands": [repeating(record.run) for record in row.records],
                    "settings": first.run.get("settings", {}),
                    "versions": first.run.get("versions", {}),
                    "started": str(first.run.get("started", ""))[:10],
                    "fingerprint": str(first.run.get("fingerprint", ""))[:12],
                }
            )
    return out


def tables(records: Iterable[Record]) -> list[Table]:
    """A table a ground, and who is really better where there are seeds to say it."""
    out = []
    for ground, rows in grounds(records).items():
        out.append(comparison(ground, rows))
        better = significance(rows, ground[1])
        if better and any(len(row.finished) > 1 for row in rows):
            out.append(better | {"title": f"{ground[0]} · {ground[1]}: {better['title']}", "small": True})
    return out


def _spent(stated: Sequence[Any]) -> str:
    """The largest ε of some runs; run folders write an infinite one as text."""
    return budget(max((float(e) for e in stated if e is not None), default=None))
