"""Sanity rows and closed-form references: what every comparison shows beside the learned methods."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor

from tacit.core.aggregate import plain_sum
from tacit.core.closed_form import ClosedForm, added_up, gram, history, linear
from tacit.core.leaves import Leaves, private, shared
from tacit.core.method import Method, Moment
from tacit.core.payload import Each, Payload, State
from tacit.core.settings import Choices, Count, Negatives, Positives
from tacit.data.cohort import Cohort, Federation
from tacit.methods.ridge import ease_weights, factor_of, inverse_of


@dataclass(frozen=True)
class Popularity(ClosedForm):
    """Score how often an item was touched in training, the same for everyone."""

    name: ClassVar[str] = "popularity"
    individual: ClassVar[str] = ""  # counts are summed

    def leaves(self) -> Leaves:
        """The counts."""
        return {"count": shared()}

    def init_server(self, federation: Federation) -> State:
        """No counts yet."""
        return {"count": torch.zeros(federation.n_items)}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """The client's own counts."""
        return Payload(data.ids, {"count": Each(data.history().sum(1))})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Their sum."""
        return {"count": plain_sum(uplinks, "count").get("count", server["count"]).float()}

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The counts."""
        return {"count": down["count"].expand(len(data.ids), -1)}

    def scores(self, p: State) -> Tensor:
        """(C, 1, M): no user differs."""
        return p["count"][:, None]


@dataclass(frozen=True)
class Oracle(Method):
    """No model at all: minus the times an item was drawn as a negative.

    Where a protocol never draws a held-out item, this finds it; under an honest one it is at chance.
    """

    negatives: Negatives = 4  # per positive, redrawn every round
    rounds: Count = 100

    name: ClassVar[str] = "oracle"
    scored_with: ClassVar[str] = "own"
    individual: ClassVar[str] = ""  # nothing is sent

    def leaves(self) -> Leaves:
        """The counts of draws."""
        return {"drawn": private(table=True)}

    def length(self, asked: int | None = None) -> int:
        """As many as asked for."""
        return asked or self.rounds

    def data(self, federation: Federation, ids: Tensor, round: int) -> Cohort:
        """The draws that a trained method would get."""
        return federation.cohort(ids, round, self.negatives)

    def init_server(self, federation: Federation) -> State:
        """The server knows nothing."""
        return {}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """No draws yet, (C, M, 1)."""
        return {"drawn": torch.zeros(len(ids), federation.n_items, 1)}

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Add this round's draws."""
        drawn = torch.zeros(data.rows.shape).scatter_add_(1, data.row, data.drawn)
        return {"drawn": clients["drawn"] + drawn[..., None]}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """Nothing is sent."""
        return Payload(data.ids, {})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Nothing to aggregate; the uploads are still to be waited for."""
        for _ in uplinks:
            pass
        return server

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The draws so far."""
        return clients

    def scores(self, p: State) -> Tensor:
        """Minus the counts, (C, 1, M)."""
        return -p["drawn"].mT

    def footprint(self, size: int, n_items: int) -> int:
        """The rows of a round."""
        return min(size * (1 + self.negatives), n_items)


@dataclass(frozen=True)
class EASE(ClosedForm):
    """Item weights in closed form from the Gram matrix G = XᵀX: B = −P / diag(P), P = (G + λI)⁻¹.

    Every round solves with the next λ; the best on validation is reported.
    """

    ridge: Annotated[Positives, Choices(((1.0, 3.0, 10.0, 30.0), (2e3, 5e3, 1e4)))] = (
        50.0,
        100.0,
        200.0,
        500.0,
        1000.0,
    )  # λ
    history: Literal["train", "known"] = "train"  # known: the device's validation item counts as input at test

    name: ClassVar[str] = "ease"
    paper: ClassVar[str] = "Steck 2019, centralised"
    individual: ClassVar[str] = ""  # Gram matrices are summed
    pooled: ClassVar[bool] = True

    def leaves(self) -> Leaves:
        """The weights."""
        return {"weights": shared()}

    def length(self, asked: int | None = None) -> int:
        """A round for each λ."""
        return len(self.ridge)

    def chosen(self, round: int) -> Self:
        """With the λ of this round alone."""
        return replace(self, ridge=self.ridge[round - 1 : round])

    def choice(self, round: int) -> str:
        """The λ of this round."""
        return f"λ = {self.ridge[round - 1]:g}"

    def init_server(self, federation: Federation) -> State:
        """Nothing yet, (M, M)."""
        nothing = torch.zeros(federation.n_items, federation.n_items)
        return {"gram": nothing, "weights": nothing.clone(), "tried": torch.zeros(1).long()}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """XᵀX, (C, M, M)."""
        return Payload(data.ids, {"gram": Each(gram(data))})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Sum the Gram matrix in the first round; solve with the next λ in every round."""
        tried, found = server["tried"], added_up(uplinks, "gram")
        total = server["gram"] if found is None else found
        weights = ease_of(total, self.ridge[int(tried)], room=server["weights"])
        return {"gram": total, "weights": weights, "tried": tried + 1}

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The user's history and the weights."""
        return {"history": history(data, part, self.history), "weights": down["weights"]}

    def scores(self, p: State) -> Tensor:
        """x_u B, (C, U, M)."""
        return linear(p["history"], p["weights"])


def ease_of(gram: Tensor, ridge: float, room: Tensor | None = None) -> Tensor:
    """(M, M) weights with zero diagonal that minimise ‖X − XB‖² + λ‖B‖²; `room` is memory to work in."""
    return ease_weights(inverse_of(factor_of(gram, ridge, room=room)))
