"""HeteFedRec: clients with item tables of different width, each the first columns of the next wider one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.method import Method, Moment, Phase, spread
from tacit.core.optim import Optimizer, Stacked, adam
from tacit.core.payload import Cut, Each, Few, Payload, Rows, State
from tacit.core.scorers import Chosen, pair_bce, pick, row_bce
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.errors import UserError, unknown
from tacit.methods.lightgcn import graph, halves, propagate

TINY = 1e-12  # of a variance or a squared length that divides


@dataclass(frozen=True)
class HeteFedRec(Method):
    """A table as wide as a client can bear; updates are padded and added up, and the tables taught by one another.

    Symbols: N_a -> widths, V_a -> items_0, items_1, … on the server and items on a client, Θ_a -> a stretch of theta,
    α -> decorrelation, V_kd -> distil_items. Every client of group a scores FFN_a([u, v]), behind a propagation over
    its own graph where `backbone` is lightgcn. Variants are the baselines of Sec. V-C; `direct` is the method without
    its three parts. Choices where the paper is silent: docs/decisions/0019-hetefedrec.md.
    """

    widths: tuple[int, ...] = (8, 16, 32)  # N_s, N_m, N_l, or as many as there are groups
    ratio: tuple[float, ...] = (5, 3, 2)  # of the groups' numbers of clients, those with few interactions first
    classes: tuple[str, ...] = ("small", "medium", "large")  # what a column `group` in the data calls the groups
    variant: Literal["hete", "small", "large", "exclusive", "standalone", "clustered", "direct"] = "hete"
    backbone: Literal["ncf", "lightgcn"] = "ncf"
    dual: bool = True  # unified dual-task learning: a client trains the narrower models on its first columns, too
    decorrelation: float = 0.01  # α of Eq. 14, against mean losses; 0: without
    decorrelated: Literal["touched", "all"] = "touched"  # the rows that Eq. 13 moves; it looks at all either way
    distillation: bool = True  # relation-based ensemble self-distillation
    distil_items: int = 256  # |V_kd|, drawn anew every round
    distil_lr: float = 0.001  # of the server's Adam
    distil_steps: int = 1
    server: Optimizer = "adam"  # what takes the sums of Eq. 8 and 15 for a gradient; sgd at rate 1 adds them
    server_lr: float = 0.03
    layers: tuple[int, ...] = (8, 8)  # behind the input of 2 N_a
    leak: float = 0.1  # slope of their units below zero; 0: ReLU, which can leave a user's best items with one score
    propagations: int = 1  # of lightgcn
    elsewhere: float = 100.0  # of lightgcn: interactions an item is taken to have with other clients

    dim: int = 0  # follows from the widths
    lr: float = 1.0
    table_lr: float = 1.0
    theta_lr: float = 0.1  # of the perceptrons, whose inputs are long: ten times as much diverges; 0: the same as lr
    epochs: int = 1
    optimizer: Optimizer = "sgd"
    init: float = 0.1
    fraction: float = 256  # clients a round
    traverse: bool = True
    weighting: Literal["size", "uniform"] = "uniform"

    name: ClassVar[str] = "hetefedrec"
    paper: ClassVar[str] = "Yuan et al. 2024, HeteFedRec"
    shared: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse what would have no effect or make no sense."""
        if not self.widths or any(a >= b for a, b in pairwise((0, *self.widths))):
            raise UserError(f"widths={self.widths} does not do for {self.name}: they must grow, as in 8,16,32")
        if len(self.ratio) != len(self.widths) or min(self.ratio) < 0 or not sum(self.ratio) > 0:
            raise UserError(f"ratio={self.ratio} does not do for {self.name}: it needs a share for each of the widths")
        if self.dim not in (0, self.sizes[-1]):
            raise UserError(f"dim={self.dim} does not do for {self.name}: widths says how wide its tables are")
        if not 0 <= self.leak < 1:
            raise UserError(f"leak={self.leak} does not do for {self.name}: a slope of 0 (ReLU) or more, below 1")
        if self.weighting != "uniform" or self.scored_with != "server":
            raise UserError(
                f"{self.name} adds updates up and ranks with the server's tables: no weighting, no own ones"
            )
        object.__setattr__(self, "dim", self.sizes[-1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The widths of the models there are: one where all clients have the same."""
        return {"small": self.widths[:1], "large": self.widths[-1:], "exclusive": self.widths[-1:]}.get(
            self.variant, self.widths
        )

    @property
    def alone(self) -> bool:
        """Whether nothing is exchanged."""
        return self.variant == "standalone"

    @property
    def several(self) -> bool:
        """Whether a client trains the narrower models as well."""
        return self.variant == "hete" and self.dual

    @property
    def alpha(self) -> float:
        """α where the variant has it."""
        return self.decorrelation if self.variant == "hete" else 0.0

    @property
    def private(self) -> tuple[str, ...]:  # type: ignore[override]
        """The user vector; everything where nothing is exchanged."""
        return ("user", "items", "theta") if self.alone else ("user",)

    @property
    def every_row(self) -> bool:  # type: ignore[override]
        """Whether decorrelation moves rows that a client has not touched."""
        return self.alpha > 0 and self.decorrelated == "all"

    @property
    def neighbours(self) -> bool:  # type: ignore[override]
        """A graph ties the users of a client together."""
        return self.backbone == "lightgcn"

    @property
    def individual(self) -> str:  # type: ignore[override]
        """A sum is enough for Eq. 8 and 15 as they stand."""
        if self.variant == "exclusive":
            return "it leaves out what clients with little data send"
        if self.variant == "clustered":
            return "it adds up the updates of each group by themselves"
        return ""

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

    # perceptrons side by side in one vector

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

    # server

    def init_server(self, federation: Federation) -> State:
        """Tables that are each other's first columns (Eq. 10); weights of variance 2 / inputs, biases zero."""
        table = self.noise(federation, "items", federation.n_items, self.dim)
        parts = []
        for a, shapes in enumerate(self._shapes):
            for n, (rows, columns) in enumerate(shapes):
                unit = self.noise(federation, f"theta/{a}/{n}", rows * columns) / self.init
                parts += [unit * (2 / rows) ** 0.5, torch.zeros(columns)]
        own = {f"items_{a}": table[:, :width].clone() for a, width in enumerate(self.sizes)}
        shared = {} if self.alone else own | {"theta": torch.cat(parts)}
        if shared and self.server == "adam":
            shared |= {f"{m}_items": torch.zeros(self._sums, *table.shape) for m in ("first", "second")}
            shared |= {f"{m}_theta": torch.zeros_like(shared["theta"]) for m in ("first", "second")}
            shared |= {"taken": torch.tensor(0)}
        return shared | {"group": self.group(federation)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """A model of their own for those who train alone: all start from the same."""
        if not self.alone:
            return {}
        start = HeteFedRec.init_server(self._together, federation)
        table, theta = start[f"items_{len(self.sizes) - 1}"], start["theta"]
        return {"items": table.expand(len(ids), -1, -1), "theta": theta.expand(len(ids), -1)}

    @cached_property
    def _together(self) -> "HeteFedRec":
        """The same models where they are exchanged."""
        return HeteFedRec(widths=self.widths, ratio=self.ratio, variant="clustered", layers=self.layers, init=self.init)

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """V_a and the perceptrons that go with it; to those who train alone which model is theirs, and no more."""
        model = self.model(server["group"][ids])
        if self.alone:
            return Payload(ids, {"items": Few((torch.zeros(0),) * len(self.sizes), model, 0)})
        tables = tuple(server[f"items_{a}"] for a in range(len(self.sizes)))
        theta = tuple(server["theta"][slice(*self.stretch(a))] for a in range(len(self.sizes)))
        longest = max(len(part) for part in theta)
        return Payload(ids, {"items": Few(tables, model, self.dim), "theta": Few(theta, model, longest)})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Padded updates added up for all tables (Eq. 7–8), perceptrons' by model, a step (Eq. 9, 15), distillation."""
        clustered = self.variant == "clustered"
        first, n_items = torch.arange(self.dim), 0 if self.alone else len(server["items_0"])
        total = torch.zeros(self._sums, n_items, self.dim, dtype=torch.float64)
        theta = torch.zeros(self._starts[-1], dtype=torch.float64)
        for up in uplinks:
            if self.alone:
                continue
            change = up.fields["items_change"]
            if not isinstance(change, Cut):  # everybody's sum
                total[0] += up["items_change"].double().sum(0)
                theta += up["theta_change"].double().sum(0)
                continue
            group = server["group"][up.ids]
            model = self.model(group)
            counts = (group > 0 if self.variant == "exclusive" else group >= 0).double()  # (C,)
            place = model if clustered else torch.zeros_like(model)
            if isinstance(change.of, Rows):
                rows = change.of.change().double() * counts.view(-1, 1, 1)
                index = place[:, None] * n_items + change.of.rows
                total.view(-1, self.dim).index_add_(0, index.flatten(), rows.flatten(0, 1))
            else:  # over the wire: what stands outside a client's own columns counts for nothing
                own = first < torch.tensor(self.sizes)[model][:, None]
                total.index_add_(0, place, change.dense().double() * (counts[:, None] * own)[:, None])
            theta += (up["theta_change"].double() * counts[:, None] * self._stretches[model]).sum(0)
        if self.alone or not (total.any() or theta.any()):
            return server
        moments, move = self._moves(server, {"items": total, "theta": theta})
        new = {"theta": (server["theta"].double() + move["theta"]).float()}
        for a, width in enumerate(self.sizes):
            own_move = move["items"][a if clustered else 0, :, :width]
            new[f"items_{a}"] = (server[f"items_{a}"].double() + own_move).float()
        return server | moments | (self.distilled(new, now) if self.variant == "hete" and self.distillation else new)

    @property
    def _sums(self) -> int:
        """How many tables are summed by themselves."""
        return len(self.sizes) if self.variant == "clustered" else 1

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

    @cached_property
    def _stretches(self) -> Tensor:
        """(models, T) ones on what of theta a model's clients have."""
        out = torch.zeros(len(self.sizes), self._starts[-1], dtype=torch.float64)
        for a in range(len(self.sizes)):
            out[a, slice(*self.stretch(a))] = 1
        return out

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
        return new | {n: new[n].index_copy(0, some, optimiser.leaves[n][0]) for n in names}

    # clients

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The client's model, in stacks no wider than the widest of these clients needs."""
        sent = down.fields["items"]
        assert isinstance(sent, Few)
        model = sent.group  # (C,)
        top = int(model.max())
        width, end = self.sizes[top], self._starts[top + 1]
        columns = (torch.arange(width) < torch.tensor(self.sizes)[model][:, None]).float()  # (C, d)
        tasks = torch.arange(top + 1) == model[:, None]
        if self.several:
            tasks = torch.arange(top + 1) <= model[:, None]
        p: State = {"user": clients["user"][..., :width] * columns[:, None], "model": model, "tasks": tasks.float()}
        if self.alone:
            theta = clients["theta"][:, :end] * self._stretches[model, :end].float()
            p |= {"items": clients["items"][..., :width] * columns[:, None], "theta": theta}
        else:
            p["items"] = spread(Few(sent.values[: top + 1], model, width), data, table=True)
            p["theta"] = self._placed(down, model, end)
            p |= {"items_began": p["items"], "theta_began": p["theta"]}
        if self.alpha and top and data.round:  # not to rank
            p |= {"columns": columns, "real": data.real[..., None].float()} | self._rest(sent, p["items"], data, width)
        return p | (graph(data, self.elsewhere) if self.backbone == "lightgcn" else {})

    def _placed(self, down: Payload, model: Tensor, end: int) -> Tensor:
        """(C, T) every client's perceptrons at their places, zeros elsewhere."""
        sent = down.fields["theta"]
        assert isinstance(sent, Few)
        out = torch.zeros(len(model), end)
        for a in range(int(model.max()) + 1):
            first, last = self.stretch(a)
            out[model == a, first:last] = sent.values[a] if (model == a).any() else 0.0
        return out

    def _rest(self, sent: Few, rows: Tensor, data: Cohort, width: int) -> State:
        """Σ v and Σ v vᵀ over the rows that do not move, and how many rows there are: what Eq. 13 needs of them."""
        own = rows * data.real[..., None]
        one, two = torch.zeros(len(self.sizes), width), torch.zeros(len(self.sizes), width, width)
        for a in set(sent.group.tolist()):
            n = self.sizes[a]
            one[a, :n], two[a, :n, :n] = sent.values[a].sum(0), sent.values[a].mT @ sent.values[a]
        count = torch.tensor(float(data.federation.n_items))
        return {
            "rest_one": one[sent.group] - own.sum(1),
            "rest_two": two[sent.group] - own.mT @ own,
            "rest_count": count,
        }

    def phases(self, round: int) -> list[Phase]:
        """One phase; every leaf has its own rate."""
        rates = {"user": self.lr, "items": self.table_lr or self.lr, "theta": self.theta_lr or self.lr}
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
            both = [pick(users[who][..., :n], slot[who]), pick(items[who][..., :n], row[who])]
            out[who] = through(self.perceptron(p["theta"][who], a), torch.cat(both, -1), self.leak)
        return out

    def loss(self, p: State, batch: Batch) -> Tensor:
        """The sum of the losses of all models a client trains (Eq. 11), and α times Eq. 13 for all but the narrowest
        (Eq. 14), (C,).
        """
        users, items = self.embedded(p)
        total = torch.zeros(len(items))
        for a in range(p["tasks"].shape[1]):
            n = self.sizes[a]
            net = self.perceptron(p["theta"], a)
            if batch.row is None or batch.slot is None:
                part = row_bce(every_pair(net, users[..., :n], items[..., :n], self.leak), batch)
            else:
                both = [pick(users[..., :n], batch.slot), pick(items[..., :n], batch.row)]
                part = pair_bce(through(net, torch.cat(both, -1), self.leak), batch)
            total = total + part * p["tasks"][:, a]
        if "real" in p:
            rows = p["items"] * p["real"]
            one, two = p["rest_one"] + rows.sum(1), p["rest_two"] + rows.mT @ rows
            total = total + self.alpha * (p["model"] > 0) * correlation(one, two, p["rest_count"], p["columns"])[0]
        return total

    def by_hand(self, p: State, batch: Batch, names: Iterable[str], scratch: State) -> tuple[Tensor, State] | None:
        """`loss` and its gradients written out, for clients of one user.

        Propagation is a symmetric linear map, so gradients go back the way that vectors came.
        """
        if batch.count is None:
            return None
        users, items = self.embedded(p)
        chosen = Chosen.of(items, batch)
        loss = torch.zeros(len(items))
        of_rows, of_user = torch.zeros_like(chosen.rows), torch.zeros_like(users)
        of_theta = torch.zeros_like(p["theta"])
        for a in range(p["tasks"].shape[1]):
            task, n = p["tasks"][:, a], self.sizes[a]
            if not task.any():
                continue
            net = self.perceptron(p["theta"], a)
            part, grads, rows = chosen.through(net, len(self.layers), users[..., :n], chosen.rows[..., :n], self.leak)
            if not task.all():
                part, rows = part * task, rows * task.view(-1, 1, 1)
                grads = {k: g * task.view(-1, *[1] * (g.dim() - 1)) for k, g in grads.items()}
            loss += part
            of_rows[..., :n] += rows
            of_user[..., :n] += grads["user"]
            of_theta[:, self._starts[a] : self._starts[a + 1]] = torch.cat([grads[k].flatten(1) for k in net], 1)
        of_items = chosen.back(of_rows, scratch)
        if self.backbone == "lightgcn":
            of_user, of_items = propagate(of_user, of_items, p["to_users"], p["to_items"], self.propagations)
        if "real" in p:
            rows = p["items"] * p["real"]
            one, two = p["rest_one"] + rows.sum(1), p["rest_two"] + rows.mT @ rows
            value, mean, turn = correlation(one, two, p["rest_count"], p["columns"])
            weight = self.alpha * (p["model"] > 0)
            loss += weight * value
            of_items.baddbmm_((p["items"] - mean[:, None]) * p["real"], turn * weight.view(-1, 1, 1))
        found = {"user": of_user, "items": of_items, "theta": of_theta}
        return loss, {n: found[n] for n in names}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """∇V_a and the perceptrons' updates, as many columns as the client has; nothing from those who train alone."""
        if self.alone:
            return Payload(data.ids, {})
        model = p["model"]
        change = self._wide(p["items"] - p["items_began"])
        rows = Rows(change, data.rows, data.real, torch.zeros(data.federation.n_items, self.dim))
        widths, stretches = (
            torch.tensor(x)[model]
            for x in ([(0, n) for n in self.sizes], list(map(self.stretch, range(len(self.sizes)))))
        )
        theta = F.pad(p["theta"] - p["theta_began"], (0, self._starts[-1] - p["theta"].shape[1]))
        return Payload(data.ids, {"items_change": Cut(rows, widths), "theta_change": Cut(Each(theta), stretches)})

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """The user vector; everything where nothing is exchanged."""
        kept: dict[str, Tensor | Rows] = {"user": self._wide(p["user"])}
        if self.alone:
            theta = F.pad(p["theta"], (0, self._starts[-1] - p["theta"].shape[1]))
            kept |= {"items": self._wide(p["items"]), "theta": theta}
        return kept

    def _wide(self, value: Tensor) -> Tensor:
        """With zeros up to the widest."""
        return F.pad(value, (0, self.dim - value.shape[-1]))

    def footprint(self, size: int, n_items: int) -> int:
        """All rows where decorrelation moves them all."""
        return n_items if self.every_row else super().footprint(size, n_items)


def divided(sizes: NDArray[np.int64], ratio: tuple[float, ...]) -> Tensor:
    """(n,) group of each client by its number of interactions, the fewest first, groups' sizes in this ratio."""
    bounds = np.round(np.cumsum(ratio) / sum(ratio) * len(sizes))
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.argsort(sizes, kind="stable")] = np.arange(len(sizes))
    return torch.from_numpy(np.searchsorted(bounds, rank, side="right").clip(max=len(ratio) - 1).astype(np.int64))


def every_pair(net: State, users: Tensor, items: Tensor, leak: float) -> Tensor:
    """(C, U, L) logits of users (C, U, d) and items (C, L, d); the first layer's halves are added."""
    d = items.shape[-1]
    first = (users @ net["w0"][:, :d])[:, :, None] + (items @ net["w0"][:, d:])[:, None] + net["b0"][:, None, None]
    C, U, L, _ = first.shape
    return _rest(net, first.flatten(1, 2), leak).view(C, U, L)


def through(net: State, both: Tensor, leak: float) -> Tensor:
    """(C, B) logits of pairs side by side (C, B, 2d)."""
    return _rest(net, torch.baddbmm(net["b0"][:, None], both, net["w0"]), leak)


def _rest(net: State, hidden: Tensor, leak: float) -> Tensor:
    """All layers after the first: (C, B, h) -> (C, B)."""
    for n in range(1, len(net) // 2):
        hidden = torch.baddbmm(net[f"b{n}"][:, None], F.leaky_relu(hidden, leak), net[f"w{n}"])
    return hidden[..., 0]


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
