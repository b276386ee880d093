"""HeteFedRec: clients with item tables of different width, taught by one another, and its six baselines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit import rng
from tacit.core.leaves import Leaves, private
from tacit.core.method import Method, Moment
from tacit.core.objective import gradient_by
from tacit.core.optim import Stacked
from tacit.core.payload import Few, Payload, Rows, State
from tacit.core.settings import Count, Rate, Search, Weight, Whole
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.methods.nested import Nested

TINY = 1e-12  # of a variance or a squared length that divides


@dataclass(frozen=True)
class HeteFedRec(Nested):
    """Nested tables with dual tasks, decorrelated columns, and a server that lets the tables teach one another.

    Symbols: α -> decorrelation, V_kd -> distil_items. `variant` asks for a baseline of Sec. V-C instead, a class each;
    `direct` is the method without its three parts. Choices where the paper is silent:
    docs/decisions/0019-hetefedrec.md.
    """

    variant: Literal["hete", "small", "large", "exclusive", "standalone", "clustered", "direct"] = "hete"
    dual: bool = True  # unified dual-task learning: a client trains the narrower models on its first columns, too
    decorrelation: Weight = 0.01  # α of Eq. 14, against mean losses; 0: without
    decorrelated: Literal["touched", "all"] = "touched"  # the rows that Eq. 13 moves; it looks at all either way
    distillation: bool = True  # relation-based ensemble self-distillation
    distil_items: Count = 256  # |V_kd|, redrawn every round
    distil_lr: Annotated[Rate, Search(1e-4, 0.1, log=True, when="distillation")] = 0.001  # of the server's Adam
    distil_steps: Whole = 1

    name: ClassVar[str] = "hetefedrec"
    paper: ClassVar[str] = "Yuan et al. 2024, HeteFedRec"
    individual: ClassVar[str] = ""

    @classmethod
    def refined(cls, settings: Mapping[str, Any]) -> type[Method]:
        """The baseline asked for."""
        return BASELINES.get(settings.get("variant", "hete"), cls)

    @property
    def several(self) -> bool:
        """Under dual-task learning."""
        return self.dual

    @property
    def every_row(self) -> bool:
        """Whether decorrelation moves rows that a client has not touched."""
        return self.decorrelation > 0 and self.decorrelated == "all"

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """And what decorrelation needs, where there are columns to decorrelate."""
        p, sent = super().receive(clients, down, data), down.fields["items"]
        assert isinstance(sent, Few)
        if self.decorrelation and int(p["model"].max()) and data.round:  # not to rank
            columns = self.columns(p["model"])
            p |= {"columns": columns, "real": data.real[..., None].float()}
            p |= self._still(sent, p["items"], data, columns.shape[1])
        return p

    def _still(self, sent: Few, rows: Tensor, data: Cohort, width: int) -> State:
        """Σ v and Σ v vᵀ over the rows that do not move, and how many rows there are: what Eq. 13 needs of them."""
        own = rows * data.real[..., None]
        one, two = torch.zeros(len(self.sizes), width), torch.zeros(len(self.sizes), width, width)
        for a in set(sent.group.tolist()):
            n = self.sizes[a]
            one[a, :n], two[a, :n, :n] = sent.values[a].sum(0), sent.values[a].mT @ sent.values[a]
        count = torch.tensor(float(data.federation.n_items))
        return {
            "still_one": one[sent.group] - own.sum(1),
            "still_two": two[sent.group] - own.mT @ own,
            "count": count,
        }

    @gradient_by("decorrelated_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """Eq. 11, and α times Eq. 13 for all clients but those of the narrowest table (Eq. 14), (C,)."""
        total = super().loss(p, batch)
        if "real" not in p:
            return total
        return total + self.decorrelation * (p["model"] > 0) * self.redundancy(p)[0]

    def redundancy(self, p: State) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 13 over all rows, and what its gradient is made of, as `correlation` has it."""
        rows = p["items"] * p["real"]
        one, two = p["still_one"] + rows.sum(1), p["still_two"] + rows.mT @ rows
        return correlation(one, two, p["count"], p["columns"])

    def decorrelated_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """`loss` and its gradients written out, for clients of one user."""
        found = self.nested_gradient(p, batch, names, scratch)
        if found is None or "real" not in p:
            return found
        loss, grads = found
        value, mean, turn = self.redundancy(p)
        weight = self.decorrelation * (p["model"] > 0)
        if "items" in grads:
            grads["items"].baddbmm_((p["items"] - mean[:, None]) * p["real"], turn * weight.view(-1, 1, 1))
        return loss + weight * value, grads

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """And distillation between the tables."""
        new = super().aggregate(server, uplinks, now)
        return new if new is server or not self.distillation else new | self.distilled(new, now)

    def distilled(self, new: State, now: Moment) -> State:
        """Every table moved towards the mean of all tables' similarities between some items (Eq. 16–17).

        The tables move apart in this: Eq. 10 holds for what is learned from clients, not for what comes from here.
        """
        names = [f"items_{a}" for a in range(len(self.sizes))]
        count = len(new["items_0"])
        draw = rng.generator(now.seed, "hetefedrec/distil", now.round)
        some = torch.from_numpy(np.sort(draw.choice(count, min(self.distil_items, count), replace=False)))
        rows = {n: new[n][some][None].clone() for n in names}
        goal = torch.stack([similarity(x[0]) for x in rows.values()]).mean(0)  # d_ens
        optimiser = Stacked(rows, "adam")
        for _ in range(self.distil_steps):
            grads = {n: unlikeness(x[0], goal)[1][None] for n, x in optimiser.leaves.items()}
            optimiser.step(grads, dict.fromkeys(names, self.distil_lr), [slice(0, 1)])
        return {n: new[n].index_copy(0, some, optimiser.leaves[n][0]) for n in names}


@dataclass(frozen=True)
class AllSmall(Nested):
    """Everybody has the narrowest table."""

    variant: Literal["small"] = "small"

    used: ClassVar[slice] = slice(0, 1)


@dataclass(frozen=True)
class AllLarge(Nested):
    """Everybody has the widest table."""

    variant: Literal["large", "exclusive"] = "large"

    used: ClassVar[slice] = slice(-1, None)


@dataclass(frozen=True)
class Exclusive(AllLarge):
    """Everybody has the widest table, and the server leaves out the group with the fewest interactions."""

    variant: Literal["large", "exclusive"] = "exclusive"

    individual: ClassVar[str] = "it leaves out what clients with little data send"

    def counts(self, group: Tensor) -> Tensor:
        """All groups but the first."""
        return (group > 0).double()


@dataclass(frozen=True)
class Clustered(Nested):
    """Every group has a table of its own that only its own clients' updates reach."""

    variant: Literal["clustered"] = "clustered"

    individual: ClassVar[str] = "it adds up the updates of each group by themselves"

    @property
    def sums(self) -> int:
        """One for each group."""
        return len(self.sizes)

    def place(self, model: Tensor) -> Tensor:
        """The group's own."""
        return model


@dataclass(frozen=True)
class Standalone(Nested):
    """Nothing is exchanged: a client trains a model of its own width alone."""

    variant: Literal["standalone"] = "standalone"

    individual: ClassVar[str] = ""

    def leaves(self) -> Leaves:
        """All of it is private."""
        return super().leaves() | {"items": private(table=True), "theta": private()}

    def init_server(self, federation: Federation) -> State:
        """Which group a client is in."""
        return {"group": self.group(federation)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """All start from the same models."""
        start = self.models(federation)
        table, theta = start[f"items_{len(self.sizes) - 1}"], start["theta"]
        return {"items": table.expand(len(ids), -1, -1), "theta": theta.expand(len(ids), -1)}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """Which model is theirs, and no more."""
        return Payload(ids, {"items": Few((torch.zeros(0),) * len(self.sizes), self.model(server["group"][ids]), 0)})

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The client's own columns and perceptron."""
        sent = down.fields["items"]
        assert isinstance(sent, Few)
        width, end = self._widest(sent.group)
        items = clients["items"][..., :width] * self.columns(sent.group)[:, None]
        theta = clients["theta"][:, :end] * self._stretches[sent.group, :end].float()
        return self.assembled(clients, sent.group, items, theta, data)

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """Nothing."""
        return Payload(data.ids, {})

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """Everything."""
        theta = torch.nn.functional.pad(p["theta"], (0, self._starts[-1] - p["theta"].shape[1]))
        return super().keep(p, down, data) | {"items": self.padded(p["items"]), "theta": theta}

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Nothing to add; the uploads are still to be waited for."""
        for _ in uplinks:
            pass
        return server


BASELINES: dict[str, type[Method]] = {
    "small": AllSmall,
    "large": AllLarge,
    "exclusive": Exclusive,
    "clustered": Clustered,
    "standalone": Standalone,
    "direct": Nested,
}


def correlation(one: Tensor, two: Tensor, count: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """‖corr(V)‖_F / N (Eq. 13) from Σ v (C, d) and Σ v vᵀ (C, d, d) over the rows of V, of the `columns` (C, d) alone.

    Gives the value (C,), the mean row μ (C, d), and W (C, d, d) with the gradient (v − μ) W for a row v: with
    standardised rows z and G = corr / (N ‖corr‖_F) it is 2/M · (z G − z ⊙ diag(corr G)) / σ.
    """
    mean = one / count
    covariance = two / count - mean[:, :, None] * mean[:, None]
    variance = covariance.diagonal(dim1=1, dim2=2)
    scale = torch.where(columns > 0, variance.clamp(min=TINY), 1.0).rsqrt() * columns
    matrix = covariance * scale[:, :, None] * scale[:, None]
    norm = matrix.square().sum((1, 2)).clamp(min=TINY).sqrt()
    width = columns.sum(1)
    slope = matrix / (width * norm).view(-1, 1, 1)
    own = (matrix * slope).sum(2)  # diag(corr G)
    turn = (slope - torch.diag_embed(own)) * scale[:, :, None] * scale[:, None] * (2 / count)
    return norm / width, mean, turn


def similarity(rows: Tensor) -> Tensor:
    """(k, k) cosines of rows (k, d)."""
    unit = rows / rows.square().sum(1, keepdim=True).clamp(min=TINY).sqrt()
    return unit @ unit.T


def unlikeness(rows: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """‖d(V) − goal‖² over pairs of rows (k, d) (Eq. 17), and its gradient."""
    length = rows.square().sum(1, keepdim=True).clamp(min=TINY).sqrt()
    unit = rows / length
    apart = unit @ unit.T - goal
    pull = 4 * apart @ unit
    return apart.square().sum(), (pull - (pull * unit).sum(1, keepdim=True) * unit) / length
