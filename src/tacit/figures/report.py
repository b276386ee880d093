"""One file with everything in it: tables, figures, settings, versions and the commands that repeat the runs."""

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from tacit.errors import UserError
from tacit.figures.build import Spec, comparison, histogram, lorenz
from tacit.figures.inside import AUDITS, DIAGNOSTICS, audits, clusters, planes, poisoning, spectra, trajectories
from tacit.figures.records import Record
from tacit.figures.tables import repeats, tables


def contents(records: Sequence[Record], title: str = "") -> dict[str, Any]:
    """What a report of these runs shows, as plain JSON."""
    data = list(dict.fromkeys(str(r.config.get("data")) for r in records))
    methods = list(dict.fromkeys(r.method for r in records))
    count = (
        f"{len(records)} runs of {len(methods)} methods"
        if len(methods) > 1
        else f"{_runs(len(records))} of {methods[0]}"
    )
    unfinished = sum(r.summary is None for r in records)
    title = title or f"{', '.join(methods[:3])}{' and others' if len(methods) > 3 else ''} on {', '.join(data)}"
    lead = f"{count} on {', '.join(data)}" + (f"; {unfinished} not finished." if unfinished else ".")
    return empty(title, lead) | {"tables": tables(records), "figures": figures(records), "runs": repeats(records)}


def empty(title: str, lead: str) -> dict[str, Any]:
    """A report with nothing in it yet."""
    made = f"Made by tacit {version('tacit')} on {datetime.now():%-d %B %Y}. For a PDF, print this page to a file."
    return {"title": title, "lead": lead, "tables": [], "figures": [], "runs": [], "made": made}


def figures(records: Sequence[Record]) -> list[Spec]:
    """All figures of these runs: the comparison, then what single runs recorded."""
    out = comparison(records)
    for record in records:
        lines = record.lines(DIAGNOSTICS)
        for spec in (*spectra(lines), clusters(lines), planes(record), poisoning(record)):
            if spec:
                out.append(spec | {"name": f"{spec['name']}-{record.path.name}", "where": record.path.name})
    for folder in dict.fromkeys(record.path.parent for record in records):
        if found := trajectories(folder):
            out.append(found)
    out += histories(list(dict.fromkeys(str(record.config.get("data")) for record in records)))
    if found := audits([line for record in records for line in record.lines(AUDITS)]):
        out.append(found)
    return out


def histories(names: Sequence[str]) -> list[Spec]:
    """How long users' histories are and how popular items, of the data sets that are on this machine."""
    from tacit.data import sources
    from tacit.data.summary import summarise

    there = [name for name in names if name in sources.names() and (name == "demo" or sources.find(name))]
    found = {name: summarise(sources.load(name)) for name in there}
    bars = [histogram(name, summary.histogram) for name, summary in found.items()]
    return [*bars, lorenz({name: summary.lorenz for name, summary in found.items()})] if found else []


def page(shown: dict[str, Any]) -> str:
    """The HTML of a report: no other file and no network is needed to read it."""
    code = "\n".join(_module(asset(f"page/{name}.js")) for name in ("parts", "kinds", "draw", "table", "report"))
    return Template(asset("page/report.html")).substitute(
        title=escape(shown["title"]),
        css=asset("page/look.css"),
        contents=json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c"),
        d3=asset("vendor/d3.min.js"),
        plot=asset("vendor/plot.min.js"),
        code=code,
    )


def write(shown: dict[str, Any], out: Path) -> None:
    """Put a report where it was asked for."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(shown), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; name another --out") from error


@cache
def asset(name: str) -> str:
    """A file that pages are made of."""
    return (files("tacit.figures") / name).read_text(encoding="utf-8")


def _module(text: str) -> str:
    """A module as part of a larger one."""
    kept = [line for line in text.splitlines() if not line.startswith("import ")]
    return "\n".join(kept).replace("export ", "")


def _runs(count: int) -> str:
    return "one run" if count == 1 else f"{count} runs"
