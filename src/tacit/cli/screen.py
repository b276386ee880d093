"""What is printed and how: text as text, tables, and bars where a terminal shows them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from tacit.core.rounds import Plan, Progress
    from tacit.runs.compare import Row
    from tacit.runs.run import Watch

# ids, titles, paths and docstrings may hold brackets and colons: nothing in them is markup
out = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def stopping(advice: str) -> Iterator[None]:
    """Ctrl-C ends with a sentence that says what is left."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"stopped; {advice}", soft_wrap=True)
        sys.exit(130)


def table(rows: "Sequence[Row]", metrics: tuple[str, ...] = ()) -> None:
    """Methods side by side, further metrics where asked for, and what must be said of them."""
    from tacit.runs import report

    out.print(report.comparison(rows))
    if metrics:
        out.print(report.beside(rows, metrics))
    for line in report.remarks(rows):
        out.print(line)


@contextmanager
def downloading() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for downloads; silent when output is not a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    shape = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*shape, console=err, transient=True, disable=not err.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if not err.is_terminal:
                return
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total or None)
            bar.update(tasks[what], completed=done, total=total or None)

        yield show


@contextmanager
def rounds_bar() -> "Iterator[Callable[[str], Watch]]":
    """A bar with the round, the validation metric and the time left; none when output is not a terminal."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    shape = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # no thread of its own: a process that has one cannot fork workers
    with Bar(*shape, console=err, transient=True, disable=not err.is_terminal, auto_refresh=False) as bar:

        def watching(name: str) -> "Watch":
            task = bar.add_task(name, total=1, note="")

            def watch(progress: "Progress", plan: "Plan") -> None:
                valid = next((r.valid for r in reversed(progress.history) if r.valid), None)
                note = f"valid {plan.select} {valid[plan.select]:.4f}" if valid else ""
                bar.update(task, completed=progress.round, total=plan.rounds, note=note, refresh=True)

            return watch

        yield watching
