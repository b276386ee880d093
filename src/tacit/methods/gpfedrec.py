"""GPFedRec: the server relates users by the tables they upload, and guides each towards those of its neighbours."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit import rng
from tacit.core.leaves import Leaves, private
from tacit.core.method import Moment, spread
from tacit.core.objective import gradient_by
from tacit.core.payload import Each, Field, Payload, Rows, Shared, State
from tacit.core.settings import Amount, Choices, Rate, Search, Weight, Whole
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.methods.fedncf import FedNCF
from tacit.methods.pfedgraph import gram, mix


@dataclass(frozen=True)
class GPFedRec(FedNCF):
    """Score MLP([p_u, q_i]) with user vector and perceptron private; train from the mean table, near the neighbours'.

    Symbols: the tables uploaded by a user's neighbours, averaged -> target, their mean over all users -> items, λ ->
    guidance. The client's loss is BCE + λ·MSE(items, target) over the whole table. A row that no sample of a round
    touches only moves towards its target, by the same factor in every step: the closed form writes it after training
    (plain SGD alone; with another optimiser every row trains). A client ranks with the table its training left.
    Departures from the paper, the server's cost and how the settings were chosen: docs/decisions/0008-gpfedrec.md.
    """

    dim: int = 32
    lr: float = 0.1  # of the perceptron
    user_lr: Rate = 7.9  # these rates are the public code's: 0.1 · (80 − 1), and 0.1 · 80 · M for 1682 items
    table_lr: float = 13456.0
    guidance: Weight = 1.0
    graph: Annotated[Literal["similar", "dissimilar"], Choices()] = (
        "similar"  # the paper's neighbours, and those the public code takes
    )
    neighbourhood: Whole = 0  # this many neighbours; 0: all whose closeness is above the mean
    threshold: Annotated[Amount, Search(0.5, 2, log=True)] = 1.0  # times the mean
    hops: Whole = 1
    init: float = 1.0
    scored_with: Literal["server", "own"] = "own"
    weighting: Literal["size", "uniform"] = "uniform"

    name: ClassVar[str] = "gpfedrec"
    paper: ClassVar[str] = "Zhang et al. 2024, Graph-Guided Personalization for Federated Recommendation"
    individual: ClassVar[str] = "it relates clients by their tables and averages each one's neighbours for it"

    def leaves(self) -> Leaves:
        """FedNCF's, with a private perceptron."""
        return super().leaves() | dict.fromkeys(self.perceptron, private())

    @property
    def every_row(self) -> bool:
        """Whether untouched rows have no closed form."""
        return self.optimizer != "sgd"

    def init_server(self, federation: Federation) -> State:
        """One table for all, and nobody in the graph; the targets come with the first uploads."""
        return Trained.init_server(self, federation) | {"seen": torch.zeros(federation.n_clients, dtype=torch.bool)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """The same perceptron for all, uniform within ±1/√inputs."""
        out: State = {}
        for n, (rows, columns) in enumerate(pairwise((2 * self.dim, *self.layers, 1))):
            drawn = rng.uniform(federation.seed, f"init/layer{n}", 0, torch.zeros(1), (rows + 1) * columns)
            one = torch.from_numpy(2 * drawn - 1).float().view(rows + 1, columns) / rows**0.5
            out |= {f"w{n}": one[:-1].expand(len(ids), -1, -1), f"b{n}": one[-1].expand(len(ids), -1)}
        return out

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """The same vector for all."""
        return {"user": self.starting(federation, "user", self.dim).expand(len(users), -1)}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """The mean table, and each client's target; who has none yet is guided to the mean."""
        items = server["items"]
        seen = server["seen"][ids]
        if not seen.any():
            return Payload(ids, {"items": Shared(items), "target": Shared(items)})
        target = server["targets"].index_select(0, ids)
        target[~seen] = items
        return Payload(ids, {"items": Shared(items), "target": Each(target)})

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The client's leaves, the mean table, the target, and the weight of a squared difference (C, 1, 1)."""
        p = super().receive(clients, down, data)
        target = spread(down.fields["target"], data, table=True)
        if not data.real.all():
            target[~data.real] = p["items"][~data.real]  # padding is where it is pulled to
        weight = torch.full((len(data.ids), 1, 1), self.guidance / (data.federation.n_items * self.dim))
        return p | {"target": target, "pull": weight}

    def phases(self, round: int) -> list[Phase]:
        """Perceptron, user vector and table move together."""
        rates = dict.fromkeys(self.perceptron, self.lr)
        return [self.phase(rates | {"user": self.user_lr, "items": self.table_rate}, loss=self.loss)]

    @gradient_by("guided_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """BCE + λ·MSE(items, target), of the second the rows that the client trains, (C,)."""
        return super().loss(p, batch) + self.distance(p)

    def distance(self, p: State) -> Tensor:
        """λ / (M·d) · Σ (items − target)², (C,)."""
        return ((p["items"] - p["target"]).square() * p["pull"]).sum((1, 2))

    def guided_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """`loss` and its gradients for one user."""
        found = self.perceptron_gradient(p, batch, names, scratch)
        if found is None:
            return None
        loss, grads = found
        if "apart" not in scratch:
            scratch["apart"] = torch.empty_like(p["items"])
        apart = torch.sub(p["items"], p["target"], out=scratch["apart"])
        if batch.report:
            flat = apart.flatten(1)[:, None]  # (C, 1, L·d)
            loss = loss + (flat @ flat.mT * p["pull"])[:, 0, 0]
        if "items" in grads:
            grads["items"].addcmul_(apart, p["pull"], value=2)
        return loss, grads

    def whole(self, name: str, p: State, down: Payload, data: Cohort) -> Field:
        """The table: touched rows as training left them, the others target + γ^steps · (received − target)."""
        if self.every_row or down.fields["target"].alike:
            return super().whole(name, p, down, data)
        size = self.batch or max(int(data.samples.max()), 1)
        steps = self.epochs * -(-data.samples // size)  # (C,)
        rate = self.table_rate
        left = (1 - 2 * rate * self.guidance / (data.federation.n_items * self.dim)) ** steps.float()  # γ^steps
        base = torch.lerp(down["target"], down[name], left.view(-1, 1, 1))
        return Rows(p[name], data.rows, data.real, base)

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Relate the clients of the round, average each one's neighbours, and all of these averages."""
        seen, came = server["seen"], torch.zeros_like(server["seen"])
        targets = torch.zeros(len(seen), *server["items"].shape)
        for up in uplinks:
            up.fields["items"].write_to(targets, up.ids)
            came[up.ids] = True
        if not came.any():
            return server
        ids = came.nonzero()[:, 0]
        mix(targets, ids, self.relate(gram(targets, ids)).float())
        items = torch.tensordot(came.float() / len(ids), targets, dims=1)
        if absent := (seen & ~came).nonzero()[:, 0].tolist():  # they keep what they had
            targets[absent] = server["targets"][absent]
        return server | {"items": items, "targets": targets, "seen": seen | came}

    def relate(self, products: Tensor) -> Tensor:
        """(n, n) weight of each neighbour, from the inner products of the clients' tables: rows add up to one."""
        length = products.diagonal().sqrt().clamp(min=1e-12)
        close = products / length[:, None] / length  # cosine
        if self.graph == "dissimilar":
            close = 1 - close
        if self.neighbourhood:
            nearest = close.topk(min(self.neighbourhood, len(close)), dim=1).indices
            chosen = torch.zeros_like(close).scatter_(1, nearest, 1.0)
        else:
            chosen = (close > self.threshold * close.mean()).to(close.dtype)
            chosen.diagonal()[~chosen.any(1)] = 1.0  # nobody is near enough: its own
        weights: Tensor = torch.linalg.matrix_power(chosen / chosen.sum(1, keepdim=True), self.hops)
        return weights
