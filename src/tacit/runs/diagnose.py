"""The diagnostics of a run by round and user group: how item tables use their dimensions and keep to clusters."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core import capabilities
from tacit.core.payload import State
from tacit.core.rounds import Plan, Progress, sample
from tacit.core.trained import Trained
from tacit.errors import UserError
from tacit.evaluation.clusters import agreement, kept, silhouette
from tacit.evaluation.diagnostics import collapse, information_abundance, spectrum, variance
from tacit.evaluation.likeness import coordinates, relations, retained
from tacit.evaluation.protocol import by_activity
from tacit.runs.run import Run, Watch

FILE = "diagnostics.jsonl"
BLOCK = 128  # clients whose tables are held at once
COMPARED, ROWS = 64, 100  # clients whose tables are compared, and the items of each
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
    separability: float | None = None  # by the server's clusters of items, where it has any: a mean, the lowest and
    lowest: float | None = None  # the highest of the group's tables
    highest: float | None = None
    coordinates: float | None = None  # how alike some clients' tables are, of everyone's: see evaluation.likeness
    relations: float | None = None
    retained: float | None = None


@dataclass(frozen=True)
class Clusters:
    """The clusters of items that a server has at one round, against those of the round recorded before."""

    round: int
    labels: Sequence[int]  # by item
    before: int | None = None  # the round compared with
    agreement: float | None = None  # adjusted Rand index
    kept: float | None = None  # share of items that stayed in their cluster


Line: TypeAlias = Diagnosis | Clusters


def diagnose(run: Run, server: State, round: int) -> list[Line]:
    """Every item table of a run as it stands: the server's, and what clients hold and rank with.

    A server whose state has `labels` of the items, as CGFedRec's and CoFedRec's, is asked about its clusters as well.
    """
    method, federation = run.method, run.fleet.federation
    M = federation.n_items
    if not isinstance(method, Trained):
        raise UserError(f"{method.name} trains no item table: there is nothing to diagnose")
    labels = _labels(server, M)
    out: list[Line] = [] if labels is None else [Clusters(round, labels.tolist())]
    for name, leaf in server.items():
        if leaf.dim() == 2 and leaf.shape[0] == M and leaf.is_floating_point():
            out.append(_mean(round, name, "server", "everyone", *_figures(leaf[None], labels)))
    groups = {"everyone": torch.ones(federation.n_clients, dtype=torch.bool)}
    if federation.n_clients == federation.n_users:  # clients of many users have no one activity
        groups |= by_activity(run.split)
    groups |= capabilities.groups(method, federation)
    found: dict[str, list[Figures]] = {}
    for ids in torch.split(torch.arange(federation.n_clients), BLOCK):
        for name, tables in clients_tables(run, server, ids):
            found.setdefault(name, []).append(_figures(tables, labels))
    alike = _alike(run, server)
    for name, parts in found.items():
        wide = max(part.shape[1] for part, _, _ in parts)
        values = torch.cat([F.pad(part, (0, wide - part.shape[1])) for part, _, _ in parts])  # (clients, d)
        uneven, apart = (torch.cat(column) for column in list(zip(*parts, strict=True))[1:])
        for g, inside in groups.items():
            if inside.any():
                line = _mean(round, name, "clients", g, values[inside], uneven[inside], apart[inside])
                out.append(dataclasses.replace(line, **alike.get(name, {})) if g == "everyone" else line)
    return out


def _alike(run: Run, server: State) -> dict[str, dict[str, Any]]:
    """How alike the tables of some clients are, by the table's name; nothing where they are one."""
    federation, seed = run.fleet.federation, run.config.seed
    ids = sample(federation.n_clients, max(COMPARED, 2), seed, 0)
    items = sample(federation.n_items, max(ROWS, 2), seed, 0)
    return {
        name: {f.__name__: f(tables[:, items]) for f in (coordinates, relations, retained)}
        for name, tables in clients_tables(run, server, ids)
        if len(ids) > 1 and tables.stride(0)
    }


def _labels(server: State, M: int) -> Tensor | None:
    """The cluster of every item, where the server has two of them or more."""
    labels = server.get("labels")
    if labels is None or labels.shape != (M,) or labels.is_floating_point() or len(torch.unique(labels)) < 2:
        return None
    return labels.long()


def clients_tables(run: Run, server: State, ids: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(name, (C, M, d)) of what these clients rank with and of every table in their store."""
    method, M = run.method, run.fleet.federation.n_items
    if not isinstance(method, Trained):
        raise UserError(f"{method.name} trains no item table: there is nothing to diagnose")
    data = run.fleet.federation.people(ids)
    with torch.no_grad():
        clients = run.fleet.store.read(data)
        table = method.view(method.serve(clients, method.downlink(server, ids), data, "test"))
    yield RANKED, table[:, :M]
    for name, leaf in clients.items():
        if leaf.dim() == 3 and leaf.shape[1] == M:
            yield name, leaf


Figures: TypeAlias = tuple[Tensor, Tensor, Tensor]


def _figures(tables: Tensor, labels: Tensor | None) -> Figures:
    """(C, d) singular values, (C,) collapse and separability; one table for all in memory is looked at once."""
    some = tables if tables.stride(0) else tables[:1]
    apart = torch.full((len(some),), math.nan) if labels is None else silhouette(some, labels)
    C = len(tables)
    return spectrum(some).expand(C, -1), collapse(some).expand(C), apart.expand(C)


def _mean(round: int, table: str, of: str, group: str, values: Tensor, uneven: Tensor, apart: Tensor) -> Diagnosis:
    clustered = not apart.isnan().any()
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
        separability=float(apart.mean()) if clustered else None,
        lowest=float(apart.min()) if clustered else None,
        highest=float(apart.max()) if clustered else None,
    )


def best(run: Run) -> list[Line]:
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
                file.write(as_json(line) + "\n")

    return watch


def as_json(line: Line) -> str:
    """What there is of a line."""
    return json.dumps({name: value for name, value in dataclasses.asdict(line).items() if value is not None})


def recorded(path: Path) -> list[Line]:
    """What a run recorded, round by round; of a round that was run twice the later lines count."""
    if not (path / FILE).exists():
        return []
    found: dict[tuple[Any, ...], Line] = {}
    for text in (path / FILE).read_text().splitlines():
        fields = json.loads(text)
        if "labels" in fields:
            found["clusters", fields["round"]] = Clusters(**fields)
        else:
            found[tuple(fields[name] for name in ("round", "table", "of", "group"))] = Diagnosis(**fields)
    return list(found.values())


def everything(run: Run) -> list[Line]:
    """What a run recorded and, unless that is among it, its best round; clusters against those recorded before them.

    They are compared here and not while they are recorded: a run that was stopped and resumed gives the same.
    """
    found = recorded(run.folder.path)
    if all(line.round != run.folder.best_round for line in found):
        found += best(run)
    earlier = {line.round: line for line in found if isinstance(line, Clusters)}
    return [_against(line, earlier) if isinstance(line, Clusters) else line for line in found]


def _against(line: Clusters, earlier: dict[int, Clusters]) -> Clusters:
    before = max((round for round in earlier if round < line.round), default=None)
    if before is None:
        return line
    one, other = torch.tensor(earlier[before].labels), torch.tensor(line.labels)
    return dataclasses.replace(line, before=before, agreement=agreement(one, other), kept=kept(one, other))
