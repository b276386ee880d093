"""The command line. Every command is a few calls into the library."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from tacit import methods as registry
from tacit.config import config, parse_pairs
from tacit.core.rounds import Plan, Progress
from tacit.data import imported, sources
from tacit.data.summary import summarise
from tacit.errors import UserError
from tacit.evaluation.metrics import names as names_of
from tacit.runs import audit, diagnose, experiments, life, report, skew_study
from tacit.runs.compare import Row, compare, sanity
from tacit.runs.files import to_json
from tacit.runs.run import Run, Summary, Watch, reopen, start

app = typer.Typer(
    help="Federated recommendation: learn from people's tastes while the tastes stay on their devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Data sets: list, show, fetch, import.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False)

EASE_ITEMS = 8_000  # beyond this many items, EASE as a reference takes longer than what it stands beside

DataName = Annotated[str, typer.Option("--data", help="data set; `tacit data list` names them")]
ProtocolName = Annotated[str, typer.Option("--protocol", help="strict, paper, symmetric or ratio")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="rounds; the method's own by default")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="a setting of the method, key=value; repeatable")]
Plug = Annotated[
    str | None, typer.Option("--plug", help="a plug-in over the method, as in plgc or plgc:beta=0.5,gamma=0.01")
]
Clients = Annotated[int, typer.Option("--clients", help="clients of many users; 0: one client per user")]
AtLeast = Annotated[int, typer.Option("--min-interactions", help="only users with at least this many")]
Select = Annotated[str, typer.Option("--select", help="validation metric that chooses the reported round")]
Shown = Annotated[
    str, typer.Option("--metrics", help="show these too, as in coverage,novelty; module:Class for one of your own")
]
Every = Annotated[int, typer.Option("--evaluate-every", help="validate every so many rounds")]
Patience = Annotated[int, typer.Option("--patience", help="stop after so many validations without a better one")]
Threads = Annotated[int, typer.Option("--threads", help="workers; 0: one per core")]
Chunk = Annotated[int, typer.Option("--chunk", help="clients stacked at a time, at most")]
Noise = Annotated[
    str | None,
    typer.Option("--ldp", help="noise on uploads: kind=laplace,clip=0.5,scale=0.1, or epsilon=1 in place of scale"),
]
Mapped = Annotated[bool, typer.Option("--mapped", help="keep the clients' state in memory-mapped files")]
Central = Annotated[
    str | None,
    typer.Option(
        "--dp", help="noise that clients share, with --secure: clip=1,noise=1, or epsilon=1 in place of noise"
    ),
]
Secure = Annotated[bool, typer.Option("--secure", help="the server sees only sums of uploads (secure aggregation)")]
AsJson = Annotated[bool, typer.Option("--json", help="print the summary as the last line")]


@app.command("run")
def run_command(
    method: Annotated[str, typer.Argument(help="`tacit methods` names them")] = "tally",
    data: DataName = "ml-100k",
    protocol: ProtocolName = "strict",
    rounds: Rounds = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    settings: Settings = None,
    plug: Plug = None,
    clients: Clients = 0,
    min_interactions: AtLeast = 0,
    select: Select = "NDCG@10",
    metrics: Shown = "",
    evaluate_every: Every = 1,
    patience: Patience = 0,
    threads: Threads = 0,
    chunk: Chunk = 128,
    mapped: Mapped = False,
    secure: Secure = False,
    dp: Central = None,
    ldp: Noise = None,
    folder: Annotated[Path | None, typer.Option("--out", help="the run's folder")] = None,
    sanity_rows: Annotated[bool, typer.Option("--sanity/--no-sanity", help="popularity, EASE, oracle")] = True,
    diagnosed: Annotated[bool, typer.Option("--diagnose", help="record `tacit diagnose` of every validation")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a method on real data, evaluate it, and show what it would recommend."""
    (method,), of_plug = _plugged([method], plug)
    asked = config(
        method=method,
        data=data,
        protocol=protocol,
        rounds=rounds,
        seed=seed,
        settings=parse_pairs(settings or []) | of_plug,
        clients=clients,
        min_interactions=min_interactions,
        select=select,
        metrics=metrics,
        evaluate_every=evaluate_every,
        patience=patience,
        threads=threads,
        chunk=chunk,
        mapped=mapped,
        secure=secure,
        dp=dp,
        ldp=ldp,
    )
    with downloading() as progress:
        run = start(asked, folder, progress)
    if diagnosed:
        (run.folder.path / diagnose.FILE).touch()
    out.print(f"{method} on {data}, protocol {protocol}, seed {seed} → {run.folder.path}")
    _finish(run, sanity_rows, as_json)


@app.command("compare")
def compare_command(
    names: Annotated[list[str], typer.Argument(metavar="METHOD…")],
    data: DataName = "ml-100k",
    protocol: ProtocolName = "strict",
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option("--seeds", help="as in 0,1,2")] = "0",
    settings: Settings = None,
    plug: Plug = None,
    clients: Clients = 0,
    min_interactions: AtLeast = 0,
    select: Select = "NDCG@10",
    metrics: Shown = "",
    evaluate_every: Every = 1,
    patience: Patience = 0,
    threads: Threads = 0,
    ldp: Noise = None,
    folder: Annotated[Path | None, typer.Option("--out", help="keep the runs here; finished ones are reused")] = None,
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same ground and print one table."""
    numbers = _numbers(seeds)
    names, of_plug = _plugged(names, plug)
    with downloading() as progress:
        sources.load(data, min_interactions, progress)
    with (
        stopping(f"finished runs are kept in {folder}" if folder else "nothing is kept without --out"),
        rounds_bar() as watching,
    ):
        rows = compare(
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
            patience=patience,
            threads=threads,
            ldp=ldp,
        )
    _table(rows, names_of(metrics))
    if as_json:
        print(to_json([dataclasses.asdict(run) for row in rows for run in row.runs]))


@app.command("experiment")
def experiment_command(
    file: Annotated[Path, typer.Argument(help="a file of experiments/")],
    only: Annotated[list[str] | None, typer.Option("--row", help="only this row, by its label; repeatable")] = None,
    data: Annotated[list[str] | None, typer.Option("--data", help="only this data set; repeatable")] = None,
    protocol: Annotated[list[str] | None, typer.Option("--protocol", help="only under this one; repeatable")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="other seeds than the file's, as in 0,1,2")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="where its runs are; runs/<name of the file>")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep checkpoints of finished runs")] = False,
) -> None:
    """Run a published table, or go on with it, and print published and measured figures side by side."""
    experiment = experiments.read(file)
    where = folder or Path("runs") / file.stem
    plan = experiments.planned(experiment, only or [], data or [], protocol or [], _numbers(seeds) if seeds else [])
    with downloading() as progress:
        for name in dict.fromkeys(p.data for p in plan):
            sources.load(name, 0, progress)
    with stopping(f"finished runs are kept in {where}"), rounds_bar() as watching:
        experiments.carry_out(plan, where, lambda p: watching(p.folder), keep)
    _experiment(experiment, where)


@app.command("results")
def results_command(
    file: Annotated[Path, typer.Argument(help="a file of experiments/")],
    folder: Annotated[Path | None, typer.Option("--out", help="where its runs are; runs/<name of the file>")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print tables for a document")] = False,
) -> None:
    """Collect what is finished of an experiment: published figure, ours, the strict one, and the seeds behind them."""
    experiment = experiments.read(file)
    where = folder or Path("runs") / file.stem
    if as_markdown:
        print(experiments.markdown(experiment, experiments.collect(experiment, where)))
    else:
        _experiment(experiment, where)


@app.command("skew")
def skew_command(
    folder: Annotated[Path, typer.Option("--out", help="a new folder for its runs, skew.jsonl and trajectories.csv")],
    data: DataName = "filmtrust",
    min_interactions: AtLeast = 10,
    rounds: Annotated[int, typer.Option("--rounds", min=2)] = 100,
    users: Annotated[int, typer.Option("--users", min=1, help="whose vectors are followed")] = 4,
    protocol: ProtocolName = "paper",
    seed: Annotated[int, typer.Option("--seed")] = 0,
    threads: Threads = 0,
) -> None:
    """User embedding skew: users' vectors with and without averaging, and what PFedCLR puts against it, by round."""
    with downloading() as progress:
        sources.load(data, min_interactions, progress)
    with stopping(f"what was finished is in {folder}"), rounds_bar() as watching:
        options = {"min_interactions": min_interactions, "protocol": protocol, "seed": seed, "threads": threads}
        groups = skew_study.study(folder, data, users, rounds, watching, **options)
    out.print(report.skew(groups))
    out.print(report.SKEW, markup=False)
    out.print(f"every round is in {folder / 'skew.jsonl'}, the paths in {folder / 'trajectories.csv'}", markup=False)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    sanity_rows: Annotated[bool, typer.Option("--sanity/--no-sanity", help="popularity, EASE, oracle")] = True,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped."""
    with downloading() as progress:
        run = reopen(folder, progress)
    _finish(run, sanity_rows, as_json)


@app.command("recommend")
def recommend_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    user: Annotated[str, typer.Option("--user", help="a user id of the data set")],
    k: Annotated[int, typer.Option("-k", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """What a run's best model recommends to a user; on a node's folder, to one of the node's users."""
    if (folder / "node.json").is_file():
        from tacit.deploy import commands

        known, found = commands.recommend(folder, user, k)
        if as_json:
            print(json.dumps([dataclasses.asdict(line) for line in found]))
        else:
            out.print(report.recommendations(user, known, found))
        return
    run = reopen(folder)
    found = run.recommend(user, k)
    if as_json:
        print(json.dumps([dataclasses.asdict(line) for line in found]))
    else:
        out.print(report.recommendations(user, run.recent(user), found))


@app.command("diagnose")
def diagnose_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    as_json: Annotated[
        bool, typer.Option("--json", help="a line a table, group and round, with all singular values")
    ] = False,
) -> None:
    """How a run's item tables use their dimensions and keep to its clusters: at its best round and recorded ones."""
    run = reopen(folder)
    found = diagnose.everything(run)
    if as_json:
        for one in found:
            print(diagnose.as_json(one))
    else:
        out.print(report.diagnostics(found))
        out.print(f"The best round by validation is {run.folder.best_round}.")
        if parted := report.clusters(found):
            out.print(parted)
        for line in report.cluster_remarks(found):
            out.print(line, markup=False)


@app.command("audit")
def audit_command(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…")],
    ldp: Annotated[list[str] | None, typer.Option("--ldp", help="and with this noise on uploads; repeatable")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="and with secure sums")] = False,
    dp: Annotated[list[str] | None, typer.Option("--dp", help="and with this noise on secure sums; repeatable")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="rounds to look at")] = 5,
    clients: Annotated[int, typer.Option("--clients", min=0, help="clients to attack; 0: all")] = 100,
    k: Annotated[int, typer.Option("-k", min=1, help="items that an attack may name")] = 10,
    at: Annotated[str, typer.Option("--at", help="from where a run goes on: last, best or start")] = "last",
    as_json: Annotated[bool, typer.Option("--json", help="a line a run and protection")] = False,
) -> None:
    """Play the curious server: infer from a run's uploads which items its clients interacted with."""
    protections: list[dict[str, Any]] = [{"ldp": noise} for noise in ldp or []]
    protections += [{"secure": True}] * secure + [{"secure": True, "dp": noise} for noise in dp or []]
    found = []
    for one in audit.audit(folders, protections, rounds, clients, k, at):
        found.append(one)
        if as_json:
            print(to_json(dataclasses.asdict(one)))
    if not as_json:
        out.print(report.audits(found))
        for line in report.audit_remarks(found):
            out.print(line, markup=False)


@app.command("forget")
def forget_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    user: Annotated[str, typer.Option("--user", help="a user id of the run")],
) -> None:
    """Remove a user from a run exactly, as if it had never been there."""
    run = reopen(folder)
    began = perf_counter()
    life.forget(run, user)
    out.print(f"user {user} is forgotten ({perf_counter() - began:.2f} s)", markup=False)


@app.command("update")
def update_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with new interactions")],
    user: Annotated[str, typer.Option("--user", help="column of user ids")] = "user",
    item: Annotated[str, typer.Option("--item", help="column of item ids")] = "item",
    time: Annotated[str | None, typer.Option("--time", help="column of times")] = None,
) -> None:
    """Take new interactions and new users into a run, as if they had been there from the start."""
    run = reopen(folder)
    began = perf_counter()
    done = life.update(run, file, user, item, time)
    out.print(
        f"{done.interactions:,} interactions of {done.users:,} users taken in, {done.new_users:,} of them new; "
        f"left out: {done.unknown_items:,} of unknown items, {done.repeated:,} repeated "
        f"({perf_counter() - began:.2f} s)",
        markup=False,
    )


@app.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where they are kept, and added to")],
    host: Annotated[list[str] | None, typer.Option("--host", help="name or address of the server; repeatable")] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="name of a node; repeatable")] = None,
) -> None:
    """Make certificates and keys for a server and its nodes."""
    from tacit.deploy import keys

    for path in keys.make(folder, host or [], node or []):
        out.print(str(path), markup=False)
    out.print(f"the server gets {folder / 'server'}, a node its own folder below {folder / 'nodes'}", markup=False)
    out.print(f"whoever has {folder / 'ca.key'} can pose as the server: keep it off both", markup=False)


@app.command("server")
def server_command(
    method: Annotated[str, typer.Argument(help="`tacit methods` names them")],
    catalogue: Annotated[Path, typer.Option("--catalogue", help="file with a column `item`, maybe `title`")],
    folder: Annotated[Path, typer.Option("--out", help="the run's folder; one that was begun is gone on with")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="nodes to wait for before the first round")] = 1,
    keys_folder: Annotated[Path | None, typer.Option("--keys", help="what `tacit keys` made for the server")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS and no keys; on this machine alone")] = False,
    host: Annotated[str, typer.Option("--host", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port")] = 8477,
    protocol: ProtocolName = "strict",
    rounds: Rounds = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    settings: Settings = None,
    plug: Plug = None,
    ldp: Noise = None,
    secure: Secure = False,
    together: Annotated[bool, typer.Option("--together", help="a client is a node, not each of its users")] = False,
    select: Select = "NDCG@10",
    evaluate_every: Every = 1,
    patience: Patience = 0,
    deadline: Annotated[float, typer.Option("--deadline", min=0.1, help="seconds a round waits for replies")] = 600,
    least: Annotated[float, typer.Option("--least", min=0, max=1, help="share of clients that must reply")] = 0.5,
    max_norm: Annotated[float, typer.Option("--max-norm", min=0, help="of a client's change; 0: 100 a value")] = 0,
    wait: Annotated[float, typer.Option("--wait", min=0, help="seconds to wait for nodes")] = 3600,
    as_json: AsJson = False,
) -> None:
    """Run a method over nodes on other machines; started again after a crash, it goes on."""
    from tacit.deploy import commands

    (method,), of_plug = _plugged([method], plug)
    asked = config(
        method=method,
        data=catalogue.stem,
        protocol=protocol,
        rounds=rounds,
        seed=seed,
        settings=parse_pairs(settings or []) | of_plug,
        select=select,
        evaluate_every=evaluate_every,
        patience=patience,
        ldp=ldp,
        secure=secure,
    )
    with stopping(f"start it again to go on with {folder}"):
        summary = commands.server(
            asked,
            catalogue,
            folder,
            (host, port),
            None if insecure else keys_folder,
            insecure,
            nodes=nodes,
            together=together,
            wait=wait,
            terms={"deadline": deadline, "least": least, "max_norm": max_norm},
        )
    _table([Row(method, (summary,))])
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))


@app.command("node")
def node_command(
    file: Annotated[Path, typer.Argument(help="CSV, Parquet or SQLite file of interactions; it stays here")],
    server: Annotated[str, typer.Option("--server", help="host:port")],
    folder: Annotated[Path, typer.Option("--folder", help="the node's own folder; keep it")],
    keys_folder: Annotated[Path | None, typer.Option("--keys", help="what `tacit keys` made for this node")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS and no key; on this machine alone")] = False,
    name: Annotated[str | None, typer.Option("--name", help="without keys: what the node is called")] = None,
    user: Annotated[str, typer.Option("--user", help="column of user ids")] = "user",
    item: Annotated[str, typer.Option("--item", help="column of item ids")] = "item",
    time: Annotated[str | None, typer.Option("--time", help="column of times")] = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", help="a module:Class the server may ask for")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="send nothing outside a secure sum")] = False,
    threads: Threads = 0,
) -> None:
    """Take part in runs with interactions that stay on this machine; Ctrl-C ends it."""
    from tacit.deploy import commands

    with stopping(f"what it has learnt is in {folder}; tacit recommend {folder} --user ID reads it"):
        commands.node(
            (file, user, item, time),
            server,
            folder,
            None if insecure else keys_folder,
            insecure,
            name=name,
            allow=tuple(allow or ()),
            threads=threads,
            secure=secure,
        )


@app.command("virtual")
def virtual_command(
    method: Annotated[str, typer.Argument(help="`tacit methods` names them")],
    folder: Annotated[Path, typer.Option("--out", help="the run's folder; one that was begun is gone on with")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="virtual nodes; each carries a shard of the users")] = 4,
    data: DataName = "ml-100k",
    protocol: ProtocolName = "strict",
    rounds: Rounds = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    settings: Settings = None,
    plug: Plug = None,
    ldp: Noise = None,
    min_interactions: AtLeast = 0,
    select: Select = "NDCG@10",
    evaluate_every: Every = 1,
    patience: Patience = 0,
    cpus: Annotated[float, typer.Option("--cpus", min=0.01, help="cores of a node: how many run at once")] = 1,
    ray: Annotated[str | None, typer.Option("--ray", help="address of a Ray cluster, as in auto; none: here")] = None,
    deadline: Annotated[float, typer.Option("--deadline", min=0.1, help="seconds a round waits for replies")] = 3600,
    as_json: AsJson = False,
) -> None:
    """Simulate across processes or machines: virtual nodes on Ray, through Flower's simulation engine."""
    from tacit.deploy import commands

    (method,), of_plug = _plugged([method], plug)
    asked = config(
        method=method,
        data=data,
        protocol=protocol,
        rounds=rounds,
        seed=seed,
        settings=parse_pairs(settings or []) | of_plug,
        min_interactions=min_interactions,
        select=select,
        evaluate_every=evaluate_every,
        patience=patience,
        ldp=ldp,
    )
    with stopping(f"start it again to go on with {folder}"):
        summary = commands.virtual(asked, folder, nodes, deadline, cpus, ray)
    _table([Row(method, (summary,))])
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))


@app.command("methods")
def methods_command() -> None:
    """Every method, with its settings."""
    table = Table("method", "what it is", "settings", title_justify="left")
    for name, cls in registry.known().items():
        about = (cls.__doc__ or "").strip().splitlines()[0]
        fields = ", ".join(f"{f.name}={_short(f.default)}" for f in dataclasses.fields(cls))
        table.add_row(name, about + (f" ({cls.paper})" if cls.paper else ""), fields)
    for name, plug in registry.PLUGS.known().items():
        about = (plug.__doc__ or "").strip().splitlines()[0]
        fields = ", ".join(f"{f.name}={_short(f.default)}" for f in dataclasses.fields(plug))
        table.add_row(f"--plug {name}", about, fields)
    out.print(table)


@data_app.command("list")
def data_list() -> None:
    """Every data set, and whether it is on this machine."""
    table = Table("data set", "what it is", "on this machine")
    for name in sources.names():
        here = name == "demo" or sources.find(name) is not None
        table.add_row(name, sources.describe(name), "yes" if here else "no")
    out.print(table)


@data_app.command("show")
def data_show(name: str, min_interactions: AtLeast = 0) -> None:
    """Counts and a histogram of interactions per user."""
    with downloading() as progress:
        data = sources.load(name, min_interactions, progress)
    out.print(f"[bold]{name}[/bold]: {sources.describe(name)}")
    for line in report.data_figures(summarise(data)):
        out.print(line, markup=False)


@data_app.command("fetch")
def data_fetch(name: str) -> None:
    """Download a data set into the cache."""
    with downloading() as progress:
        path = sources.fetch(name, progress)
    out.print(f"{name} is in {path}")


@data_app.command("import")
def data_import(
    file: Path,
    name: Annotated[str, typer.Option("--name", help="what to call it")],
    user: Annotated[str, typer.Option("--user", help="column of user ids")] = "user",
    item: Annotated[str, typer.Option("--item", help="column of item ids")] = "item",
    time: Annotated[str | None, typer.Option("--time", help="column of times")] = None,
    title: Annotated[str | None, typer.Option("--title", help="column of item titles")] = None,
    group: Annotated[str | None, typer.Option("--group", help="column of the class of a user's device")] = None,
) -> None:
    """Take in your own CSV or Parquet file; afterwards it is a data set like any other."""
    data = imported.import_file(file, name, user, item, time, title, group)
    out.print(f"imported [bold]{name}[/bold]; try: tacit run --data {name}")
    for line in report.data_figures(summarise(data)):
        out.print(line, markup=False)


def main() -> None:
    """Entry point: bad input ends with one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        err.print(f"tacit: {error}", markup=False, soft_wrap=True)
        sys.exit(2)


@contextmanager
def stopping(advice: str) -> Iterator[None]:
    """Ctrl-C ends with a sentence that says what is left."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"stopped; {advice}", markup=False, soft_wrap=True)
        sys.exit(130)


def _finish(run: Run, sanity_rows: bool, as_json: bool) -> None:
    """Train to the end and show everything a newcomer wants to see."""
    path = run.folder.path
    with stopping(f"go on with: tacit resume {path}"), rounds_bar() as watching:
        watch = watching(run.config.method)
        if (path / diagnose.FILE).exists():
            watch = _both(watch, diagnose.recorder(run))
        summary = _summary(run, watch)
        rows = [Row(run.config.method, (summary,))]
        if sanity_rows:
            names = ["popularity", "ease", "oracle"] if run.split.n_items <= EASE_ITEMS else ["popularity", "oracle"]
            rows += sanity(run.config, [n for n in names if n != run.config.method])
    _table(rows, run.config.metrics)
    out.print(report.groups(summary))
    for user in _some_users(run):
        out.print(report.recommendations(user, run.recent(user), run.recommend(user)))
    if as_json:
        print(to_json(dataclasses.asdict(summary)))


def _both(one: Watch, other: Watch) -> Watch:
    def watch(progress: Progress, plan: Plan) -> None:
        one(progress, plan)
        other(progress, plan)

    return watch


def _plugged(names: list[str], plug: str | None) -> tuple[list[str], dict[str, str]]:
    """The methods with `plug` over each, and the settings written behind it."""
    if plug is None:
        return names, {}
    name, _, rest = plug.partition(":")
    pairs = parse_pairs(rest.split(",") if rest else [])
    return [f"{name}+{method}" for method in names], {f"{name}_{key}": value for key, value in pairs.items()}


def _summary(run: Run, watch: Watch | None) -> Summary:
    finished = run.folder.summary
    return Summary(**finished) if finished else run.go_on(watch)


def _some_users(run: Run, count: int = 2) -> list[str]:
    """A user or two of ordinary activity, the same every time."""
    lengths = run.split.train.lengths
    evaluated = [u for u in lengths.argsort(kind="stable").tolist() if len(run.split.test[u])]
    middle = len(evaluated) // 2
    return [str(run.split.data.user_ids[u]) for u in evaluated[middle : middle + count]]


def _numbers(seeds: str) -> list[int]:
    try:
        return [int(part) for part in seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds {seeds} is not a list of whole numbers; write it as in 0,1,2") from None


def _experiment(experiment: experiments.Experiment, where: Path) -> None:
    found = experiments.collect(experiment, where)
    out.print(experiment.title, style="bold", markup=False)
    for place in experiment.data:
        done = experiments.begun(place.name, found)
        out.print(report.experiment(experiment, place.name, found) if done else f"{place.name}: {experiments.NOTHING}")
    if experiment.note:
        out.print(experiment.note, markup=False)


def _table(rows: list[Row], metrics: tuple[str, ...] = ()) -> None:
    out.print(report.comparison(rows))
    if metrics:
        out.print(report.beside(rows, metrics))
    for line in report.remarks(rows):
        out.print(line, markup=False)


@contextmanager
def downloading() -> Iterator[Any]:
    """A bar for downloads; silent when output is not a terminal."""
    shape = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Bar(*shape, console=err, transient=True, disable=not err.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if not err.is_terminal:
                return
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total or None)
            bar.update(tasks[what], completed=done, total=total or None)

        yield show


@contextmanager
def rounds_bar() -> Iterator[Any]:
    """A bar with the round, the validation metric and the time left; none when output is not a terminal."""
    shape = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # no thread of its own: a process that has one cannot fork workers
    with Bar(*shape, console=err, transient=True, disable=not err.is_terminal, auto_refresh=False) as bar:

        def watching(name: str) -> Watch:
            task = bar.add_task(name, total=1, note="")

            def watch(progress: Progress, plan: Plan) -> None:
                valid = next((r.valid for r in reversed(progress.history) if r.valid), None)
                note = f"valid {plan.select} {valid[plan.select]:.4f}" if valid else ""
                bar.update(task, completed=progress.round, total=plan.rounds, note=note, refresh=True)

            return watch

        yield watching


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
