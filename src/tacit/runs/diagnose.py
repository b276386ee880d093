"""The diagnostics of a run: how the item tables of server and clients use their dimensions, by user group and round."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core.payload import State
from tacit.core.rounds import Plan, Progress
from tacit.errors import UserError
from tacit.evaluation.diagnostics import collapse, information_abundance, spectrum, variance
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
    collapse: float = math.nan  # variance of the covariance matrix's singular values (HeteFedRec's Table V)


def diagnose(run: Run, server: State, round: int) -> list[Diagnosis]:
    """Every item table of a run as it stands: the server's, and what clients hold and rank with."""
    method, federation = run.method, run.fleet.federation
    M = federation.n_items
    if not method.tables or not method.phases(1):
        raise UserError(f"{method.name} trains no item table: there is nothing to diagnose")
    out = []
    for name, leaf in server.items():
        if leaf.dim() == 2 and leaf.shape[0] == M and leaf.is_floating_point():
            out.append(_mean(round, name, "server", "everyone", spectrum(leaf)[None], collapse(leaf)[None]))
    groups = {"everyone": torch.ones(federation.n_clients, dtype=torch.bool)}
    if federation.n_clients == federation.n_users:  # clients of many users have no one activity
        groups |= by_activity(run.split)
    groups |= method.groups(federation)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for ids in torch.split(torch.arange(federation.n_clients), BLOCK):
        for name, tables in _tables(run, server, ids):
            found.setdefault(name, []).append(_spectra(tables))
    for name, parts in found.items():
        wide = max(part.shape[1] for part, _ in parts)
        values = torch.cat([F.pad(part, (0, wide - part.shape[1])) for part, _ in parts])  # (clients, d)
        uneven = torch.cat([part for _, part in parts])
        for g, inside in groups.items():
            if inside.any():
                out.append(_mean(round, name, "clients", g, values[inside], uneven[inside]))
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


def _spectra(tables: Tensor) -> tuple[Tensor, Tensor]:
    """(C, d) singular values and (C,) collapse; where all clients have one table in memory it is looked at once."""
    if tables.stride(0):
        return spectrum(tables), collapse(tables)
    return spectrum(tables[:1]).expand(len(tables), -1), collapse(tables[:1]).expand(len(tables))


def _mean(round: int, table: str, of: str, group: str, values: Tensor, uneven: Tensor) -> Diagnosis:
    return Diagnosis(
        round=round,
        table=table,
        of=of,
        group=group,
        tables=len(values),
        abundance=float(information_abundance(values).mean()),
        variance=float(variance(values).mean()),
        spectrum=values.mean(0).tolist(),
        collapse=float(uneven.mean()),
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
