"""FedCIA: clients share how items relate, not where they lie; every client fits its own items to the mean relation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core.leaves import Leaves, kept, named
from tacit.core.method import Method, Moment
from tacit.core.optim import Optimizer
from tacit.core.payload import Each, Field, Payload, Product, Shared, State
from tacit.core.settings import Amount, Rank, Rate, Search, Weight, Whole, Width
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.methods.gpfedrec import GPFedRec
from tacit.methods.lightgcn import squares
from tacit.methods.pfedgraph import gram, mix
from tacit.methods.similarity import add, aligned, descended, leading_factor, truncated


@dataclass(frozen=True)
class FedCIA(Trained):
    """Train alone, upload C_k = Q_k Q_kᵀ, fit the items to the mean of all C_k, and train on (Algorithm 1).

    Symbols: E(i|θ_i) -> items, C_s -> similarity, β -> beta. Eq. 6 asks for the Q whose similarities are nearest
    to C_s: its solutions are the leading eigenvectors of C_s in any rotation, and a client takes the one nearest to the
    items it has. `align_steps` descends towards it instead, as the public code does. With `rank` = 0 whole matrices
    travel, M × M values; with r, factors of M × r (Sec. 5.4.2). Aggregations of Table 3: `collaborative`, `mean`
    (FedAvg), `graph` (every client gets the mean of those near to it, as in GPFedRec) and `alone`. Backbones: `mf`,
    `lightgcn`, `mlp`, and `gfcf`, which has no parameters (fedcia_filter.py). `widths` gives clients tables of
    different width in turn, `models` different backbones (Sec. 6.6); clients of one kind can be averaged, all can
    collaborate. Clients rank after the round's download, whatever it is; with `scored_with=own` before it.
    Decisions: docs/decisions/0013-fedcia.md.
    """

    backbone: Literal["mf", "lightgcn", "mlp", "gfcf"] = "mf"
    aggregation: Literal["collaborative", "mean", "graph", "alone"] = "collaborative"
    rank: Rank = 0
    align: Annotated[Amount, Search(0, 1)] = 1.0  # how far to go towards the solution of Eq. 6
    align_steps: Whole = 0  # 0: solve it; else descend this many steps
    align_lr: Annotated[Rate, Search(0.01, 1, log=True, when="align_steps")] = 0.1
    widths: tuple[Width, ...] = ()
    models: tuple[Literal["mf", "lightgcn", "mlp"], ...] = ()  # in the place of one backbone

    dim: int = 64
    lr: float = 0.02
    epochs: int = 5
    batch: int = 1024
    negatives: int = 1
    rounds: int = 30
    optimizer: Optimizer = "adam"
    init: float = 0.01
    l2: Weight = 1e-3  # of the vectors in a batch
    weighting: Literal["size", "uniform"] = "uniform"

    name: ClassVar[str] = "fedcia"
    paper: ClassVar[str] = "Han et al. 2025, Federated Collaborative Information Aggregation"
    individual: ClassVar[str] = "similarities of all pairs of items are too many to mask, and factors cannot be added"
    every_row: ClassVar[bool] = True  # alignment moves every row

    @classmethod
    def refined(cls, settings: Mapping[str, Any]) -> type[Method]:
        """The backbone asked for."""
        from tacit.methods.fedcia_backbones import OverLightGCN, OverMixture, OverPerceptron
        from tacit.methods.fedcia_filter import FedCIAFilter

        if settings.get("models"):
            return OverMixture
        over: dict[str, type[Method]] = {"lightgcn": OverLightGCN, "mlp": OverPerceptron, "gfcf": FedCIAFilter}
        return over.get(settings.get("backbone", "mf"), FedCIA)

    def leaves(self) -> Leaves:
        """The backbone's, of which nothing comes from the server by its name: what is averaged stays, too."""
        return super().leaves() | dict.fromkeys(self.averaged, kept()) | {"items": kept(table=True)}

    @property
    def averaged(self) -> tuple[str, ...]:
        """What FedAvg is over: the leaves that are the same for clients of a kind."""
        return ("items",)

    @property
    def kinds(self) -> int:
        """How many kinds of client there are, in turn."""
        return max(len(self.widths), len(self.models), 1)

    def init_server(self, federation: Federation) -> State:
        """No relation is known. Under `mean` the leaves of every kind, under `graph` a table for every client."""
        if self.aggregation in ("mean", "graph"):
            ids = torch.arange(self.kinds if self.aggregation == "mean" else federation.n_clients)
            leaves = self.init_clients(federation, ids)
            return {n: leaves[n] for n in self.averaged}
        return {"similarity": torch.zeros(federation.n_items, federation.n_items)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Everyone starts from the same table, in the client's width."""
        table = self.starting(federation, "items", federation.n_items, self.dim)
        return {"items": table * self.columns(ids)[:, None]}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """User vectors in the client's width."""
        owner = np.empty(federation.n_users, dtype=np.int64)
        owner[federation.members.values] = federation.members.rows
        of_clients = self.columns(torch.from_numpy(owner)[users])
        return {"user": super().init_users(federation, users)["user"] * of_clients}

    def columns(self, ids: Tensor) -> Tensor:
        """(C, d) ones on the columns that a client has."""
        wide = torch.tensor(self.widths or (self.dim,))[ids % max(len(self.widths), 1)]
        return (torch.arange(self.dim) < wide[:, None]).float()

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """C_s or its factor, the mean or a table of one's own; nothing to those who train alone."""
        if self.aggregation == "alone":
            return Payload(ids, {})
        if self.aggregation == "mean":
            each = {n: Each(x[ids % self.kinds]) if self.kinds > 1 else Shared(x[0]) for n, x in server.items()}
            return Payload(ids, each)
        if self.aggregation == "graph":
            return Payload(ids, {n: Each(x[ids]) for n, x in server.items()})
        if self.aggregation == "collaborative" and self.rank:
            return Payload(ids, {"factor": Shared(leading_factor(server["similarity"], self.rank))})
        return Payload(ids, {n: Shared(x) for n, x in server.items()})

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Its own leaves, the items fitted to C_s."""
        p = dict(clients)
        if "items" in down:
            p |= {n: down[n].expand_as(p[n]) for n in self.averaged}
        elif down.fields:
            p["items"] = self.towards(p["items"], down)
        return p

    def towards(self, items: Tensor, down: Payload) -> Tensor:
        """The items moved towards the solution of Eq. 6, (C, M, d); as they are before there is a C_s."""
        most = items.shape[1] if self.align_steps else self.dim  # a descent sees all of C_s
        factor = down["factor"] if self.rank else leading_factor(down["similarity"], most)
        if not factor.any():
            return items
        if self.align_steps:
            return descended(items, factor, self.align_steps, self.align_lr)
        return aligned(items, factor, self.columns(down.ids), self.align)

    def phases(self, round: int) -> list[Phase]:
        """BPR."""
        rates = dict.fromkeys(("items", *named(self.leaves(), "private")), self.lr)
        return [self.phase(rates, loss=self.loss, ranked=True)]

    def loss(self, p: State, batch: Batch) -> Tensor:
        """BPR (Eq. 5), and λ/2 of the squared vectors in the batch, (C,)."""
        return self.bpr(p, self.view(p), batch) + 0.5 * self.l2 * squares(p["user"], p["items"], batch)

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """C_k or its factor, or what is averaged; nothing from those who train alone."""
        fields: dict[str, Field] = {"weight": self.weight(data)}
        if self.aggregation in ("mean", "graph"):
            fields |= {n: Each(p[n]) for n in self.averaged}
        elif self.aggregation == "collaborative":
            table = p["items"]
            fields["similarity"] = Each(truncated(table, self.rank)) if self.rank else Product(table, table)
        return Payload(data.ids, fields)

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """C_s = Σ_k C_k / K (Sec. 5.2.3), kept as a factor; sums stream, nothing is larger than one matrix."""
        if self.aggregation == "mean":
            return server | self.means(server, uplinks)
        if self.aggregation == "graph":
            return server | self.near(server, uplinks)
        total, count = None, 0
        for up in uplinks:
            count += len(up.ids)
            if "similarity" in up:
                total = add(total, up.fields["similarity"], bool(self.rank))
        if total is None:
            return server
        return {"similarity": (total / count).float()}

    def means(self, server: State, uplinks: Iterable[Payload]) -> State:
        """Weighted means over the clients of each kind, (K, …); a kind of which nobody came stays as it is."""
        count, sums = torch.zeros(self.kinds, dtype=torch.float64), {n: torch.zeros(1) for n in self.averaged}
        for up in uplinks:
            weight = torch.zeros(self.kinds, len(up.ids), dtype=torch.float64)
            weight[up.ids % self.kinds, torch.arange(len(up.ids))] = up["weight"].double()
            count += weight.sum(1)
            sums = {n: total + torch.tensordot(weight, up[n].double(), dims=1) for n, total in sums.items()}
        came = {n: (count > 0).view(-1, *[1] * (server[n].dim() - 1)) for n in sums}
        return {
            n: torch.where(came[n], total / count.clamp(min=1e-12).view(came[n].shape), server[n]).float()
            for n, total in sums.items()
        }

    def near(self, server: State, uplinks: Iterable[Payload]) -> State:
        """For every client the mean of those of its kind whose tables are near to its own, as GPFedRec relates them."""
        tables, came = server["items"].clone(), torch.zeros(len(server["items"]), dtype=torch.bool)
        for up in uplinks:
            tables[up.ids], came[up.ids] = up["items"], True
        for kind in range(self.kinds):
            ids = came.nonzero()[:, 0]
            ids = ids[ids % self.kinds == kind]
            if len(ids):
                mix(tables, ids, GPFedRec().relate(gram(tables, ids)).float())
        return {"items": tables}

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The items after the newest download: a round ends with that (Algorithm 1, lines 15–18); or before it."""
        return dict(clients) if self.scored_with == "own" else FedCIA.receive(self, clients, down, data)
