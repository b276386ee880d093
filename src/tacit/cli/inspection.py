"""`recommend`, `diagnose`, `audit`, `forget` and `update`: what can be done with an existing run."""

import dataclasses
import json
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.screen import err, out, show
from tacit.errors import UserError

if TYPE_CHECKING:
    import polars as pl

    from tacit.runs.run import Recommendation


def recommend(
    folder: o.RunFolder,
    user: Annotated[str | None, typer.Option("--user", help="id of a user in the data set")] = None,
    items: Annotated[
        list[str] | None,
        typer.Option("--items", help="for somebody new: ids or titles of what they have, oldest first, as in 7,12,9"),
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="lists for everyone, written to --out")] = False,
    k: Annotated[int, typer.Option("-k", min=1, help="length of the list")] = 10,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="also show what the evaluation held out for this user, marked")
    ] = False,
    file: Annotated[Path | None, typer.Option("--out", help="write a .csv or .parquet file instead")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Recommend what a user, or somebody new, does not have yet: from a model, a run or a node's folder."""
    if (user is not None) + bool(items) + everyone != 1:
        raise UserError("recommend needs one of --user ID, --items ID,ID (for somebody new) or --all")
    if everyone and file is None:
        raise UserError("--all writes lists for everyone into a file; name it, as in --out lists.parquet or lists.csv")
    known: list[str]
    found: list[Recommendation]
    if (folder / "node.json").is_file():
        from tacit.deploy import commands

        if user is None or file is not None:
            raise UserError(f"{folder} is a node's folder, which has lists for its own users: --user ID")
        known, found = commands.recommend(folder, user, k)
    else:
        from tacit.runs.model import load

        model = load(folder)
        if model.run.folder.summary is None:
            err.print(
                f"{folder} is not finished: these lists are of its best round so far; tacit resume {folder}",
                soft_wrap=True,
            )
        if everyone:
            _written(model.lists(k), file)
            return
        if user is not None:
            known, found = model.recent(user), model.recommend(user, k, held_out=held_out)
        else:
            had = list(dict.fromkeys(item for text in items or [] for item in model.items_in(text)))
            known, found = [model.title(item) for item in had], model.recommend_items(had, k)
        if file is not None:
            _written(found.frame("polars"), file)
            return
    if as_json:
        print(json.dumps([dataclasses.asdict(line) for line in found]))
    else:
        from tacit.runs import report

        show(report.recommendations(user, known, found))


def _written(frame: "pl.DataFrame", file: Path | None) -> None:
    """A frame in a file whose ending says of which kind."""
    from tacit.data.folders import writing

    if file is None or file.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"--out {file} has an unknown ending; known: .csv, .parquet")
    with writing(file, "name another --out") as place:
        if file.suffix.lower() == ".csv":
            frame.write_csv(place)
        else:
            frame.write_parquet(place)
    out.print(f"{len(frame):,} lines → {file}")


def diagnose(
    folder: o.RunFolder,
    as_json: Annotated[
        bool, typer.Option("--json", help="one line per table, group and round, with all singular values")
    ] = False,
    planes: Annotated[
        bool, typer.Option("--plane", help="also map some clients' tables by t-SNE, for a report")
    ] = False,
) -> None:
    """Show how a run's item tables use their dimensions and follow its clusters, at the best and recorded rounds."""
    from tacit.runs import diagnose, report
    from tacit.runs.run import reopen

    run = reopen(folder)
    if planes:
        from tacit.runs.plane import plane

        plane(run)
    found = diagnose.everything(run)
    if as_json:
        for one in found:
            print(diagnose.as_json(one))
        return
    show(report.diagnostics(found))
    out.print(f"The best round by validation is {run.folder.best_round}.")
    if parted := report.clusters(found):
        show(parted)
    for line in (*report.cluster_remarks(found), *report.likeness_remarks(found)):
        out.print(line)


def audit(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…")],
    ldp: Annotated[list[str] | None, typer.Option("--ldp", help="also try this noise on uploads; repeatable")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="also try secure sums")] = False,
    dp: Annotated[list[str] | None, typer.Option("--dp", help="also try this noise on secure sums; repeatable")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="rounds to observe")] = 5,
    clients: Annotated[int, typer.Option("--clients", min=0, help="clients to attack; 0: all")] = 100,
    k: Annotated[int, typer.Option("-k", min=1, help="items an attack may name")] = 10,
    at: Annotated[str, typer.Option("--at", help="where to continue the run from: last, best or start")] = "last",
    poisoned: Annotated[
        bool, typer.Option("--poison", help="instead, play clients that push an item, with and without each defence")
    ] = False,
    interactions: Annotated[int, typer.Option("--target", min=1, help="how many interactions the pushed item has")] = 6,
    bound: Annotated[float, typer.Option("--bound", min=0.01, help="with --poison, the bound to try as a defence")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="one line per run and protection")] = False,
) -> None:
    """Play a curious server that infers from uploads who has which items or, with --poison, malicious clients."""
    from tacit.runs import audit, report
    from tacit.runs.files import to_json

    if poisoned:
        _poison(folders, rounds, at, interactions, bound, as_json)
        return
    protections: list[dict[str, Any]] = [{"ldp": noise} for noise in ldp or []]
    protections += [{"secure": True}] * secure + [{"secure": True, "dp": noise} for noise in dp or []]
    found = []
    for one in audit.audit(folders, protections, rounds, clients, k, at):
        found.append(one)
        audit.write_down(one)
        if as_json:
            print(to_json(dataclasses.asdict(one)))
    if not as_json:
        show(report.audits(found))
        for line in report.audit_remarks(found):
            out.print(line)


def _poison(folders: list[Path], rounds: int, at: str, interactions: int, bound: float, as_json: bool) -> None:
    from tacit.runs import poison, report
    from tacit.runs.files import to_json

    found = []
    for one in poison.poison(folders, rounds, at, interactions, bound):
        found.append(one)
        if as_json:
            print(to_json(dataclasses.asdict(one)), flush=True)
    if not as_json:
        show(report.poisonings(found))
        for line in report.poison_remarks(found):
            out.print(line)


def forget(folder: o.RunFolder, user: Annotated[str, typer.Option("--user", help="id of a user in the run")]) -> None:
    """Remove a user exactly, as if never there: from a run, or from a node's folder and its future uploads."""
    if (folder / "node.json").is_file():
        from tacit.deploy import commands

        first = commands.forget(folder, user)
        out.print(f"user {user} {'is' if first else 'was already'} forgotten here: delete it from your own file too")
        return
    from tacit.runs import life
    from tacit.runs.run import reopen

    run = reopen(folder)
    began = perf_counter()
    life.forget(run, user)
    out.print(f"user {user} is forgotten ({perf_counter() - began:.2f} s)")


def update(
    folder: o.RunFolder,
    file: Annotated[Path, typer.Argument(help="new interactions, in any layout that tacit data import reads")],
    user: o.OwnUser = None,
    item: o.OwnItem = None,
    time: o.OwnTime = None,
    separator: o.Separator = None,
    columns: o.Columns = "",
    time_format: o.TimeFormat = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="skip rows without a user, an item or a readable time")
    ] = False,
) -> None:
    """Add new interactions and new users to a run, as if they had been there from the start."""
    from tacit.runs import life
    from tacit.runs.run import reopen

    run = reopen(folder)
    began = perf_counter()
    done = life.update(
        run,
        file,
        user,
        item,
        time,
        time_format=time_format,
        skip_bad=skip_bad,
        separator=separator,
        columns=o.column_names(columns),
    )
    for line in done.notes:
        out.print(f"- {line}", soft_wrap=True)
    out.print(
        f"{done.interactions:,} interactions of {done.users:,} users taken in, {done.new_users:,} of them new; "
        f"left out: {done.unknown_items:,} of unknown items, {done.repeated:,} repeated "
        f"({perf_counter() - began:.2f} s)"
    )
