"""`report`, `studio` and `serve`: results and recommendations for people and programs to look at."""

from collections.abc import Sized
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.screen import out


def report(
    targets: Annotated[
        list[Path], typer.Argument(metavar="RUNS…", help="run folders, folders of runs, experiment files")
    ],
    page: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("report.html"),
    title: Annotated[str, typer.Option("--title", help="its title")] = "",
) -> None:
    """Write one page with tables, figures, settings and commands; it opens without any network."""
    from tacit.figures import records, report

    files = [path for path in targets if path.suffix == ".toml"]
    folders = [path for path in targets if path.suffix != ".toml"]
    shown = report.contents(records.named(folders), title) if folders else None
    if files:
        from tacit.figures import papers

        shown = papers.beside(shown, files, title)
    assert shown is not None
    report.write(shown, page)
    out.print(f"{_counted(shown['tables'], 'table')} and {_counted(shown['figures'], 'figure')} → {page}")


def leaderboard(
    targets: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUNS…]", help="folders to add: of searches, of runs; none: redraw")
    ] = None,
    page: Annotated[
        Path, typer.Option("--out", help="the page; its figures are kept beside it as .json, its picture as .svg")
    ] = Path("leaderboard.md"),
) -> None:
    """Add finished runs under strict to a leaderboard: a page in Markdown, its picture, and the figures of both."""
    from tacit.figures import leaderboard_page, records

    added, total = leaderboard_page.update(records.find(targets or []), page)
    runs = "1 run" if added == 1 else f"{added} runs"
    out.print(f"{runs} with test figures under strict read, {total} in all → {page}", soft_wrap=True)


def _counted(things: Sized, word: str) -> str:
    return f"{len(things)} {word}{'s' * (len(things) != 1)}"


def studio(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUNS]", help="folders of runs, or a node's")] = None,
    host: Annotated[str, typer.Option("--host", help="address to listen on; anything but this machine's is public")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="0: any free port")] = 8480,
    experiments: Annotated[Path, typer.Option("--experiments", help="experiment files to show")] = Path("experiments"),
) -> None:
    """Show runs on a page of this machine: live, compared, explained; Ctrl-C ends it."""
    from tacit.studio.start import start

    start(runs or [Path("runs")], host, port, experiments, lambda line: out.print(line, soft_wrap=True))


def serve(
    folder: Annotated[Path, typer.Argument(metavar="RUN|NODE", help="a run's folder, or a node's own")],
    host: Annotated[str, typer.Option("--host", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: any free port")] = 8481,
) -> None:
    """Answer applications over HTTP: lists by user or by items, reasons, batches; Ctrl-C ends it."""
    from tacit.serving.start import start

    start(folder, host, port, lambda line: out.print(line, soft_wrap=True))
