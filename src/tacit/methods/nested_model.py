"""Models of different width side by side, each the first columns of the next wider one, stacked over clients."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit.core.leaves import Leaves, private
from tacit.core.objective import gradient_by
from tacit.core.optim import Optimizer
from tacit.core.payload import State
from tacit.core.perceptron import chosen_pairs, every_pair, through
from tacit.core.scorers import pair_bce, pick, put, row_bce, take
from tacit.core.settings import Amount, Choices, Fraction, Rate, Whole, Width
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.errors import UserError
from tacit.methods.lightgcn import graph, halves, propagate


@dataclass(frozen=True)
class NestedModel(Trained):
    """A client of width N_a scores FFN_a([u, v]), behind a propagation over its graph where `backbone` is lightgcn.

    Symbols: N_a -> widths, V_a -> items, Θ_a -> a stretch of theta.
    """

    widths: tuple[Width, ...] = (8, 16, 32)  # N_s, N_m, N_l, or as many as there are groups
    backbone: Literal["ncf", "lightgcn"] = "ncf"
    layers: tuple[Width, ...] = (8, 8)  # behind the input of 2 N_a
    leak: Fraction = 0.1  # slope of their units below zero; 0: ReLU, under which a user's best items can be even
    propagations: Whole = 1  # of lightgcn
    elsewhere: Amount = 100.0  # of lightgcn: interactions an item is taken to have with other clients

    dim: int = 0  # follows from the widths
    lr: float = 1.0
    table_lr: float = 1.0
    theta_lr: Rate = 0.1  # of the perceptrons, whose inputs are long: ten times as much diverges; 0: the same as lr
    epochs: int = 1
    optimizer: Optimizer = "sgd"
    init: float = 0.1
    weighting: Literal["size", "uniform"] = "uniform"
    scored_with: Annotated[Literal["server", "own"], Choices(("server",))] = "server"
    redraw: bool = True  # negatives are drawn again in every round; False: once for all of them

    used: ClassVar[slice] = slice(None)  # of the widths

    def __post_init__(self) -> None:
        """Refuse what would have no effect or make no sense."""
        if not self.widths or any(a >= b for a, b in pairwise((0, *self.widths))):
            raise UserError(f"widths={self.widths} is invalid for {self.name}: they must grow, as in 8,16,32")
        if self.dim not in (0, self.sizes[-1]):
            raise UserError(f"dim={self.dim} is invalid for {self.name}: widths says how wide its tables are")
        if self.weighting != "uniform" or self.scored_with != "server":
            raise UserError(
                f"{self.name} adds updates up and ranks with the server's tables: no weighting, no own ones"
            )
        object.__setattr__(self, "dim", self.sizes[-1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The widths of the models there are: one where all clients have the same."""
        return self.widths[self.used]

    @property
    def several(self) -> bool:
        """Whether a client trains the narrower models as well."""
        return False

    @property
    def neighbours(self) -> bool:
        """A graph ties the users of a client together."""
        return self.backbone == "lightgcn"

    def leaves(self) -> Leaves:
        """The user vector; what the server sends differs by group and has no leaf of its name."""
        return {"user": private(per_user=True)}

    @cached_property
    def _shapes(self) -> list[list[tuple[int, int]]]:
        """By model, the weights of its layers; a layer's bias stands behind them."""
        return [list(pairwise((2 * width, *self.layers, 1))) for width in self.sizes]

    @cached_property
    def _starts(self) -> list[int]:
        """Where each model's stretch of theta starts, and the end."""
        lengths = [sum((rows + 1) * columns for rows, columns in shapes) for shapes in self._shapes]
        return [sum(lengths[:a]) for a in range(len(lengths) + 1)]

    def stretch(self, model: int) -> tuple[int, int]:
        """The part of theta that clients with a model have: under dual-task learning the narrower models' too."""
        return 0 if self.several else self._starts[model], self._starts[model + 1]

    def perceptron(self, theta: Tensor, model: int) -> State:
        """(C, rows, columns) and (C, columns) of every layer: views into theta (C, T)."""
        out: State = {}
        place = self._starts[model]
        for n, (rows, columns) in enumerate(self._shapes[model]):
            out[f"w{n}"] = theta[:, place : place + rows * columns].view(-1, rows, columns)
            place += rows * columns
            out[f"b{n}"] = theta[:, place : place + columns]
            place += columns
        return out

    @cached_property
    def _stretches(self) -> Tensor:
        """(models, T) ones on what of theta a model's clients have."""
        out = torch.zeros(len(self.sizes), self._starts[-1], dtype=torch.float64)
        for a in range(len(self.sizes)):
            out[a, slice(*self.stretch(a))] = 1
        return out

    def data(self, federation: Federation, ids: Tensor, round: int) -> Cohort:
        """And the negatives, the round's or the run's."""
        return federation.cohort(ids, round, self.negatives, self.every_row, self.redraw)

    def assembled(self, clients: State, model: Tensor, items: Tensor, theta: Tensor, data: Cohort) -> State:
        """The leaves of clients with these models, and which of the models each of them trains."""
        top, columns = int(model.max()), self.columns(model)
        tasks = torch.arange(top + 1) == model[:, None]
        if self.several:
            tasks = torch.arange(top + 1) <= model[:, None]
        p = {
            "user": clients["user"][..., : columns.shape[1]] * columns[:, None],
            "model": model,
            "tasks": tasks.float(),
        }
        p |= {"items": items, "theta": theta}
        return p | (graph(data, self.elsewhere) if self.backbone == "lightgcn" else {})

    def _widest(self, model: Tensor) -> tuple[int, int]:
        """Columns of the widest of these models, and where its stretch of theta ends."""
        top = int(model.max())
        return self.sizes[top], self._starts[top + 1]

    def columns(self, model: Tensor) -> Tensor:
        """(C, d) ones on the columns that clients with these models have."""
        return (torch.arange(self._widest(model)[0]) < torch.tensor(self.sizes)[model][:, None]).float()

    def phases(self, round: int) -> list[Phase]:
        """One phase; every leaf has its own rate."""
        rates = {"user": self.lr, "items": self.table_rate, "theta": self.theta_lr or self.lr}
        return [self.phase(rates, loss=self.loss)]

    def embedded(self, p: State) -> tuple[Tensor, Tensor]:
        """Users (C, U, d) and items (C, L, d) as the perceptron sees them."""
        if self.backbone == "ncf":
            return p["user"], p["items"]
        return propagate(p["user"], p["items"], p["to_users"], p["to_items"], self.propagations)

    def view(self, p: State) -> Tensor:
        """(C, L, d); over a graph the users stand behind the items."""
        users, items = self.embedded(p)
        return items if self.backbone == "ncf" else torch.cat([items, users], 1)

    def _parted(self, p: State, table: Tensor) -> tuple[Tensor, Tensor]:
        """Users and items again, from a view."""
        if self.backbone == "ncf":
            return p["user"], table
        items, users = halves(p, table)
        return (pick(users, p["slots"]) if "slots" in p else users), items

    def _by_model(self, p: State) -> Iterator[tuple[int, Tensor]]:
        """(model, (n,) places of its clients)."""
        for a in sorted(set(p["model"].tolist())):
            yield a, (p["model"] == a).nonzero().flatten()

    def score(self, p: State, table: Tensor) -> Tensor:
        """Every client by its own model, (C, U, L)."""
        users, items = self._parted(p, table)
        out = items.new_empty(len(items), users.shape[1], items.shape[1])
        for a, who in self._by_model(p):
            n = self.sizes[a]
            net = self.perceptron(p["theta"][who], a)
            out[who] = every_pair(net, users[who][..., :n], items[who][..., :n], self.leak)
        return out

    def pairs(self, p: State, table: Tensor, slot: Tensor, row: Tensor) -> Tensor:
        """(C, B)."""
        users, items = self._parted(p, table)
        out = items.new_empty(row.shape)
        for a, who in self._by_model(p):
            n = self.sizes[a]
            net = self.perceptron(p["theta"][who], a)
            out[who] = chosen_pairs(net, users[who][..., :n], items[who][..., :n], slot[who], row[who], self.leak)
        return out

    @gradient_by("nested_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """The sum of the losses of all models that a client trains (HeteFedRec, Eq. 11), (C,)."""
        table, rows = self.view(p), p["items"].shape[1]
        if batch.slot is None:  # only the batch's rows pass through the perceptrons; users may stand behind the items
            batch, chosen = batch.occurring
            p = p | {"items": take(p["items"], chosen)}
            table = torch.cat([take(table[:, :rows], chosen), table[:, rows:]], 1)
        total = torch.zeros(len(table))
        for a in range(p["tasks"].shape[1]):
            q = p | {"model": torch.full_like(p["model"], a)}
            if batch.slot is None or batch.row is None:
                part = row_bce(self.score(q, table), batch)
            else:
                part = pair_bce(self.pairs(q, table, batch.slot, batch.row), batch)
            total = total + part * p["tasks"][:, a]
        return total

    def nested_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """`loss` and its gradients written out, for clients of one user.

        Propagation is a symmetric linear map, so gradients go back the way that vectors came.
        """
        if batch.count is None:
            return None
        users, items = self.embedded(p)
        few, rows = batch.occurring
        chosen = take(items, rows)
        loss, of_theta = torch.zeros(len(items)), torch.zeros_like(p["theta"])
        of_chosen, of_user = torch.zeros_like(chosen), torch.zeros_like(users)
        for a in range(p["tasks"].shape[1]):
            task, n = p["tasks"][:, a], self.sizes[a]
            if not task.any():
                continue
            net = self.perceptron(p["theta"], a)
            part, grads, to_user, to_rows = through(net, users[..., :n], chosen[..., :n], few, self.leak)
            loss += part * task
            of_chosen[..., :n] += to_rows * task.view(-1, 1, 1)
            of_user[..., :n] += to_user * task.view(-1, 1, 1)
            flat = torch.cat([grads[k].flatten(1) for k in net], 1)
            of_theta[:, self._starts[a] : self._starts[a + 1]] = flat * task[:, None]
        of_items = put(of_chosen, rows, few, items, scratch)
        if self.backbone == "lightgcn":
            of_user, of_items = propagate(of_user, of_items, p["to_users"], p["to_items"], self.propagations)
        found = {"user": of_user, "items": of_items, "theta": of_theta}
        return loss, {n: found[n] for n in names}
