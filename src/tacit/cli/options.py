"""Options that several commands have, declared once, and how their text is read."""

from pathlib import Path
from typing import Annotated

import typer

from tacit.errors import UserError

MethodName = Annotated[str, typer.Argument(help="`tacit methods` lists them")]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR")]
DataName = Annotated[str, typer.Option("--data", help="data set; `tacit data list` lists them")]
ProtocolName = Annotated[str, typer.Option("--protocol", help="strict, paper, symmetric, ratio or fileorder")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="rounds; the method's own by default")]
Seed = Annotated[int, typer.Option("--seed")]
Seeds = Annotated[str, typer.Option("--seeds", help="e.g. 0,1,2")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="a setting of the method, key=value; repeatable")]
Plug = Annotated[
    str | None, typer.Option("--plug", help="a plug-in over the method, e.g. plgc or plgc:beta=0.5,gamma=0.01")
]
Clients = Annotated[int, typer.Option("--clients", help="number of clients with many users each; 0: one per user")]
AtLeast = Annotated[int, typer.Option("--min-interactions", help="only users with at least this many")]
Select = Annotated[str, typer.Option("--select", help="validation metric that chooses the reported round")]
Shown = Annotated[
    str, typer.Option("--metrics", help="also show these, e.g. coverage,novelty; module:Class for one of your own")
]
Every = Annotated[int, typer.Option("--evaluate-every", help="validate every N rounds")]
EvaluateUsers = Annotated[
    int | None,
    typer.Option(
        "--evaluate-users",
        min=0,
        help="validate on this many users, the same for every method; 0: all. By default 10,000 of more than 50,000",
    ),
]
Patience = Annotated[int, typer.Option("--patience", help="stop after N validations without improvement")]
Threads = Annotated[int, typer.Option("--threads", min=0, max=1024, help="workers; 0: one per core")]
Chunk = Annotated[int, typer.Option("--chunk", help="most clients to stack at a time")]
Noise = Annotated[
    str | None,
    typer.Option("--ldp", help="noise on uploads: kind=laplace,clip=0.5,scale=0.1, or epsilon=1 instead of scale"),
]
Mapped = Annotated[bool, typer.Option("--mapped", help="keep the clients' state in memory-mapped files")]
Central = Annotated[
    str | None,
    typer.Option("--dp", help="noise that clients share, with --secure: clip=1,noise=1, or epsilon=1 instead of noise"),
]
Secure = Annotated[bool, typer.Option("--secure", help="the server sees only sums of uploads (secure aggregation)")]
Bound = Annotated[
    float,
    typer.Option("--bound", min=0, help="clip a client's change to this many times the usual one, e.g. 3; 0: never"),
]
Robust = Annotated[str, typer.Option("--robust", help="median or trimmed, instead of the mean of uploads")]
Sanity = Annotated[bool, typer.Option("--sanity/--no-sanity", help="show popularity, EASE and the oracle beside it")]
AsJson = Annotated[bool, typer.Option("--json", help="print the summary as the last line")]
ProgressKind = Annotated[
    str,
    typer.Option("--progress", help="bar, lines (one per round) or none; auto: a bar in a terminal, none in a pipe"),
]
Deadline = Annotated[float, typer.Option("--deadline", min=0.1, help="seconds a round waits for replies")]
NodesOut = Annotated[Path, typer.Option("--out", help="the run's folder; an unfinished run in it is resumed")]
UserColumn = Annotated[str, typer.Option("--user", help="column of user ids")]
ItemColumn = Annotated[str, typer.Option("--item", help="column of item ids")]
TimeColumn = Annotated[str | None, typer.Option("--time", help="column of times")]
OwnUser = Annotated[str | None, typer.Option("--user", help="column of user ids; recognised by default")]
OwnItem = Annotated[str | None, typer.Option("--item", help="column of item ids; recognised by default")]
OwnTime = Annotated[str | None, typer.Option("--time", help="column of times; recognised by default")]
Separator = Annotated[
    str | None, typer.Option("--separator", help="between fields: ',', ';', '::', tab, space; recognised by default")
]
Columns = Annotated[
    str, typer.Option("--columns", help="column names in order, e.g. user,item,rating,time; '-' skips one")
]
TimeFormat = Annotated[str | None, typer.Option("--time-format", help="e.g. '%d/%m/%Y %H:%M'; recognised by default")]


def column_names(columns: str) -> list[str]:
    """What `--columns` names."""
    return [column.strip() for column in columns.split(",")] if columns else []


def typed(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def plugged(names: list[str], plug: str | None) -> tuple[list[str], dict[str, str]]:
    """The methods with `plug` over each, and the settings written behind it."""
    from tacit.config import parse_pairs

    if plug is None:
        return names, {}
    name, _, rest = plug.partition(":")
    pairs = parse_pairs(rest.split(",") if rest else [])
    return [f"{name}+{method}" for method in names], {f"{name}_{key}": value for key, value in pairs.items()}


def numbers(seeds: str, option: str = "--seeds") -> list[int]:
    """Seeds as they are written: 0,1,2."""
    try:
        found = [int(part) for part in seeds.split(",")]
    except ValueError:
        raise UserError(f"{option} {seeds} is not a list of whole numbers; write it as in 0,1,2") from None
    if min(found) < 0:
        raise UserError(f"{option} {seeds}: a seed is 0 or more")
    if len(set(found)) < len(found):
        raise UserError(f"{option} {seeds} names a seed twice, and the same seed gives the same run; name each once")
    return found
