"""pFedGraph: a mixture of everybody's tables for each client, its weights from a quadratic programme on the simplex."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from tacit import rng
from tacit.core.method import Moment, spread
from tacit.core.objective import gradient_by
from tacit.core.payload import Each, Payload, Shared, State
from tacit.core.rounds import round_up
from tacit.core.scorers import inner_product_step
from tacit.core.settings import Amount, Decay, Search, Share, Starts, Weight
from tacit.core.simplex import project
from tacit.core.trained import Trained
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.errors import UserError
from tacit.methods.personal import Personal

BLOCK = 256  # items of all mixed clients at a time: nothing larger than that is written beside the tables


@dataclass(frozen=True)
class PFedGraph(Personal, Trained):
    """Client i starts a round from Σ_j w_ij θ_j, its own mixture of the item tables (pFedGraph, 2023).

    Symbols: θ_i -> the i-th of the server's `tables`, θ⁰ -> `start`, w_i -> a row of `graph`, p -> the clients' shares
    of the data, α -> prior, λ -> proximity. The score is FedMF's. A client that is not mixed goes on from its own.
    Departures from the paper: docs/decisions/0014-mixtures.md.
    """

    share: Decay = 0.1  # of a round's clients that are mixed, with one another
    prior: Annotated[Amount, Search(0.1, 10, log=True)] = 0.8  # α: how strongly the weights are held to p
    own: Share = 0.0  # of a client's own table, beside its mixture
    proximity: Weight = 0.01  # λ, of the cosine to the table that training starts from

    name: ClassVar[str] = "pfedgraph"
    paper: ClassVar[str] = "Ye et al. 2023, over FedMF as PFedCLR compares with it"
    starts: ClassVar[Starts] = (
        {"optimizer": "sgd", "lr": 1.0, "table_lr": 1000.0, "epochs": 1, "init": 0.1, "share": 1.0},
    )
    individual: ClassVar[str] = "it compares clients' tables with one another and mixes some for each client"

    def init_server(self, federation: Federation) -> State:
        """The same table for every client."""
        start = super().init_server(federation)["items"]
        tables = start.expand(federation.n_clients, *start.shape)
        return {"start": start, "tables": tables} | ({"mean": start} if self._meets else {})

    @property
    def _meets(self) -> bool:
        """Whether the tables' mean is needed."""
        return self.own_share < 1 or self.own_decay > 0

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """Each client's own table, and the mean of all where it ranks nearer to it."""
        own = Payload(ids, {"items": Each(server["tables"][ids])})
        return own if self.own_share == 1 else Payload(ids, {**own.fields, "mean": Shared(server["mean"])})

    def common(self, down: Payload, data: Cohort) -> State:
        """The mean of the tables."""
        return {"items": spread(down.fields["mean"], data, table=True)}

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Beside the table, what the cosine needs: the rows as received and squared norms."""
        p = super().receive(clients, down, data)
        if self.proximity:
            p["items"] = p["anchor"] = p["items"] * data.real[..., None]  # padding is zero and stays so
            p["norm2"] = down["items"].square().sum((1, 2))  # (C,)
            p["rest"] = p["norm2"] - within(p["anchor"], p["anchor"])  # of the rows that do not train
        return p

    @gradient_by("proximal_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """F_i(θ) − λ · cos(θ, θ received), (C,)."""
        bce = super().loss(p, batch)
        return bce - self.proximity * self.closeness(p)[0] if self.proximity else bce

    def closeness(self, p: State) -> tuple[Tensor, Tensor]:
        """(C,) cosine of a table to the one received, and its squared norm; rows that do not train are in both."""
        norm2 = p["rest"] + within(p["items"], p["items"])
        return (p["rest"] + within(p["items"], p["anchor"])) / (norm2 * p["norm2"]).sqrt(), norm2

    def proximal_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """FedMF's step, and ∂cos/∂θ = θ⁰ / (‖θ‖‖θ⁰‖) − cos · θ / ‖θ‖² with θ⁰ as received."""
        if batch.count is None:
            return None
        loss, grads = inner_product_step(p["user"], p["items"], batch, names, scratch)
        if self.proximity:
            cosine, norm2 = self.closeness(p)
            loss = loss - self.proximity * cosine
            pull, shrink = (norm2 * p["norm2"]).rsqrt(), cosine / norm2
            for factor, towards in ((-pull, p["anchor"]), (shrink, p["items"])):
                grads["items"].addcmul_((self.proximity * factor).view(-1, 1, 1), towards)
        return loss, grads

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Take the clients' tables over; mix those of a sample with one another; what is personal decays."""
        tables = server["tables"].clone()
        came: list[Payload] = []
        for up in uplinks:
            tables[up.ids] = up["items"]
            came.append(Payload(up.ids, {n: field for n, field in up.fields.items() if n != "items"}))
        server = server | {"tables": tables}
        if came and self._meets:
            ids, weight = torch.cat([up.ids for up in came]), torch.cat([up["weight"] for up in came])
            server["mean"] = torch.tensordot(portions(weight).float(), tables[_places(tables, ids)], dims=1)
        if came:
            traits = self.chosen(came, now)
            mix(tables, traits["ids"], self.graph(server, traits).float(), self.own)
        if self.own_decay:
            tables.lerp_(server["mean"], self.own_decay)
        return server

    def chosen(self, came: list[Payload], now: Moment) -> State:
        """The clients to mix, ascending, and what they sent beside their tables."""
        ids = torch.cat([up.ids for up in came])
        key = rng.bits(now.seed, "mix", now.round, ids, 1)[:, 0]
        order = np.argsort(key, kind="stable")[: round_up(self.share * len(ids))]
        places = torch.from_numpy(order[np.argsort(ids.numpy()[order])])
        sent = {n: torch.cat([up[n] for up in came])[places] for n in came[0].fields}
        return sent | {"ids": ids[places]}

    def graph(self, server: State, traits: State) -> Tensor:
        """(n, n) row i: argmin over the simplex of α‖w − p‖² − Σ_j w_j cos(θ_i − θ⁰, θ_j − θ⁰)."""
        products = gram(server["tables"], traits["ids"], server["start"])
        length = products.diagonal().sqrt().clamp(min=1e-12)
        cosine = products / length[:, None] / length
        return project(portions(traits["weight"]) + cosine / (2 * self.prior))


def within(one: Tensor, other: Tensor) -> Tensor:
    """(C,) inner product of each client's two tables."""
    return (one * other).sum((1, 2))  # ten times as fast as einsum at this size


def portions(weight: Tensor) -> Tensor:
    """p: each client's share of the data of all, (n,)."""
    return weight.double() / weight.double().sum()


def gram(tables: Tensor, ids: Tensor, start: Tensor | None = None) -> Tensor:
    """(n, n) inner products of these clients' tables, or of what they added to a starting one, in double precision."""
    out, rows = np.zeros((len(ids), len(ids))), _places(tables, ids)
    for first in range(0, tables.shape[1], BLOCK):
        items = slice(first, first + BLOCK)
        mine = tables[:, items][rows]
        flat = (mine if start is None else mine - start[items]).flatten(1).numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # said below, in words
            out += flat @ flat.T  # NumPy knows a matrix times itself: half the work
    if not np.isfinite(out).all():
        raise UserError("the clients' tables are no longer numbers: training has diverged; lower its rates")
    return torch.from_numpy(out)


def mix(tables: Tensor, ids: Tensor, graph: Tensor, own: float = 0.0) -> None:
    """Replace these clients' tables by own · θ_i + (1 − own) · Σ_j w_ij θ_j, in place."""
    weights, rows = (1 - own) * graph, _places(tables, ids)
    weights.diagonal().add_(own)
    for first in range(0, tables.shape[1], BLOCK):
        items = slice(first, first + BLOCK)
        mine = tables[:, items][rows]  # (n, B, d)
        tables[rows, items] = torch.from_numpy(weights.numpy() @ mine.flatten(1).numpy()).view_as(mine)


def _places(tables: Tensor, ids: Tensor) -> Tensor | slice:
    """Where these clients' tables are; all of them are read where they are, without a copy."""
    return slice(None) if torch.equal(ids, torch.arange(len(tables))) else ids
