"""A published table in text: what papers print, what came out here, and whether the two agree."""

import math
from typing import Literal

from tacit.data.protocols import Protocol
from tacit.runs.cells import FIGURES, Cell, Figure, Kind
from tacit.runs.experiments import Experiment, Found, Line, rows

NOTHING = "nothing is finished yet"
NEAR = 0.1  # of a published figure: reproduced
OTHER_DATA = "on "  # how a source begins whose figures are of other data than ours
Word = Literal["reproduced", "above", "below", "between"]


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


def verdict(told: list[tuple[str, float]], ours: Figure | None) -> tuple[Word, float] | None:
    """Whether a figure agrees with one that is published, and its distance from the nearest as a share of that one.

    Several papers may print it: it is above or below where it is that of all, and between them otherwise. None where
    nothing is measured or published, or where what is published is of other data.
    """
    values = [value for source, value in told if value and not source.startswith(OTHER_DATA)]
    if ours is None or not values:
        return None
    gaps = [ours[0] / value - 1 for value in values]
    nearest = min(gaps, key=abs)
    if abs(nearest) <= NEAR + 1e-9:  # 0.55 beside 0.5 is one, however it is rounded
        return "reproduced", nearest
    if min(gaps) < 0 < max(gaps):
        return "between", nearest
    return "above" if nearest > 0 else "below", nearest


def kind_of(experiment: Experiment, protocol: Protocol) -> Kind:
    """What of a protocol's runs compares with papers, which rank one of a hundred."""
    return "valid" if experiment.shown == "valid" else "sampled" if protocol == "strict" else "test"


def verdicts(
    experiment: Experiment, data: str, found: Found, row: tuple[str, Line, int | None]
) -> list[tuple[Word, float] | None]:
    """Of a row (its label, its line, its place in a sweep), one a metric."""
    label, line, place = row
    protocol = next((p for p in experiment.protocols if p != "strict"), experiment.protocols[0])
    cell, kind = found.get((label, data, protocol), Cell(())), kind_of(experiment, protocol)
    return [verdict(printed(line, data, place, m), cell.figure(m, kind)) for m in experiment.metrics]


def markdown(experiment: Experiment, found: Found) -> str:
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


def begun(data: str, found: Found) -> bool:
    """Whether a run on a data set is finished."""
    return any(cell.runs for (_, where, _), cell in found.items() if where == data)


def headings(experiment: Experiment) -> list[str]:
    """The columns of a table."""
    out = ["method", "published"]
    for protocol in experiment.protocols:
        out += _kinds(experiment, protocol)
    told = _told(experiment)
    if told & set(experiment.metrics):
        out.append("verdict")
    out += [FIGURES[f][0] + (" (published)" if f in told else "") for f in experiment.figures]
    return [*out, "seeds"]


def table_rows(experiment: Experiment, data: str, found: Found) -> list[list[list[str]]]:
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
        if _told(experiment) & set(metrics):
            cells.append([_verdict(one) for one in verdicts(experiment, data, found, (label, line, place))])
        first = found.get((label, data, experiment.protocols[0]), Cell(()))
        cells += [[_cost(first.cost(f), printed(line, data, place, f))] for f in experiment.figures]
        cells.append([str(counts[0]) if len(set(counts)) == 1 else "/".join(map(str, counts))])
        out.append(cells)
    return out


def _told(experiment: Experiment) -> set[str]:
    """The figures of which something is published."""
    return {name for line in experiment.run for entries in line.published.values() for e in entries for name in e}


def _verdict(found: tuple[Word, float] | None) -> str:
    return "–" if found is None else f"{found[0]}, {found[1]:+.0%}".replace("-", "−")


def _kinds(experiment: Experiment, protocol: Protocol) -> dict[str, Kind]:
    """Heading -> what is shown of a protocol's runs."""
    if experiment.shown == "valid":
        return {f"{protocol}, validation": "valid"}
    if protocol == "strict":
        return {"strict (1 of 100)": "sampled", "strict (all items)": "test"}
    return {f"{protocol} (1 of 100)" if protocol in ("paper", "symmetric") else protocol: "test"}


def _one_table(experiment: Experiment, data: str, found: Found) -> list[str]:
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


def _text(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    value, spread = figure
    return _number(value) + (f" ±{spread:.3f}".replace("±0.", "±.") if spread is not None else "")


def _cost(measured: Figure | None, told: list[tuple[str, float]]) -> str:
    """A figure of ours, and behind it what papers print of it."""
    text = "–" if measured is None else _number(measured[0], 4 if told else 3)
    return f"{text} ({_published(told)})" if told else text


def _number(value: float, digits: int = 4) -> str:
    return "∞" if value == math.inf else f"{value:.{digits}f}"
