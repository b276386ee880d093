"""The diagnostics of a run: how the item tables of server and clients use their dimensions, by user group and round."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tacit.core.payload import State
from tacit.core.rounds import Plan, Progress
from tacit.errors import UserError
from tacit.evaluation.diagnostics import information_abundance, spectrum, variance
from tacit.evaluation.protocol import by_activity
from tacit.runs.run import Run, Watch

FILE = "diagnostics.jsonl"
BLOCK = 128  # clients whose tables are held at once
RANKED = "ranked with"  # the table a client scores its items by


@dataclass(frozen=True)
class Diagnosis:
    """One kind of table, at one round, over a group of users."""

    round: int
    table: str  # a leaf of the server's or the clients' state, or `ranked with`
    of: str  # server or clients
    group: str  # everyone, or users of some activity
    tables: int  # how many it is a mean over
    abundance: float  # information abundance
    variance: float  # of the singular values
    spectrum: Sequence[float]  # singular values, the largest first


def diagnose(run: Run, server: State, round: int) -> list[Diagnosis]:
    """Every item table of a run as it stands: the server's, and what clients hold and rank with."""
    method, federation = run.method, run.fleet.federation
    M = federation.n_items
    if not method.tables or not method.phases(1):
        raise UserError(f"{method.name} trains no item table: there is nothing to diagnose")
    out = []
    for name, leaf in server.items():
        if leaf.dim() == 2 and leaf.shape[0] == M and leaf.is_floating_point():
            out.append(_mean(round, name, "server", "everyone", spectrum(leaf)[None]))
    groups = {"everyone": torch.ones(federation.n_clients, dtype=torch.bool)}
    if federation.n_clients == federation.n_users:  # clients of many users have no one activity
        groups |= by_activity(run.split)
    found: dict[str, list[Tensor]] = {}
    for ids in torch.split(torch.arange(federation.n_clients), BLOCK):
        for name, tables in _tables(run, server, ids):
            found.setdefault(name, []).append(_spectra(tables))
    for name, parts in found.items():
        values = torch.cat(parts)  # (clients, d)
        out += [_mean(round, name, "clients", g, values[inside]) for g, inside in groups.items() if inside.any()]
    return out


def _tables(run: Run, server: State, ids: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(name, (C, M, d)) of what these clients rank with and of every table in their store."""
    method, M = run.method, run.fleet.federation.n_items
    data = run.fleet.federation.people(ids)
    with torch.no_grad():
        clients = run.fleet.store.read(data)
        table = method.view(method.serve(clients, method.downlink(server, ids), data, "test"))
    yield RANKED, table[:, :M]
    for name, leaf in clients.items():
        if leaf.dim() == 3 and leaf.shape[1] == M:
            yield name, leaf


def _spectra(tables: Tensor) -> Tensor:
    """(C, d); where all clients have the same table in memory it is looked at once."""
    return spectrum(tables) if tables.stride(0) else spectrum(tables[:1]).expand(len(tables), -1)


def _mean(round: int, table: str, of: str, group: str, values: Tensor) -> Diagnosis:
    return Diagnosis(
        round=round,
        table=table,
        of=of,
        group=group,
        tables=len(values),
        abundance=float(information_abundance(values).mean()),
        variance=float(variance(values).mean()),
        spectrum=values.mean(0).tolist(),
    )


def best(run: Run) -> list[Diagnosis]:
    """Of a run's best round, from its checkpoint."""
    server = run.load_best()
    return diagnose(run, server, run.folder.best_round)


def recorder(run: Run) -> Watch:
    """Writes the diagnostics of every validated round to the run's folder."""
    path = run.folder.path / FILE

    def watch(progress: Progress, plan: Plan) -> None:
        if progress.history[-1].valid is None:
            return
        with path.open("a") as file:
            for line in diagnose(run, progress.server, progress.round):
                file.write(json.dumps(dataclasses.asdict(line)) + "\n")

    return watch


def recorded(path: Path) -> list[Diagnosis]:
    """What a run recorded, round by round; of a round that was run twice the later lines count."""
    if not (path / FILE).exists():
        return []
    lines = [Diagnosis(**json.loads(line)) for line in (path / FILE).read_text().splitlines()]
    return list({(d.round, d.table, d.of, d.group): d for d in lines}.values())
