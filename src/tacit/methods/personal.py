"""Settings of methods whose clients keep a table of their own: how much of it ranks, and how much of it lasts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch

from tacit.core.payload import Payload, State
from tacit.core.settings import Search, Share
from tacit.core.trained import Trained
from tacit.data.cohort import Cohort

if TYPE_CHECKING:
    Backbone = Trained
else:
    Backbone = object  # stands before the class that trains, a plug-in's backbone among them


@dataclass(frozen=True)
class Personal(Backbone):
    """A leaf x of a client's own is the common x⁰ and what is personal about it, x − x⁰.

    A client ranks with x⁰ + s (x − x⁰), s -> own_share, and starts a round from x⁰ + (1 − δ)(x − x⁰), δ -> own_decay.
    A private table that a round reads in part decays in the rows that it reads. Why: docs/decisions/0031-honest.md.
    """

    own_share: Annotated[Share, Search(0, 1)] = 1.0  # of what is personal, when a client ranks; 0: the server's alone
    own_decay: Annotated[Share, Search(0, 1)] = 0.0  # of what is personal, a round; 1: every round starts afresh

    def common(self, down: Payload, data: Cohort) -> State:
        """x⁰ by leaf: what a client would rank with if nothing of it were personal."""
        return {}

    def nearer(self, p: State, down: Payload, data: Cohort, share: float) -> State:
        """The leaves with this share of what is personal about them."""
        if share == 1:
            return p
        return p | {n: torch.lerp(x, p[n], share) for n, x in self.common(down, data).items()}

    def decayed(self, p: State, down: Payload, data: Cohort) -> State:
        """The leaves as a round starts; one who only ranks is in no round."""
        return self.nearer(p, down, data, 1 - self.own_decay) if data.round else p

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """What the client ranked with before, nearer to what all have."""
        return self.nearer(super().serve(clients, down, data, part), down, data, self.own_share)
