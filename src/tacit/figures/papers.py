"""Published tables and figures beside measured ones, from the files of `experiments/` and the runs they name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.errors import UserError
from tacit.figures import report
from tacit.figures.build import Spec, curves, sweep
from tacit.figures.records import read as record_of
from tacit.figures.rows import REFERENCES, Row
from tacit.figures.tables import Cell as TableCell
from tacit.figures.tables import Table, repeats
from tacit.runs import experiments, paper_tables
from tacit.runs.cells import Cell
from tacit.runs.experiments import Experiment, Found


def of_file(file: Path, runs: Path | None = None, rounds: int | None = None) -> dict[str, Any]:
    """Title, tables, figures and runs of an experiment, from what is finished; `rounds` in place of the file's."""
    asked = experiments.altered(experiments.read(file), rounds=rounds)
    where = runs or Path("runs") / file.stem
    found = experiments.collect(asked, where)
    tables: list[Table] = []
    figures: list[Spec] = []
    for place in asked.data:
        if paper_tables.begun(place.name, found):
            tables.append(table(asked, place.name, found))
            figures += [*sweeps(asked, place.name, found), *_filled(beside_published(asked, place.name, found))]
            figures += _courses(asked, place.name, where)
    plans = experiments.planned(asked)
    there = [record for plan in plans if (record := record_of(where / plan.folder)) is not None]
    done = sum(len(cell.runs) for cell in found.values())
    return {
        "name": file.stem,
        "title": asked.title,
        "source": asked.source,
        "note": asked.note,
        "done": done,
        "planned": max(len(plans), done),
        "command": f"tacit experiment {file}",
        "tables": tables,
        "figures": [spec | {"name": f"{file.stem}-{spec['name']}"} for spec in figures],
        "runs": repeats(there),
    }


def table(asked: Experiment, data: str, found: Found) -> Table:
    """A line a row and metric: what papers print, what came out here, and whether the two agree."""
    first, *others = paper_tables.headings(asked)
    heads: list[TableCell] = [{"text": first, "left": True}, {"text": "metric", "left": True}]
    for text in others:
        name, _, note = text.partition(" (")
        heads.append({"text": name, "note": note.rstrip(")")})
    body: list[list[TableCell]] = []
    for label, *cells in paper_tables.table_rows(asked, data, found):
        for number, metric in enumerate(asked.metrics):
            texts = [cell[number] if len(cell) > 1 else cell[0] if not number else "" for cell in cells]
            row: list[TableCell] = [{"text": "" if number else label[0]}, {"text": metric}]
            body.append([*row, *(_split(text) for text in texts)])
    title = asked.title if len(asked.data) == 1 else f"{asked.title}: {data}"
    notes = [f"Published: {asked.source}."] if asked.source else []
    return {"title": title, "heads": heads, "rows": body, "remarks": notes + ([asked.note] if asked.note else [])}


def _split(text: str) -> TableCell:
    """A mean with its deviation smaller behind."""
    value, _, deviation = text.partition(" ±")
    return {"text": value, "spread": deviation or None}


def beside_published(asked: Experiment, data: str, found: Found) -> Spec | None:
    """Published and measured figures of every row on one axis."""
    told = {name for line in asked.run for entry in line.published.get(data, []) for name in entry}
    metric = next((m for m in reversed(asked.metrics) if m in told), asked.metrics[0])
    points = []
    for label, line, _, place in experiments.rows(asked):
        printed = paper_tables.printed(line, data, place, metric)
        points += [{"row": label, "x": value, "of": "published", "title": source} for source, value in printed]
        for protocol in asked.protocols:
            ours = found.get((label, data, protocol), Cell(())).figure(metric, paper_tables.kind_of(asked, protocol))
            if ours:
                points.append({"row": label, "x": ours[0], "dev": ours[1], "of": protocol, "title": protocol})
    if not any(p["of"] == "published" for p in points) or not any(p["of"] != "published" for p in points):
        return None
    shown = list(dict.fromkeys(p["row"] for p in points))
    return {
        "kind": "pairs",
        "name": f"published-{data}",
        "title": "Published beside measured",
        "where": data,
        "note": f"{metric}, hollow where a paper prints it, filled where it was measured here; "
        "strict among the same 99 others.",
        "x": {"label": metric},
        "rows": shown,
        "of": ["published", *asked.protocols],
        "points": points,
    }


def sweeps(asked: Experiment, data: str, found: Found) -> list[Spec]:
    """One figure per setting and metric, one line per row and protocol."""
    by_setting: dict[str, list[experiments.Line]] = {}
    for line in asked.run:
        numbers = line.sweep is not None and all(isinstance(v, int | float) for v in line.sweep.values)
        if line.sweep is not None and numbers and (not line.data or data in line.data):
            by_setting.setdefault(line.sweep.setting, []).append(line)
    out = []
    for setting, lines in by_setting.items():
        for metric in asked.metrics:
            drawn = []
            for line in lines:
                values = line.sweep.values if line.sweep else []
                for protocol in asked.protocols:
                    points = []
                    for value in values:
                        cell = found.get((f"{line.label} {setting}={value}", data, protocol), Cell(()))
                        if (figure := cell.figure(metric, paper_tables.kind_of(asked, protocol))) is not None:
                            points.append((float(value), figure))
                    if points:
                        drawn.append((f"{line.label}, {protocol}", points))
            if drawn:
                spec = sweep(setting, metric, drawn, f"{metric} by {setting} on {data}.")
                out.append(spec | {"name": f"{spec['name']}-{metric}-{data}", "where": f"{data} · {metric}"})
    return out


def _courses(asked: Experiment, data: str, where: Path) -> list[Spec]:
    """How fast every row learns, where the experiment is about that."""
    if any(line.sweep for line in asked.run):
        return []
    rows: dict[str, dict[str, list[Any]]] = {}
    for plan in experiments.planned(asked, data=[data]):
        if (record := record_of(where / plan.folder)) is not None:
            rows.setdefault(plan.asked.protocol, {}).setdefault(plan.label, []).append(record)
    out = []
    for protocol, found in rows.items():
        made = [
            Row(label, -1 if records[0].method in REFERENCES else place, tuple(records))
            for place, (label, records) in enumerate(found.items())
        ]
        if spec := curves(made, f" on {data}, {protocol}"):
            out.append(spec | {"name": f"{spec['name']}-{data}-{protocol}", "where": f"{data} · {protocol}"})
    return out


def beside(shown: dict[str, Any] | None, files: Sequence[Path], title: str) -> dict[str, Any]:
    """A report of experiments, or these behind a report of runs."""
    found = [of_file(file) for file in files]
    if shown is None and not any(one["tables"] for one in found):
        raise UserError(
            f"nothing of {files[0].stem} is finished in runs/{files[0].stem}; {found[0]['command']} runs it"
        )
    if shown is None:
        first = found[0]
        shown = report.empty(title or first["title"], f"{first['done']} of {first['planned']} runs are finished.")
    return shown | {
        "tables": [*shown["tables"], *(t for one in found for t in one["tables"])],
        "figures": [*shown["figures"], *(f for one in found for f in one["figures"])],
        "runs": [*shown["runs"], *(r for one in found for r in one["runs"])],
    }


def _filled(spec: Spec | None) -> list[Spec]:
    return [spec] if spec else []
