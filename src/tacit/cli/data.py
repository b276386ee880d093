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
    """List every data set, whether it is on this machine, and where to get it."""
    from rich.table import Table

    from tacit.data import sources

    table = Table("data set", "what it is", "on this machine")
    missing = []
    for name in sources.names():
        here = name == "demo" or sources.find(name) is not None
        table.add_row(name, sources.describe(name), "yes" if here else "no")
        missing += [] if here else [name]
    screen.show(table)
    for name in missing:
        out.print(f"{name}: {sources.where(name)}", soft_wrap=True)


def show(name: str, min_interactions: o.AtLeast = 0) -> None:
    """Show counts, a histogram of interactions per user and, for an import, what was done."""
    from tacit.data import imported, sources

    with downloading() as progress:
        data = sources.load(name, min_interactions, progress)
    out.print(name, style="bold", end="")
    out.print(f": {sources.describe(name)}")
    _figures(data)
    for line in imported.done(data):
        out.print(f"- {line}", soft_wrap=True)


def fetch(name: str) -> None:
    """Download a data set into the cache."""
    from tacit.data import sources

    with downloading() as progress:
        path = sources.fetch(name, progress)
    out.print(f"{name} is in {path}")


def take_in(
    file: Path,
    name: Annotated[str, typer.Option("--name", help="what to call it")],
    user: o.OwnUser = None,
    item: o.OwnItem = None,
    time: o.OwnTime = None,
    title: Annotated[str | None, typer.Option("--title", help="column of item titles")] = None,
    group: Annotated[str | None, typer.Option("--group", help="column of the class of a user's device")] = None,
    rating: Annotated[str | None, typer.Option("--rating", help="column of ratings, for --min-rating")] = None,
    separator: o.Separator = None,
    columns: o.Columns = "",
    time_format: o.TimeFormat = None,
    min_rating: Annotated[
        float | None, typer.Option("--min-rating", help="only rows with at least this rating")
    ] = None,
    core: Annotated[
        int, typer.Option("--core", help="keep only users and items with at least this many interactions")
    ] = 0,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="skip and list rows without a user, an item or a readable time")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="replace an earlier import of that name")] = False,
) -> None:
    """Import your own file: text of any layout, compressed or not, Parquet, Arrow or SQLite."""
    from tacit.data import imported

    data = imported.import_file(
        file,
        name,
        user,
        item,
        time,
        title,
        group,
        rating=rating,
        separator=separator,
        columns=o.column_names(columns),
        time_format=time_format,
        min_rating=min_rating,
        core=core,
        skip_bad=skip_bad,
        replace=replace,
    )
    out.print(f"imported {name}; try: tacit run --data {name}, or for use: tacit train --data {name}")
    for line in imported.done(data):
        out.print(f"- {line}", soft_wrap=True)
    _figures(data)


def remove(name: str) -> None:
    """Remove a data set that was imported; the file it came from stays."""
    from tacit.data import imported

    imported.remove(name)
    out.print(f"{name} is removed")


def _figures(data: "Interactions") -> None:
    from tacit.data.summary import summarise
    from tacit.runs import report

    for line in report.data_figures(summarise(data)):
        out.print(line)
