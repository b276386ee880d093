"""FedCIA: clients share how items relate, not where they lie; every client fits its own items to the mean relation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tacit.core.method import Method, Moment, Phase
from tacit.core.optim import Optimizer
from tacit.core.payload import Each, Field, Payload, Product, Rows, Shared, State
from tacit.core.scorers import dot, pick
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.methods.fedncf import FedNCF
from tacit.methods.gpfedrec import GPFedRec
from tacit.methods.lightgcn import FedLightGCN, graph, halves, propagate, squares
from tacit.methods.pfedgraph import gram, mix


@dataclass(frozen=True)
class FedCIA(Method):
    """Train alone, upload C_k = Q_k Q_kᵀ, fit the items to the mean of all C_k, and train on (Algorithm 1).

    Symbols: E(i|θ_i) -> items, C_s -> similarity, β -> beta. Eq. 6 asks for the Q whose similarities are nearest
    to C_s: its solutions are the leading eigenvectors of C_s in any rotation, and a client takes the one nearest to the
    items it has. `align_steps` descends towards it instead, as the public code does. With `rank` = 0 whole matrices
    travel, M × M values; with r, factors of M × r (Sec. 5.4.2). Aggregations of Table 3: `collaborative`, `mean`
    (FedAvg), `graph` (every client gets the mean of those near to it, as in GPFedRec) and `alone`. Backbones: `mf`,
    `lightgcn`, `mlp`, and `gfcf`, which has no parameters (Sec. 5.3). `widths` gives clients tables of different width
    in turn, `models` different backbones (Sec. 6.7); clients of one kind can be averaged, all can collaborate.
    Decisions: docs/decisions/0013-fedcia.md.
    """

    backbone: Literal["mf", "lightgcn", "mlp", "gfcf"] = "mf"
    aggregation: Literal["collaborative", "mean", "graph", "alone"] = "collaborative"
    rank: int = 0
    align: float = 1.0  # how far to go towards the solution of Eq. 6
    align_steps: int = 0  # 0: solve it; else descend so many steps
    align_lr: float = 0.1
    widths: tuple[int, ...] = ()
    models: tuple[Literal["mf", "lightgcn", "mlp"], ...] = ()  # in the place of one backbone
    beta: float = 60.0  # β, weight of the global filter; `gfcf` alone
    ideal: float = 0.3  # α, weight of the ideal low-pass filter; `gfcf` alone
    directions: int = 32  # of the ideal filter; `gfcf` alone

    dim: int = 64
    lr: float = 0.02
    epochs: int = 5
    batch: int = 1024
    negatives: int = 1
    rounds: int = 30
    optimizer: Optimizer = "adam"
    init: float = 0.01
    l2: float = 1e-3  # of the vectors in a batch
    weighting: Literal["size", "uniform"] = "uniform"
    scored_with: Literal["server", "own"] = "own"

    name: ClassVar[str] = "fedcia"
    paper: ClassVar[str] = "Han et al. 2025, Federated Collaborative Information Aggregation"
    individual: ClassVar[str] = "similarities of all pairs of items are too many to mask, and factors cannot be added"
    shared: ClassVar[tuple[str, ...]] = ()
    kept: ClassVar[tuple[str, ...]] = ("items",)
    every_row: ClassVar[bool] = True  # alignment moves every row

    @classmethod
    def refined(cls, settings: Mapping[str, Any]) -> type[Method]:
        """The backbone asked for."""
        if settings.get("models"):
            return _Mixed
        return {"lightgcn": _LightGCN, "mlp": _MLP, "gfcf": _Filter}.get(settings.get("backbone", "mf"), FedCIA)

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
        table = self.noise(federation, "items", federation.n_items, self.dim)
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
        elif (factor := self.relation(down)) is not None:
            if self.align_steps:
                p["factor"] = factor.expand(len(data.ids), -1, -1)
            else:
                p["items"] = aligned(p["items"], factor, self.columns(data.ids), self.align)
        return p

    def relation(self, down: Payload) -> Tensor | None:
        """The factor of C_s, (M, r); None before there is one."""
        if not down.fields:
            return None
        factor = down["factor"] if self.rank else leading_factor(down["similarity"], self.dim)
        return factor if factor.any() else None

    def phases(self, round: int) -> list[Phase]:
        """Alignment by descent where that is asked for, then BPR."""
        rates = dict.fromkeys(("items", *self.private), self.lr)
        train = Phase((rates,), self.loss, self.epochs, self.batch, self.optimizer, ranked=True)
        if self.align_steps and round > 1 and self.aggregation == "collaborative":
            return [Phase(({"items": self.align_lr},), self.misfit, self.align_steps, 0, "sgd"), train]
        return [train]

    def loss(self, p: State, batch: Batch) -> Tensor:
        """BPR (Eq. 5), and λ/2 of the squared vectors in the batch, (C,)."""
        return self.bpr(p, self.view(p), batch) + 0.5 * self.l2 * squares(p["user"], p["items"], batch)

    def misfit(self, p: State, batch: Batch) -> Tensor:
        """‖Q Qᵀ − C_s‖_F, (C,), from products of width d alone; the paper's MSE is its square by M²."""
        table, factor = p["items"], p["factor"]
        own, cross, whole = table.mT @ table, table.mT @ factor, factor.mT @ factor
        square = own.square().sum((1, 2)) - 2 * cross.square().sum((1, 2)) + whole.square().sum((1, 2))
        return square.clamp(min=1e-12).sqrt()

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """C_k or its factor, or what is averaged; nothing from those who train alone."""
        weight = data.size.float() if self.weighting == "size" else torch.ones(len(data.ids))
        fields: dict[str, Field] = {"weight": Each(weight, private=False)}
        if self.aggregation in ("mean", "graph"):
            fields |= {n: Each(p[n]) for n in self.averaged}
        elif self.aggregation == "collaborative":
            table = p["items"]
            fields["similarity"] = Each(truncated(table, self.rank)) if self.rank else Product(table, table)
        return Payload(data.ids, fields)

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """User vectors, items and what else the backbone has."""
        return {n: p[n] for n in (*self.private, *self.kept)}

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

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """Its own items, fitted to the newest C_s: a round of Algorithm 1 ends with that (lines 15–18)."""
        if self.aggregation in ("mean", "graph") or self.align_steps:
            return dict(clients)
        return FedCIA.receive(self, clients, down, data)

    def footprint(self, size: int, n_items: int) -> int:
        """The whole table."""
        return n_items


@dataclass(frozen=True)
class _LightGCN(FedCIA, FedLightGCN):
    """Similarities of the items before propagation, scores after it (Sec. 6.1.4)."""

    objective: Literal["bpr", "bce"] = "bpr"

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """And the client's graph."""
        return FedCIA.receive(self, clients, down, data) | graph(data)

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """And the client's graph."""
        return FedCIA.serve(self, clients, down, data, phase) | graph(data)


@dataclass(frozen=True)
class _MLP(FedCIA, FedNCF):
    """A perceptron over user and item, which stays on the client unless all is averaged."""

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """Nothing."""
        return ()

    @property
    def averaged(self) -> tuple[str, ...]:
        """The table, and under FedAvg the perceptron."""
        return ("items", *(self.perceptron if self.aggregation == "mean" else ()))

    @property
    def kept(self) -> tuple[str, ...]:  # type: ignore[override]
        """What is averaged."""
        return self.averaged

    @property
    def private(self) -> tuple[str, ...]:  # type: ignore[override]
        """User vectors and what is not averaged."""
        return ("user", *(n for n in self.perceptron if n not in self.averaged))

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Everyone starts from the same perceptron."""
        own = FedNCF.init_server(self, federation)
        leaves = {n: x.expand(len(ids), *x.shape) for n, x in own.items() if n != "items"}
        has = self.columns(ids).repeat(1, 2)[..., None]  # (C, 2d, 1): nothing goes in by a column that a client lacks
        leaves["w0"] = leaves["w0"] * has
        return FedCIA.init_clients(self, federation, ids) | leaves


@dataclass(frozen=True)
class _Mixed(_MLP):
    """Every client has one of several models (Sec. 6.7): what they share is how their items relate."""

    propagations: int = 2  # layers of LightGCN

    neighbours: ClassVar[bool] = True

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """And which model it is, with the client's graph."""
        return FedCIA.receive(self, clients, down, data) | self.model(data)

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """And which model it is, with the client's graph."""
        return FedCIA.serve(self, clients, down, data, phase) | self.model(data)

    def model(self, data: Cohort) -> State:
        """The place of each client's model among `models`, (C, 1, 1), and the graphs."""
        return {"model": (data.ids % len(self.models)).view(-1, 1, 1)} | graph(data)

    def of(self, p: State, name: str) -> Tensor:
        """Whether a client has that model, (C, 1, 1)."""
        places = torch.tensor([place for place, model in enumerate(self.models) if model == name], dtype=torch.long)
        return torch.isin(p["model"], places)

    def view(self, p: State) -> Tensor:
        """Items and behind them users, (C, L + U, d), smoothed over the graph where the model does that."""
        plain = torch.cat([p["items"], p["user"]], 1)
        users, items = propagate(p["user"], p["items"], p["to_users"], p["to_items"], self.propagations)
        return torch.where(self.of(p, "lightgcn"), torch.cat([items, users], 1), plain)

    def score(self, p: State, table: Tensor) -> Tensor:
        """By inner products or by perceptron, (C, U, L)."""
        items, users = halves(p, table)
        users = pick(users, p["slots"]) if "slots" in p else users
        return torch.where(self.of(p, "mlp"), FedNCF.score(self, p | {"user": users}, items), dot(users, items))

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """The same for chosen pairs, (C, B)."""
        items, users = halves(p, table)
        product = (pick(users, slot) * pick(items, row)).sum(-1)
        return torch.where(self.of(p, "mlp")[..., 0], FedNCF.pairs(self, p, items, slot, row), product)


@dataclass(frozen=True)
class _Filter(FedCIA):
    """GF-CF on every client: upload the mixed filter F_k once, score with x F_k + β x F̄ (Sec. 5.3)."""

    closed_form: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    private: ClassVar[tuple[str, ...]] = ()
    kept: ClassVar[tuple[str, ...]] = ()
    tables: ClassVar[tuple[str, ...]] = ()

    def length(self) -> int:
        """One shot."""
        return 1

    def init_server(self, federation: Federation) -> State:
        """No filter yet."""
        return {"filter": torch.zeros(federation.n_items, federation.n_items)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """A client is its users' histories."""
        return {}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """A user is its history."""
        return {}

    def phases(self, round: int) -> list[Phase]:
        """Nothing is trained."""
        return []

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """F̄, which has many more directions than any F_k."""
        return Payload(ids, {} if self.aggregation == "alone" else {"filter": Shared(server["filter"])})

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The local filter as two factors."""
        left, right = local_filter(data.history(), self.directions, self.ideal)
        return {"left": left, "right": right}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """F_k, or its leading singular vectors."""
        fields: dict[str, Field] = {"weight": Each(torch.ones(len(data.ids)), private=False)}
        if self.aggregation == "collaborative":
            if self.rank:
                left, right = truncated_product(p["left"], p["right"], self.rank)
                fields |= {"left": Each(left), "right": Each(right)}
            else:
                fields["filter"] = Product(p["left"], p["right"])
        return Payload(data.ids, fields)

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """Nothing: the filter comes from the histories at any time."""
        return {}

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """F̄ = Σ_k F_k / K."""
        total, count = torch.zeros_like(server["filter"], dtype=torch.float64), 0
        for up in uplinks:
            count += len(up.ids)
            if "left" in up:
                Product(up["left"], up["right"]).add_to(total)
            elif "filter" in up:
                total = add(total, up.fields["filter"], factors=False)
        return {"filter": (total / max(count, 1)).float()}

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """Histories, the local filter of all users of the client, and F̄."""
        federation = data.federation
        whole = federation.people(data.ids)  # the filter is the client's, whichever of its users are ranked
        left, right = local_filter(whole.history(), self.directions, self.ideal)
        history = data.history()
        shared = down["filter"] if "filter" in down else torch.zeros(federation.n_items, federation.n_items)
        return {"history": history, "left": left, "right": right, "filter": shared}

    def view(self, p: State) -> Tensor:
        """The right factor, (C, M, r); what makes a score of it is in `score`."""
        return p["right"]

    def score(self, p: State, table: Tensor) -> Tensor:
        """x F_k + β x F̄, (C, U, M)."""
        return p["history"] @ p["left"] @ table.mT + self.beta * (p["history"] @ p["filter"])

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """The same for chosen pairs, (C, B)."""
        history = pick(p["history"], slot)  # (C, B, M)
        near = ((history @ p["left"]) * pick(table, row)).sum(-1)
        return near + self.beta * (history * p["filter"].T[row]).sum(-1)


def aligned(table: Tensor, factor: Tensor, columns: Tensor, step: float) -> Tensor:
    """Tables (C, M, d) moved towards argmin_Q ‖Q Qᵀ − F Fᵀ‖, in the rotation nearest to them.

    By Eckart and Young the minimisers of rank d are the first d columns of F = V Λ^½ in any rotation R; the nearest
    one has R = U Wᵀ from the singular value decomposition of Fᵀ Q (Schönemann 1966). A client has its `columns` (C, d).
    """
    best = torch.zeros(table.shape[1:])
    width = min(factor.shape[1], table.shape[2])
    best[:, :width] = factor[:, :width]
    target = best * columns[:, None]  # (C, M, d)
    left, _, right = torch.linalg.svd(target.mT @ table)
    nearest: Tensor = (target @ (left @ right)) * columns[:, None]
    return (1 - step) * table + step * nearest


def truncated(table: Tensor, rank: int) -> Tensor:
    """(C, M, r) the factor of the best approximation of Q Qᵀ by rank r, from the d × d products alone."""
    vectors: Tensor = torch.linalg.eigh(table.mT @ table)[1]  # ascending
    short = table @ vectors.flip(-1)[..., :rank]  # Q w_k = σ_k u_k
    missing = rank - short.shape[2]
    return torch.nn.functional.pad(short, (0, missing)) if missing > 0 else short


def truncated_product(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best approximation of left · rightᵀ by rank r, again as two factors, (C, M, r) each."""
    q, r = torch.linalg.qr(left)
    k, s = torch.linalg.qr(right)
    u, values, v = torch.linalg.svd(r @ s.mT)
    root = values.sqrt()[:, None, :rank]
    return q @ (u[..., :rank] * root), k @ (v.mT[..., :rank] * root)


_FACTORS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # a server's matrix is decomposed once, not for a chunk


def leading_factor(similarity: Tensor, rank: int) -> Tensor:
    """(M, r) F with F Fᵀ the best approximation of a symmetric matrix by rank r, columns by size."""
    from scipy.linalg import eigh

    known: dict[int, Tensor] = _FACTORS.setdefault(similarity, {})  # type: ignore[no-untyped-call]
    if rank not in known:
        size = len(similarity)
        some = min(rank, size)
        values, vectors = eigh(similarity.double().numpy(), subset_by_index=[size - some, size - 1])
        factor = torch.from_numpy(vectors * np.sqrt(np.maximum(values, 0))).flip(1).float()
        known[rank] = torch.nn.functional.pad(factor, (0, rank - some))
    return known[rank]


def add(total: Tensor | None, field: Field, factors: bool) -> Tensor:
    """The sum of the clients' matrices so far; `factors`: the field holds Q with Q Qᵀ the matrix."""
    value = field.left if isinstance(field, Product) else field.dense()
    if total is None:
        total = torch.zeros(value.shape[1], value.shape[1], dtype=torch.float64)
    if isinstance(field, Product):
        field.add_to(total)
    elif factors:
        Product(value, value).add_to(total)
    else:
        total += value.double().sum(0)
    return total


def local_filter(history: Tensor, directions: int, ideal: float) -> tuple[Tensor, Tensor]:
    """GF-CF's mixed filter of each client as left · rightᵀ, (C, M, r) each, from histories (C, U, M).

    R̃ᵀR̃ + α D^(−½) V Vᵀ D^(½): R̃ with the client's own degrees, V its first right singular vectors, from the U × U
    products (Shen et al. 2021, Eq. 9).
    """
    users, items = history.sum(2, keepdim=True), history.sum(1, keepdim=True)  # degrees (C, U, 1), (C, 1, M)
    root = items.sqrt()
    inverse = torch.where(items > 0, 1 / root.clamp(min=1e-12), 0)
    normal = history * torch.where(users > 0, users.clamp(min=1e-12).rsqrt(), 0) * inverse  # R̃, (C, U, M)
    values, vectors = torch.linalg.eigh(normal @ normal.mT)  # (C, U), ascending
    some = min(directions, history.shape[1])
    size = values.flip(1)[:, :some].clamp(min=0).sqrt()  # singular values
    there = size > 1e-5
    wanted = normal.mT @ vectors.flip(2)[..., :some] * torch.where(there, 1 / size.clamp(min=1e-12), 0)[:, None]
    left = torch.cat([normal.mT, ideal * inverse.mT * wanted], 2)
    return left, torch.cat([normal.mT, root.mT * wanted], 2)
