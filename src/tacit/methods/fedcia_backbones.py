"""FedCIA over other models than matrix factorisation, and over several at once."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tacit.core.leaves import Leaves, kept, private
from tacit.core.payload import Payload, State
from tacit.core.scorers import dot, pick
from tacit.data.cohort import Cohort, Federation
from tacit.methods.fedcia import FedCIA
from tacit.methods.fedncf import FedNCF
from tacit.methods.lightgcn import FedLightGCN, graph, halves, propagate


@dataclass(frozen=True)
class OverLightGCN(FedCIA, FedLightGCN):
    """Similarities of the items before propagation, scores after it (Sec. 6.1.4)."""

    objective: Literal["bpr", "bce"] = "bpr"

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """And the client's graph."""
        return FedCIA.receive(self, clients, down, data) | graph(data)

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """And the client's graph."""
        return FedCIA.serve(self, clients, down, data, part) | graph(data)


@dataclass(frozen=True)
class OverPerceptron(FedCIA, FedNCF):
    """A perceptron over user and item, which stays on the client unless all is averaged."""

    def leaves(self) -> Leaves:
        """FedCIA's, with a perceptron that comes from nowhere: what is not averaged is private."""
        net = {n: kept() if n in self.averaged else private() for n in self.perceptron}
        return FedCIA.leaves(self) | net

    @property
    def averaged(self) -> tuple[str, ...]:
        """The table, and under FedAvg the perceptron."""
        return ("items", *(self.perceptron if self.aggregation == "mean" else ()))

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Everyone starts from the same perceptron."""
        own = FedNCF.init_server(self, federation)
        leaves = {n: x.expand(len(ids), *x.shape) for n, x in own.items() if n != "items"}
        has = self.columns(ids).repeat(1, 2)[..., None]  # (C, 2d, 1): nothing goes in by a column that a client lacks
        leaves["w0"] = leaves["w0"] * has
        return FedCIA.init_clients(self, federation, ids) | leaves


@dataclass(frozen=True)
class OverMixture(OverPerceptron):
    """Every client has one of several models (Sec. 6.6): what they share is how their items relate."""

    propagations: int = 2  # layers of LightGCN

    neighbours: ClassVar[bool] = True

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """And which model it is, with the client's graph."""
        return FedCIA.receive(self, clients, down, data) | self.model(data)

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """And which model it is, with the client's graph."""
        return FedCIA.serve(self, clients, down, data, part) | self.model(data)

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
