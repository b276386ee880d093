"""FedCIA without parameters: clients exchange graph filters once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit.core.closed_form import ClosedForm
from tacit.core.leaves import Leaves, shared
from tacit.core.method import Moment
from tacit.core.payload import Each, Field, Payload, Product, State
from tacit.core.settings import Amount, Count, Rank, Search
from tacit.data.cohort import Cohort, Federation
from tacit.methods.fedcia import FedCIA
from tacit.methods.similarity import add, local_filter, truncated_product


@dataclass(frozen=True)
class FedCIAFilter(ClosedForm):
    """GF-CF on every client: upload the mixed filter F_k once, score with x F_k + β x F̄ (Sec. 5.3)."""

    backbone: Literal["gfcf"] = "gfcf"
    aggregation: Literal["collaborative", "alone"] = "collaborative"
    rank: Rank = 0  # of what travels; 0: whole matrices
    beta: Annotated[Amount, Search(1, 1000, log=True)] = 60.0  # β, weight of the global filter
    ideal: Annotated[Amount, Search(0, 1)] = 0.3  # α, weight of the ideal low-pass filter
    directions: Annotated[Count, Search(8, 256, log=True)] = 32  # of the ideal filter

    name: ClassVar[str] = "fedcia-gfcf"
    paper: ClassVar[str] = FedCIA.paper
    individual: ClassVar[str] = FedCIA.individual

    def leaves(self) -> Leaves:
        """The global filter, where there is one."""
        return {} if self.aggregation == "alone" else {"filter": shared()}

    def init_server(self, federation: Federation) -> State:
        """No filter yet."""
        return {"filter": torch.zeros(federation.n_items, federation.n_items)}

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

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """Histories, the local filter of all users of the client, and F̄."""
        federation = data.federation
        whole = federation.people(data.ids)  # the filter is the client's, whichever of its users are ranked
        left, right = local_filter(whole.history(), self.directions, self.ideal)
        history = data.history()
        shared = down["filter"] if "filter" in down else torch.zeros(federation.n_items, federation.n_items)
        return {"history": history, "left": left, "right": right, "filter": shared}

    def scores(self, p: State) -> Tensor:
        """x F_k + β x F̄, (C, U, M)."""
        return p["history"] @ p["left"] @ p["right"].mT + self.beta * (p["history"] @ p["filter"])
