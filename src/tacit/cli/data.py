"""`tacit data`: which data sets there are, and one's own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import options as o
from tacit.cli import screen
from tacit.cli.screen import downloading, out

if TYPE_CHECKING:
    from tacit.data.interactions import Interactions


def names() -> None:
    """Every data set, and whether it is on this machine."""
    from rich.table import Table

    from tacit.data import sources

    table = Table("data set", "what it is", "on this machine")
    for name in sources.names():
        here = name == "demo" or sources.find(name) is not None
        table.add_row(name, sources.describe(name), "yes" if here else "no")
    screen.show(table)


def show(name: str, min_interactions: o.AtLeast = 0) -> None:
    """Counts and a histogram of interactions per user."""
    from tacit.data import sources

    with downloading() as progress:
        data = sources.load(name, min_interactions, progress)
    out.print(name, style="bold", end="")
    out.print(f": {sources.describe(name)}")
    _figures(data)


def fetch(name: str) -> None:
    """Download a data set into the cache."""
    from tacit.data import sources

    with downloading() as progress:
        path = sources.fetch(name, progress)
    out.print(f"{name} is in {path}")


def take_in(
    file: Path,
    name: Annotated[str, typer.Option("--name", help="what to call it")],
    user: o.UserColumn = "user",
    item: o.ItemColumn = "item",
    time: o.TimeColumn = None,
    title: Annotated[str | None, typer.Option("--title", help="column of item titles")] = None,
    group: Annotated[str | None, typer.Option("--group", help="column of the class of a user's device")] = None,
) -> None:
    """Take in your own CSV or Parquet file; afterwards it is a data set like any other."""
    from tacit.data import imported

    data = imported.import_file(file, name, user, item, time, title, group)
    out.print(f"imported {name}; try: tacit run --data {name}")
    _figures(data)


def _figures(data: "Interactions") -> None:
    from tacit.data.summary import summarise
    from tacit.runs import report

    for line in report.data_figures(summarise(data)):
        out.print(line)
