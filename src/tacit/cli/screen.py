"""What is printed and how: text as text, tables, and bars where a terminal shows them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

    from tacit.core.rounds import Plan, Progress
    from tacit.runs.compare import Row
    from tacit.runs.run import Watch

# ids, titles, paths and docstrings may hold brackets and colons: nothing in them is markup
_console = partial(Console, highlight=False, markup=False, emoji=False)
out = _console(width=None if sys.stdout.isatty() else 160)
err = _console(stderr=True)


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

    show(report.comparison(rows))
    if metrics:
        show(report.beside(rows, metrics))
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
def rounds_bar(kind: str = "auto", runs: int = 1) -> "Iterator[Callable[[str], Watch]]":
    """The run that moves, and above it a line for each of several that is finished; with `lines`, one line per round.

    The bar has the round, the validation metric and, for all runs together, the time left.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from tacit.errors import unknown

    if kind not in (known := ("auto", "bar", "lines", "none")):
        raise unknown("kind of progress", kind, known)
    lines, bars = kind == "lines", kind == "bar" or (kind == "auto" and err.is_terminal)
    shape = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    began = perf_counter()
    # no thread of its own: a process that has one cannot fork workers
    with Bar(*shape, console=err, transient=True, disable=not bars, auto_refresh=False) as bar:
        task = bar.add_task("", total=1, note="", left="", visible=False)
        finished: list[str] = []
        current: list[str] = []

        def end() -> None:
            """Say how the previous run ended."""
            if current and runs > 1 and (lines or bars):
                err.print(current[-1], soft_wrap=True)
            finished.extend(current[-1:])
            current.clear()

        def watching(name: str) -> "Watch":
            end()
            from tacit.runs.lines import line

            started = perf_counter()
            title = f"{len(finished) + 1}/{runs} {name}" if runs > 1 else name
            bar.reset(task, description=title, total=1, note="", left="", visible=True)
            current.append(f"{title}: already there")

            def watch(progress: "Progress", plan: "Plan") -> None:
                now = perf_counter()
                valid = next((r.valid for r in reversed(progress.history) if r.valid), None)
                note = f"valid {plan.select} {valid[plan.select]:.4f}" if valid else ""
                share = (len(finished) + progress.round / plan.rounds) / runs  # of all runs
                left = duration((now - began) / share * (1 - share))
                if lines:
                    err.print(f"{title}: {line(progress, plan)}  {left} left", soft_wrap=True)
                bar.update(
                    task, completed=progress.round, total=plan.rounds, note=note, left=f"{left} left", refresh=True
                )
                best = f"best valid {plan.select} {progress.best:.4f} in round {progress.best_round}" if valid else ""
                current[:] = [f"{title}: {progress.round} rounds  {best}  {now - started:.1f} s"]

            return watch

        yield watching
        end()


def duration(seconds: float) -> str:
    """Seconds for people: 42 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def show(table: "Table") -> None:
    """A table as wide as it needs to be: in a narrower window its lines break, and nothing is left out."""
    from rich.measure import Measurement

    for column in (column for column in table.columns if column.no_wrap):
        lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
        column.min_width = max(map(len, lines), default=0)
    plenty = Console(width=10_000)
    least = Measurement.get(plenty, plenty.options, table).minimum
    console = out if least <= out.width else _console(width=least)
    console.print(table, soft_wrap=console is not out)
