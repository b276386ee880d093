"""Sanity rows and closed-form references: what every comparison shows beside the learned methods."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tacit.core.aggregate import plain_sum
from tacit.core.method import Method, Moment, Phase
from tacit.core.payload import Each, Payload, State
from tacit.data.cohort import Cohort, Federation
from tacit.methods.ridge import ease_weights


@dataclass(frozen=True)
class Popularity(Method):
    """Score how often an item was touched in training, the same for everyone."""

    name: ClassVar[str] = "popularity"
    individual: ClassVar[str] = ""  # counts are summed
    closed_form: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    shared: ClassVar[tuple[str, ...]] = ("count",)
    private: ClassVar[tuple[str, ...]] = ()

    def length(self) -> int:
        """Counting takes one round."""
        return 1

    def init_server(self, federation: Federation) -> State:
        """No counts yet."""
        return {"count": torch.zeros(federation.n_items)}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """Nothing is private."""
        return {}

    def phases(self, round: int) -> list[Phase]:
        """Nothing is trained."""
        return []

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """The client's own counts."""
        return Payload(data.ids, {"count": Each(data.history().sum(1))})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Their sum."""
        return {"count": plain_sum(uplinks, "count")["count"].float()}

    def view(self, p: State) -> Tensor:
        """The counts as a table of width 1."""
        return p["count"][..., None]

    def score(self, p: State, table: Tensor) -> Tensor:
        """(C, 1, M): no user differs."""
        return table.mT


@dataclass(frozen=True)
class Oracle(Method):
    """No model at all: minus the times an item was drawn as a negative.

    Where a protocol never draws a held-out item, this finds it; under an honest one it is at chance.
    """

    name: ClassVar[str] = "oracle"
    individual: ClassVar[str] = ""  # nothing is sent
    shared: ClassVar[tuple[str, ...]] = ()
    private: ClassVar[tuple[str, ...]] = ("drawn",)
    tables: ClassVar[tuple[str, ...]] = ("drawn",)
    scored_with: Literal["server", "own"] = "own"

    def init_server(self, federation: Federation) -> State:
        """The server knows nothing."""
        return {}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """Nothing per user."""
        return {}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """No draws yet, (C, M, 1)."""
        return {"drawn": torch.zeros(len(ids), federation.n_items, 1)}

    def phases(self, round: int) -> list[Phase]:
        """Nothing is trained."""
        return []

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Add this round's draws."""
        drawn = torch.zeros(data.rows.shape).scatter_add_(1, data.row, data.drawn)
        return {"drawn": clients["drawn"] + drawn[..., None]}

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """The draws so far."""
        return clients

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """Nothing is sent."""
        return Payload(data.ids, {})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Nothing to aggregate; the uploads are still to be waited for."""
        for _ in uplinks:
            pass
        return server

    def view(self, p: State) -> Tensor:
        """Minus the counts."""
        return -p["drawn"]

    def score(self, p: State, table: Tensor) -> Tensor:
        """(C, 1, M)."""
        return table.mT


@dataclass(frozen=True)
class EASE(Method):
    """Item weights in closed form from the Gram matrix G = XᵀX: B = −P / diag(P), P = (G + λI)⁻¹.

    Every round solves with the next λ; the best on validation is reported.
    """

    ridge: tuple[float, ...] = (50.0, 100.0, 200.0, 500.0, 1000.0)  # λ
    history: Literal["train", "known"] = "train"  # known: the device's validation item counts as input at test

    name: ClassVar[str] = "ease"
    paper: ClassVar[str] = "Steck 2019, centralised"
    individual: ClassVar[str] = ""  # Gram matrices are summed
    closed_form: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    shared: ClassVar[tuple[str, ...]] = ("weights",)
    private: ClassVar[tuple[str, ...]] = ()
    tables: ClassVar[tuple[str, ...]] = ()
    pooled: ClassVar[bool] = True

    def length(self) -> int:
        """A round for each λ."""
        return len(self.ridge)

    def asks(self, round: int) -> bool:
        """One upload serves every λ."""
        return round == 1

    def init_server(self, federation: Federation) -> State:
        """Nothing yet, (M, M)."""
        nothing = torch.zeros(federation.n_items, federation.n_items)
        return {"gram": nothing, "weights": nothing.clone(), "tried": torch.zeros(1).long()}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """A user is its history."""
        return {}

    def phases(self, round: int) -> list[Phase]:
        """Nothing is trained."""
        return []

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Training needs no weights."""
        return {}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """XᵀX, (C, M, M)."""
        history = data.history()
        return Payload(data.ids, {"gram": Each(history.mT @ history)})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Sum the Gram matrix in the first round; solve with the next λ in every round."""
        tried = server["tried"]
        gram = plain_sum(uplinks, "gram").get("gram", server["gram"]).float()
        weights = ease_of(gram.double(), self.ridge[int(tried)]).float()
        return {"gram": gram, "weights": weights, "tried": tried + 1}

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """The user's history beside the weights; the score is x_u · B_i, B_i the column of item i."""
        known = phase == "test" and self.history == "known"
        columns = down["weights"].T
        return {"user": data.history("test" if known else "train"), "items": columns.expand(len(data.ids), -1, -1)}


def ease_of(gram: Tensor, ridge: float) -> Tensor:
    """(M, M) weights with zero diagonal that minimise ‖X − XB‖² + λ‖B‖²."""
    regular = gram.clone()
    regular.diagonal().add_(ridge)
    return ease_weights(torch.cholesky_inverse(torch.linalg.cholesky(regular)))
