"""`keys`, `server`, `node` and `virtual`: the same methods on several machines."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import options as o
from tacit.cli.screen import out, stopping, table


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder to keep them in; existing keys stay")],
    host: Annotated[list[str] | None, typer.Option("--host", help="name or address of the server; repeatable")] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="name of a node; repeatable")] = None,
) -> None:
    """Make certificates and keys for a server and its nodes."""
    from tacit.deploy import keys as files

    for path in files.make(folder, host or [], node or []):
        out.print(str(path))
    out.print(f"the server gets {folder / 'server'}, a node its own folder below {folder / 'nodes'}")
    out.print(f"whoever has {folder / 'ca.key'} can pose as the server: keep it off both")


def server(
    method: o.MethodName,
    catalogue: Annotated[Path, typer.Option("--catalogue", help="file with a column `item` and optionally `title`")],
    folder: o.NodesOut,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="nodes to wait for before the first round")] = 1,
    keys_folder: Annotated[Path | None, typer.Option("--keys", help="what `tacit keys` made for the server")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS and no keys; on this machine only")] = False,
    host: Annotated[str, typer.Option("--host", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port")] = 8477,
    protocol: o.ProtocolName = "strict",
    rounds: o.Rounds = None,
    seed: o.Seed = 0,
    settings: o.Settings = None,
    plug: o.Plug = None,
    ldp: o.Noise = None,
    secure: o.Secure = False,
    bound: Annotated[
        float | None,
        typer.Option(
            "--bound",
            min=0,
            help="clip a client's change to this many times the usual one; 0: never; default: 1 where possible",
        ),
    ] = None,
    robust: o.Robust = "",
    together: Annotated[
        bool, typer.Option("--together", help="treat each node as one client, not each of its users")
    ] = False,
    select: o.Select = "NDCG@10",
    evaluate_every: o.Every = 1,
    patience: o.Patience = 0,
    deadline: o.Deadline = 600,
    least: Annotated[float, typer.Option("--least", min=0, max=1, help="share of clients that must reply")] = 0.5,
    max_norm: Annotated[
        float, typer.Option("--max-norm", min=0, help="largest norm of a client's change; 0: 100 per value")
    ] = 0,
    most_users: Annotated[int, typer.Option("--max-users", min=1, help="most users one node may announce")] = 100_000,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="give up after this many seconds without a round; 0: never")
    ] = 0,
    status_port: Annotated[
        int, typer.Option("--status-port", help="port of /health, /metrics and /status; 0: none")
    ] = 8478,
    status_host: Annotated[str, typer.Option("--status-host", help="address of these pages")] = "127.0.0.1",
    as_json: o.AsJson = False,
) -> None:
    """Run a method over nodes on other machines; started again after a crash, it continues."""
    from tacit.config import config, parse_pairs
    from tacit.deploy import commands
    from tacit.runs.compare import Row

    (method,), of_plug = o.plugged([method], plug)
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
        bound=bound or 0,
        robust=robust,
    )
    if bound is None and not together:  # nodes as clients are few and know one another
        asked = commands.guarded(asked)
    with stopping(f"start it again to resume {folder}"):
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
            pages=(status_host, status_port),
            terms={"deadline": deadline, "least": least, "max_norm": max_norm, "most_users": most_users},
        )
    table([Row(method, (summary,))])
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))


def status(
    target: Annotated[
        str, typer.Argument(metavar="FOLDER|HOST[:PORT]", help="a server's run folder, or HOST:PORT of its pages")
    ],
    as_json: o.AsJson = False,
) -> None:
    """Show a server's nodes: who is up, when last seen, users, bytes, refusals and why."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tacit.deploy import monitor

    shown = monitor.status(target)
    if as_json:
        print(json.dumps(shown))
        return
    up = sum(one["up"] for one in shown["nodes"].values())
    quorum = "quorum" if shown["quorum"] and up else "no quorum"
    out.print(f"{shown['method'] or target}: {shown['state']}, round {shown['round']} of {shown['rounds']}")
    out.print(f"{up} of {len(shown['nodes'])} nodes up, {quorum} (needed: {shown['needs'] or 'not known yet'})")
    lines = Table(box=SIMPLE_HEAD)
    for title in ("node", "state", "last seen", "users", "up", "down", "refused / silent / failed", "reason"):
        lines.add_column(title)
    for line in monitor.table(shown):
        lines.add_row(*line)
    out.print(lines)
    for address, times in shown["rejected"].items():
        out.print(f"rejected: {address}, {times} requests without a known key")
    if (days := shown["certificate_days"]) is not None and days < 30:
        out.print(f"the server's certificate ends in {days} days")


def remove(
    folder: o.RunFolder, name: Annotated[str, typer.Argument(metavar="NODE", help="name of a node of the run")]
) -> None:
    """Remove a node from a run: it is no longer asked or let in; stop the server first."""
    from tacit.deploy import server as run

    left = run.remove(folder, name)
    out.print(f"node {name} is removed from {folder}; {left} stay. Its key is nodes/{name}.pub of the server's keys")


def node(
    file: Annotated[Path, typer.Argument(help="CSV, Parquet or SQLite file of interactions; it stays here")],
    server: Annotated[str, typer.Option("--server", help="host:port")],
    folder: Annotated[Path, typer.Option("--folder", help="the node's own folder; keep it")],
    keys_folder: Annotated[Path | None, typer.Option("--keys", help="what `tacit keys` made for this node")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS and no key; on this machine only")] = False,
    name: Annotated[str | None, typer.Option("--name", help="without keys: the node's name")] = None,
    user: o.UserColumn = "user",
    item: o.ItemColumn = "item",
    time: o.TimeColumn = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", help="a module:Class the server may ask for")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="send nothing outside a secure sum")] = False,
    max_epsilon: Annotated[
        float | None,
        typer.Option("--max-epsilon", min=0, help="ε that a user may spend over all runs; more is refused"),
    ] = None,
    threads: o.Threads = 0,
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
            max_epsilon=max_epsilon,
        )


def virtual(
    method: o.MethodName,
    folder: o.NodesOut,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="virtual nodes; each carries a shard of the users")] = 4,
    data: o.DataName = "ml-100k",
    protocol: o.ProtocolName = "strict",
    rounds: o.Rounds = None,
    seed: o.Seed = 0,
    settings: o.Settings = None,
    plug: o.Plug = None,
    ldp: o.Noise = None,
    min_interactions: o.AtLeast = 0,
    select: o.Select = "NDCG@10",
    evaluate_every: o.Every = 1,
    evaluate_users: o.EvaluateUsers = None,
    patience: o.Patience = 0,
    cpus: Annotated[
        float, typer.Option("--cpus", min=0.01, help="cores per node, which limits how many run at once")
    ] = 1,
    ray: Annotated[
        str | None, typer.Option("--ray", help="address of a Ray cluster, e.g. auto; by default this machine")
    ] = None,
    deadline: o.Deadline = 3600,
    as_json: o.AsJson = False,
) -> None:
    """Simulate across processes or machines: virtual nodes on Ray, through Flower's simulation engine."""
    from tacit.config import config, parse_pairs
    from tacit.deploy import commands
    from tacit.runs.compare import Row

    (method,), of_plug = o.plugged([method], plug)
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
        evaluate_users=evaluate_users,
        patience=patience,
        ldp=ldp,
    )
    with stopping(f"start it again to resume {folder}"):
        summary = commands.virtual(asked, folder, nodes, deadline, cpus, ray)
    table([Row(method, (summary,))])
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))
