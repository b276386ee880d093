"""Clients with tables of different width under one server: what HeteFedRec and its baselines are built on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.method import Moment, spread
from tacit.core.optim import Optimizer, adam
from tacit.core.payload import Cut, Each, Few, Payload, Rows, State
from tacit.core.settings import Amount, Rate
from tacit.data.cohort import Cohort, Federation
from tacit.errors import UserError, unknown
from tacit.methods.nested_model import NestedModel


@dataclass(frozen=True)
class Nested(NestedModel):
    """A table sized to the client; updates are padded and added up ("Directly Aggregate" of HeteFedRec, Sec. V-C).

    Symbols: V_a -> items_0, items_1, … on the server and items on a client; theta holds all Θ_a side by side.
    """

    ratio: tuple[Amount, ...] = (5, 3, 2)  # of the groups' numbers of clients, those with few interactions first
    classes: tuple[str, ...] = ("small", "medium", "large")  # what a column `group` in the data calls the groups
    variant: Literal["hete", "small", "large", "exclusive", "standalone", "clustered", "direct"] = "direct"
    server: Optimizer = "adam"  # what takes the sums of Eq. 8 and 15 for a gradient; sgd at rate 1 adds them
    server_lr: Rate = 0.03
    fraction: float = 256  # clients a round
    traverse: bool = True

    name: ClassVar[str] = "hetefedrec"
    individual: ClassVar[str] = ""  # a sum is enough for Eq. 8 and 15 as they stand

    def __post_init__(self) -> None:
        """Refuse groups that do not match the widths."""
        if len(self.ratio) != len(self.widths) or min(self.ratio) < 0 or not sum(self.ratio) > 0:
            raise UserError(f"ratio={self.ratio} is invalid for {self.name}: it needs a share for each of the widths")
        super().__post_init__()

    # groups

    def group(self, federation: Federation) -> Tensor:
        """(n_clients,) 0 for the narrowest table: what the data say of a client, or else its share of the others."""
        labels = federation.labels
        if labels is None:
            return divided(federation.sizes, self.ratio)
        names = self._names
        for label in sorted(set(labels.tolist()) - {"", *names}):
            raise unknown("group", label, names)
        out = torch.tensor([names.index(label) if label else 0 for label in labels.tolist()], dtype=torch.long)
        silent = torch.from_numpy(labels == "")
        out[silent] = divided(federation.sizes[silent.numpy()], self.ratio)
        return out

    @property
    def _names(self) -> tuple[str, ...]:
        """Of the groups."""
        named = len(self.classes) == len(self.widths)
        return self.classes if named else tuple(f"group {n}" for n in range(1, len(self.widths) + 1))

    def groups(self, federation: Federation) -> dict[str, Tensor]:
        """Masks over the clients, whichever model a variant gives them."""
        group = self.group(federation)
        return {name: group == n for n, name in enumerate(self._names)}

    def model(self, group: Tensor) -> Tensor:
        """The model that a group has."""
        return group if len(self.sizes) > 1 else torch.zeros_like(group)

    # server

    def init_server(self, federation: Federation) -> State:
        """Tables that are each other's first columns (Eq. 10); weights of variance 2 / inputs, biases zero."""
        server = self.models(federation)
        if self.server == "adam":
            table = server[f"items_{len(self.sizes) - 1}"]
            server |= {f"{m}_items": torch.zeros(self.sums, *table.shape) for m in ("first", "second")}
            server |= {f"{m}_theta": torch.zeros_like(server["theta"]) for m in ("first", "second")}
            server |= {"taken": torch.tensor(0)}
        return server | {"group": self.group(federation)}

    def models(self, federation: Federation) -> State:
        """Every width's table, and all perceptrons side by side."""
        table = self.starting(federation, "items", federation.n_items, self.dim)
        parts = []
        for a, shapes in enumerate(self._shapes):
            for n, (rows, columns) in enumerate(shapes):
                unit = self.starting(federation, f"theta/{a}/{n}", rows * columns) / self.init
                parts += [unit * (2 / rows) ** 0.5, torch.zeros(columns)]
        own = {f"items_{a}": table[:, :width].clone() for a, width in enumerate(self.sizes)}
        return own | {"theta": torch.cat(parts)}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """V_a and the perceptrons that go with it."""
        model = self.model(server["group"][ids])
        tables = tuple(server[f"items_{a}"] for a in range(len(self.sizes)))
        theta = tuple(server["theta"][slice(*self.stretch(a))] for a in range(len(self.sizes)))
        longest = max(len(part) for part in theta)
        return Payload(ids, {"items": Few(tables, model, self.dim), "theta": Few(theta, model, longest)})

    @property
    def sums(self) -> int:
        """How many tables are summed by themselves."""
        return 1

    def place(self, model: Tensor) -> Tensor:
        """(C,) the sum that clients with these models add to."""
        return torch.zeros_like(model)

    def counts(self, group: Tensor) -> Tensor:
        """(C,) whether what a client of a group sends is added."""
        return torch.ones(len(group), dtype=torch.float64)

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Padded updates added up for all tables (Eq. 7–8), perceptrons' by model, then a step (Eq. 9, 15)."""
        n_items = len(server["items_0"])
        total = torch.zeros(self.sums, n_items, self.dim, dtype=torch.float64)
        theta = torch.zeros(self._starts[-1], dtype=torch.float64)
        for up in uplinks:
            change = up.fields["items_change"]
            if not isinstance(change, Cut):  # everybody's sum
                total[0] += up["items_change"].double().sum(0)
                theta += up["theta_change"].double().sum(0)
                continue
            group = server["group"][up.ids]
            model, counts = self.model(group), self.counts(group)
            place = self.place(model)
            if isinstance(change.of, Rows):
                rows = change.of.change().double() * counts.view(-1, 1, 1)
                index = place[:, None] * n_items + change.of.rows
                total.view(-1, self.dim).index_add_(0, index.flatten(), rows.flatten(0, 1))
            else:  # over the wire: what stands outside a client's own columns counts for nothing
                own = torch.arange(self.dim) < torch.tensor(self.sizes)[model][:, None]
                total.index_add_(0, place, change.dense().double() * (counts[:, None] * own)[:, None])
            theta += (up["theta_change"].double() * counts[:, None] * self._stretches[model]).sum(0)
        if not (total.any() or theta.any()):
            return server
        moments, move = self._moves(server, {"items": total, "theta": theta})
        new = {"theta": (server["theta"].double() + move["theta"]).float()}
        for a, width in enumerate(self.sizes):
            own_move = move["items"][int(self.place(torch.tensor([a]))), :, :width]
            new[f"items_{a}"] = (server[f"items_{a}"].double() + own_move).float()
        return server | moments | new

    def _moves(self, server: State, sums: State) -> tuple[State, State]:
        """The server's new moments, and what goes to all tables alike for these sums, so that Eq. 10 stays true."""
        if self.server == "sgd":
            return {}, {n: self.server_lr * x for n, x in sums.items()}
        moments: State = {"taken": server["taken"] + 1}
        move: State = {}
        for n, x in sums.items():
            past = server[f"first_{n}"].double(), server[f"second_{n}"].double()
            direction, first, second = adam(x, *past, int(moments["taken"]))
            move[n] = self.server_lr * direction
            moments |= {f"first_{n}": first.float(), f"second_{n}": second.float()}
        return moments, move

    # clients

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The client's model, in stacks no wider than the widest of these clients needs."""
        sent = down.fields["items"]
        assert isinstance(sent, Few)
        model = sent.group  # (C,)
        width, end = self._widest(model)
        items = spread(Few(sent.values[: int(model.max()) + 1], model, width), data, table=True)
        theta = self._placed(down, model, end)
        return self.assembled(clients, model, items, theta, data) | {"items_began": items, "theta_began": theta}

    def _placed(self, down: Payload, model: Tensor, end: int) -> Tensor:
        """(C, T) every client's perceptrons at their places, zeros elsewhere."""
        sent = down.fields["theta"]
        assert isinstance(sent, Few)
        out = torch.zeros(len(model), end)
        for a in range(int(model.max()) + 1):
            first, last = self.stretch(a)
            out[model == a, first:last] = sent.values[a] if (model == a).any() else 0.0
        return out

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """∇V_a and the perceptrons' updates, as many columns as the client has."""
        model = p["model"]
        change = self.padded(p["items"] - p["items_began"])
        rows = Rows(change, data.rows, data.real, torch.zeros(data.federation.n_items, self.dim))
        widths, stretches = (
            torch.tensor(x)[model]
            for x in ([(0, n) for n in self.sizes], list(map(self.stretch, range(len(self.sizes)))))
        )
        theta = F.pad(p["theta"] - p["theta_began"], (0, self._starts[-1] - p["theta"].shape[1]))
        return Payload(data.ids, {"items_change": Cut(rows, widths), "theta_change": Cut(Each(theta), stretches)})

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """The user vector."""
        return {"user": self.padded(p["user"])}

    def padded(self, value: Tensor) -> Tensor:
        """With zeros up to the widest."""
        return F.pad(value, (0, self.dim - value.shape[-1]))


def divided(sizes: NDArray[np.int64], ratio: tuple[float, ...]) -> Tensor:
    """(n,) group of each client by its number of interactions, the fewest first, groups' sizes in this ratio."""
    bounds = np.round(np.cumsum(ratio) / sum(ratio) * len(sizes))
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.argsort(sizes, kind="stable")] = np.arange(len(sizes))
    return torch.from_numpy(np.searchsorted(bounds, rank, side="right").clip(max=len(ratio) - 1).astype(np.int64))
