"""`run`, `train`, `compare` and `resume`: training, and what comes out of it."""

import dataclasses
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.screen import downloading, out, rounds_bar, show, stopping, table

if TYPE_CHECKING:
    from tacit.core.rounds import Plan, Progress
    from tacit.runs.run import Run, Watch

EASE_ITEMS = 8_000  # beyond this many items, EASE as a reference takes longer than what it stands beside


def run(
    context: typer.Context,
    method: o.MethodName = "tally",
    data: o.DataName = "ml-100k",
    protocol: o.ProtocolName = "strict",
    rounds: o.Rounds = None,
    seed: o.Seed = 0,
    settings: o.Settings = None,
    plug: o.Plug = None,
    clients: o.Clients = 0,
    min_interactions: o.AtLeast = 0,
    select: o.Select = "NDCG@10",
    metrics: o.Shown = "",
    evaluate_every: o.Every = 1,
    evaluate_users: o.EvaluateUsers = None,
    patience: o.Patience = 0,
    threads: o.Threads = 0,
    chunk: o.Chunk = 128,
    mapped: o.Mapped = False,
    secure: o.Secure = False,
    dp: o.Central = None,
    ldp: o.Noise = None,
    bound: o.Bound = 0,
    robust: o.Robust = "",
    folder: Annotated[Path | None, typer.Option("--out", help="the run's folder")] = None,
    sanity_rows: o.Sanity = True,
    diagnosed: Annotated[bool, typer.Option("--diagnose", help="record `tacit diagnose` at every validation")] = False,
    as_json: o.AsJson = False,
    progress_kind: o.ProgressKind = "auto",
    written: Annotated[
        Path | None, typer.Option("--config", help="options from a TOML file or a run.json; options typed here win")
    ] = None,
) -> None:
    """Train a method on real data, evaluate it, and show what it would recommend."""
    from tacit.config import config, parse_pairs, read
    from tacit.runs import diagnose
    from tacit.runs.run import start

    options: dict[str, Any] = {
        "method": method,
        "data": data,
        "protocol": protocol,
        "rounds": rounds,
        "seed": seed,
        "clients": clients,
        "min_interactions": min_interactions,
        "select": select,
        "metrics": metrics,
        "evaluate_every": evaluate_every,
        "evaluate_users": evaluate_users,
        "patience": patience,
        "threads": threads,
        "chunk": chunk,
        "mapped": mapped,
        "secure": secure,
        "dp": dp,
        "ldp": ldp,
        "bound": bound,
        "robust": robust,
    }
    if written is not None:
        options = read(written) | {name: value for name, value in options.items() if o.typed(context, name)}
    (name,), of_plug = o.plugged([options.get("method", method)], plug)
    given = options.pop("settings", {}) | parse_pairs(settings or []) | of_plug
    asked = config(**options | {"method": name, "settings": given, "tested": True})  # also where the file is a trial's
    with downloading() as progress:
        started = start(asked, folder, progress)
    if diagnosed:
        (started.folder.path / diagnose.FILE).touch()
    out.print(f"{asked.method} on {asked.data}, protocol {asked.protocol}, seed {asked.seed} → {started.folder.path}")
    for line in filter(None, (started.chosen and f"{asked.method}: {started.chosen}", started.idle)):
        out.print(line)
    _finish(started, sanity_rows, as_json, progress_kind)


def train(
    method: o.MethodName = "tally",
    data: o.DataName = "ml-100k",
    rounds: o.Rounds = None,
    seed: o.Seed = 0,
    settings: o.Settings = None,
    plug: o.Plug = None,
    clients: o.Clients = 0,
    min_interactions: o.AtLeast = 0,
    select: o.Select = "NDCG@10",
    evaluate_every: o.Every = 1,
    evaluate_users: o.EvaluateUsers = None,
    patience: o.Patience = 0,
    threads: o.Threads = 0,
    folder: Annotated[Path | None, typer.Option("--out", help="the model's folder")] = None,
) -> None:
    """Train a method for use: on everything users have, with rounds or settings chosen beforehand by validation."""
    from tacit.config import config, parse_pairs
    from tacit.data import sources
    from tacit.runs.train import prepare

    (method,), of_plug = o.plugged([method], plug)
    asked = config(
        method=method,
        data=data,
        rounds=rounds,
        seed=seed,
        settings=parse_pairs(settings or []) | of_plug,
        clients=clients,
        min_interactions=min_interactions,
        select=select,
        evaluate_every=evaluate_every,
        evaluate_users=evaluate_users,
        patience=patience,
        threads=threads,
    )
    with downloading() as progress:
        sources.load(data, min_interactions, progress)
    with stopping("nothing is kept of a choice that was not finished"), rounds_bar() as watching:
        made = prepare(asked, folder, watch=watching("choosing by validation"))
    for line in filter(None, (made.chosen and f"{method}: {made.chosen}", made.idle)):
        out.print(line)
    _finish_model(made)


def _finish_model(run: "Run") -> None:
    """Train on everything to the end, and show how to use it."""
    from tacit.runs import report
    from tacit.runs.model import Model

    path = run.folder.path
    with stopping(f"continue with: tacit resume {path}"), rounds_bar() as watching:
        run.go_on(watching(run.config.method))
    model = Model(run)
    users = _some_users(run)
    for user in users:
        show(report.recommendations(user, model.recent(user), model.recommend(user)))
    where, user, items = map(quote, (str(path), users[0], ",".join(model.owned(users[0])[:3])))
    out.print(
        f"trained on all {len(run.split.data):,} interactions of {run.split.n_users:,} users → {path}\n"
        f"for a user: tacit recommend {where} --user {user}\n"
        f"for somebody new: tacit recommend {where} --items {items}\n"
        f"for everyone: tacit recommend {where} --all --out lists.csv"
    )


def compare(
    names: Annotated[list[str], typer.Argument(metavar="METHOD…")],
    data: o.DataName = "ml-100k",
    protocol: o.ProtocolName = "strict",
    rounds: o.Rounds = None,
    seeds: o.Seeds = "0",
    settings: o.Settings = None,
    plug: o.Plug = None,
    clients: o.Clients = 0,
    min_interactions: o.AtLeast = 0,
    select: o.Select = "NDCG@10",
    metrics: o.Shown = "",
    evaluate_every: o.Every = 1,
    evaluate_users: o.EvaluateUsers = None,
    patience: o.Patience = 0,
    threads: o.Threads = 0,
    ldp: o.Noise = None,
    folder: Annotated[Path | None, typer.Option("--out", help="keep the runs here; finished ones are reused")] = None,
    as_json: o.AsJson = False,
    progress_kind: o.ProgressKind = "auto",
) -> None:
    """Run several methods under the same conditions and print one table."""
    from tacit.config import canonical, parse_pairs
    from tacit.data import sources
    from tacit.evaluation.metrics import names as names_of
    from tacit.runs.compare import SANITY
    from tacit.runs.compare import compare as compared
    from tacit.runs.files import to_json

    numbers = o.numbers(seeds)
    names, of_plug = o.plugged(names, plug)
    runs = len({canonical(name) for name in [*names, *SANITY]}) * len(numbers)
    with downloading() as progress:
        sources.load(data, min_interactions, progress)
    with (
        stopping(f"finished runs are kept in {folder}" if folder else "nothing is kept without --out"),
        rounds_bar(progress_kind, runs) as watching,
    ):
        rows = compared(
            names,
            numbers,
            folder,
            lambda asked: watching(f"{asked.method} seed {asked.seed}"),
            data=data,
            protocol=protocol,
            rounds=rounds,
            settings=parse_pairs(settings or []) | of_plug,
            clients=clients,
            min_interactions=min_interactions,
            select=select,
            metrics=metrics,
            evaluate_every=evaluate_every,
            evaluate_users=evaluate_users,
            patience=patience,
            threads=threads,
            ldp=ldp,
        )
    table(rows, names_of(metrics))
    own = [row.method for row in rows if rounds and not patience and {run.rounds for run in row.runs} != {rounds}]
    if own:
        out.print(f"rounds={rounds} has no effect on {', '.join(own)}: closed forms have rounds of their own.")
    if as_json:
        print(to_json([dataclasses.asdict(one) for row in rows for one in row.runs]))


def resume(
    folder: o.RunFolder,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="extend a run, finished or not, to this many rounds")
    ] = None,
    sanity_rows: o.Sanity = True,
    as_json: o.AsJson = False,
    progress_kind: o.ProgressKind = "auto",
) -> None:
    """Resume a run that was stopped, or extend a finished one."""
    from tacit.runs.run import extend, reopen

    if rounds is not None:
        extend(folder, rounds)
    with downloading() as progress:
        stopped = reopen(folder, progress)
    if stopped.config.protocol == "everything":
        _finish_model(stopped)
        return
    if not stopped.config.tested:
        _finish_trial(stopped, as_json, progress_kind)
        return
    _finish(stopped, sanity_rows, as_json, progress_kind)


def _finish_trial(run: "Run", as_json: bool, progress_kind: str) -> None:
    """Train a search's trial to the end: it has no test figures."""
    from tacit.figures.command import repeating
    from tacit.runs.files import to_json

    path, select = run.folder.path, run.config.select
    with stopping(f"continue with: tacit resume {path}"), rounds_bar(progress_kind) as watching:
        summary = run.go_on(watching(run.config.method))
    out.print(f"{path} is a trial of a search, without test figures: valid {select} {summary.valid[select]:.4f}")
    out.print(f"with test figures: {repeating(run.folder.run)}", soft_wrap=True)
    if as_json:
        print(to_json(dataclasses.asdict(summary)))


def _finish(run: "Run", sanity_rows: bool, as_json: bool, progress_kind: str) -> None:
    """Train to the end and show everything a newcomer wants to see."""
    from tacit.core.capabilities import Choosing
    from tacit.runs import diagnose, report
    from tacit.runs.compare import Row, sanity
    from tacit.runs.files import to_json
    from tacit.runs.model import Model
    from tacit.runs.run import Summary

    path = run.folder.path
    with stopping(f"continue with: tacit resume {path}"), rounds_bar(progress_kind) as watching:
        watch = watching(run.config.method)
        if (path / diagnose.FILE).exists():
            watch = _both(watch, diagnose.recorder(run))
        finished = run.folder.summary
        summary = Summary(**finished) if finished else run.go_on(watch)
        rows = [Row(run.config.method, (summary,))]
        if sanity_rows:
            names = ["popularity", "ease", "oracle"] if run.split.n_items <= EASE_ITEMS else ["popularity", "oracle"]
            rows += sanity(run.config, [n for n in names if n != run.config.method], run.folder.data)
    table(rows, run.config.metrics)
    if isinstance(run.method, Choosing) and summary.rounds > 1:
        out.print(f"{run.config.method}: validation chose {run.method.choice(summary.best_round)}")
    show(report.groups(summary))
    model = Model(run)
    for user in _some_users(run):
        show(report.recommendations(user, model.recent(user), model.recommend(user, held_out=True)))
    if as_json:
        print(to_json(dataclasses.asdict(summary)))


def _both(one: "Watch", other: "Watch") -> "Watch":
    def watch(progress: "Progress", plan: "Plan") -> None:
        one(progress, plan)
        other(progress, plan)

    return watch


def _some_users(run: "Run", count: int = 2) -> list[str]:
    """A user or two of ordinary activity, the same every time."""
    lengths = run.split.train.lengths
    tested = run.split.test.lengths if run.split.evaluates else lengths
    order = lengths.argsort(kind="stable")
    shown = order[tested[order] > 0]
    middle = len(shown) // 2
    return [str(run.split.data.user_ids[u]) for u in shown[middle : middle + count]]
