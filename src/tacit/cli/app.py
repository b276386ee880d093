"""Every command by its name."""

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated

import click
import typer

from tacit.cli import data, inspection, methods, nodes, pages, runs, search, studies
from tacit.cli.screen import err, out
from tacit.errors import UserError

typer.core.HAS_RICH = False  # or plain help shows the backslashes of rich's escapes
SUGGEST = not hasattr(click.exceptions, "NoSuchCommand")  # a click that has it suggests commands itself

app = typer.Typer(
    help="Federated recommendation: learn from people's tastes while the tastes stay on their devices.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    suggest_commands=SUGGEST,
)
data_app = typer.Typer(
    help="Data sets: list, show, fetch, import, remove.",
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=SUGGEST,
)
app.add_typer(data_app, name="data")

COMMANDS: dict[str, Callable[..., None]] = {
    "run": runs.run,
    "train": runs.train,
    "compare": runs.compare,
    "search": search.search,
    "experiment": studies.experiment,
    "results": studies.results,
    "skew": studies.skew,
    "resume": runs.resume,
    "recommend": inspection.recommend,
    "diagnose": inspection.diagnose,
    "audit": inspection.audit,
    "forget": inspection.forget,
    "update": inspection.update,
    "report": pages.report,
    "leaderboard": pages.leaderboard,
    "studio": pages.studio,
    "serve": pages.serve,
    "keys": nodes.keys,
    "server": nodes.server,
    "node": nodes.node,
    "status": nodes.status,
    "remove": nodes.remove,
    "virtual": nodes.virtual,
    "methods": methods.methods,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
DATA: dict[str, Callable[..., None]] = {
    "list": data.names,
    "show": data.show,
    "fetch": data.fetch,
    "import": data.take_in,
    "remove": data.remove,
}
for name, command in DATA.items():
    data_app.command(name)(command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out.print(f"tacit {version('tacit')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    pass


def call() -> int:
    """Carry out the command that was typed; gives the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without these letters shows a question mark
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except UserError as error:
        err.print(f"tacit: {error}", soft_wrap=True)
        return 2
    except PermissionError as error:
        err.print(f"tacit: {error.filename} cannot be read or written: {error.strerror}", soft_wrap=True)
        return 2
    except BrokenPipeError:
        # the interpreter flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
