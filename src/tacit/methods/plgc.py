"""PLGC: every client keeps an item table of its own beside the server's and scores with a mixture of the two.

A plug-in: it is not a method by itself but goes over a backbone, as in `tacit run fedmf --plug plgc` or `plgc+fedmf`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit import rng
from tacit.core.leaves import Leaves, kept, named, private
from tacit.core.method import Method, spread
from tacit.core.objective import Loss, Value, by_autograd, gradient_of
from tacit.core.payload import Each, Field, Payload, Rows, State, rows_of
from tacit.core.plug import Plug
from tacit.core.scorers import take
from tacit.core.settings import Count, Decay, Positive, Rate, Search, Starts, Weight
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Batch, Cohort, Federation
from tacit.methods.personal import Personal
from tacit.methods.regularisers import (
    TINY,
    alignment_uniformity,
    contrast,
    counted,
    decorrelation,
    distinct,
    err,
    err_step,
    squares,
)

NETWORK = ("plgc_projector", "plgc_predictor")


@dataclass(frozen=True)
class PLGC(Plug, Personal):
    """Mix a local and the global item table by their traces, and push their dimensions apart (PLGC).

    Symbols: C -> items, which training moves and the server averages; G -> plgc_global, which the server sent; Q -> the
    items that the backbone sees, in its loss and when it ranks; λ_c -> plgc_share; θ_eRR -> NETWORK. Choices where the
    paper is silent: docs/decisions/0017-plgc.md.
    """

    plgc_beta: Weight = 0.1  # β of Eq. 22
    plgc_gamma: Weight = 0.005  # γ of Eq. 19
    plgc_lr: Rate = 0.1  # of projector and predictor
    plgc_decay: Decay = 1.0  # of all rates, per local step
    plgc_mixing: bool = True  # dLGM of Table IV; without it the backbone starts from the server's table as ever
    plgc_regulariser: Literal["err", "au", "duorec", "feddecorr", "none"] = "err"  # Table III; none: dLGM alone
    plgc_every: Count = 5  # the regulariser acts in one of this many local epochs, with as much more weight
    plgc_temperature: Annotated[Positive, Search(0.02, 2, log=True, when="plgc_regulariser=duorec")] = (
        0.2  # τ of DuoRec
    )

    name: ClassVar[str] = "plgc"
    starts: ClassVar[Starts] = ({"own_decay": 1.0, "own_share": 0.0},)

    @classmethod
    def unfit(cls, method: Method) -> str:
        """It mixes item tables that clients train."""
        trains = isinstance(method, Trained) and not method.pooled and "items" in named(method.leaves(), "shared")
        return "" if trains else "clients that train a shared item table"

    @property
    def _local(self) -> str:
        """The leaf that is C: the backbone's own private table where it has one, else its item table."""
        return self.personal_table or "items"

    @property
    def _keeps(self) -> bool:
        """Whether a client has to keep its item table for PLGC's sake."""
        return self.plgc_mixing and not self.personal_table

    def leaves(self) -> Leaves:
        """The backbone's, the local table or what a trace over all its rows needs, projector and predictor."""
        out = super().leaves()
        if self._keeps:
            out |= {"plgc_local": kept(), "trained": private()}
        elif self.plgc_mixing:
            out["plgc_squares"] = private()
        return out | (dict.fromkeys(NETWORK, private()) if self.plgc_regulariser == "err" else {})

    def own_leaves(self) -> tuple[str, ...]:
        """The backbone's, without the table: a client has its own anyway."""
        return tuple(n for n in super().own_leaves() if not (self._keeps and n == "items"))

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """The local table counts from the first round on (Algorithm 1, line 13); projector and predictor are random."""
        out = super().init_clients(federation, ids)
        if self._keeps:
            table = torch.zeros(len(ids), federation.n_items, self.dim)
            out |= {"plgc_local": table, "trained": torch.zeros(len(ids))}
        elif self.plgc_mixing:
            out["plgc_squares"] = squares(out[self._local])
        if self.plgc_regulariser == "err":
            scale = self.dim**-0.5  # keeps a row's length
            out |= {n: scale * rng.normal(federation.seed, f"init/{n}", 0, ids, self.dim, self.dim) for n in NETWORK}
        return out

    def common(self, down: Payload, data: Cohort) -> State:
        """The backbone's, and G where C is the item table."""
        whose = super().common(down, data)
        return whose | {"items": spread(down.fields["items"], data, table=True)} if self._keeps else whose

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The backbone's leaves with C among them, G beside them, and λ_c."""
        p = super().receive(clients, down, data)
        p["plgc_epoch"] = torch.tensor(-1)
        if not self.plgc_mixing:
            return p | ({"plgc_global": p["items"]} if self._local == "items" else {})
        sent = down["items"]
        if self._keeps:
            trained, local = clients["trained"] > 0, clients["plgc_local"]  # (C, M, d)
            if not trained.all():
                local = torch.where(trained.view(-1, 1, 1), local, sent)
            if data.round and self.own_decay:  # all of C: rows that nobody has touched follow G
                local = torch.lerp(local, sent, self.own_decay)
            items = local
            if not data.every_row:  # padding as the backbone has it, so that nothing moves it
                items = torch.where(data.real[..., None], rows_of(local, data.rows, own=True), p["items"])
            p |= {"plgc_global": p["items"], "items": items, "plgc_local": local, "plgc_squares": squares(local)}
            p["plgc_rest_global"] = squares(sent).expand(len(data.ids))
        else:
            p["plgc_rest_global"] = squares(sent) - squares(p["items"])
            if data.every_row:
                p["plgc_squares"] = squares(p[self._local])
            elif self.own_decay:
                before, after = (x[self._local] * data.real[..., None] for x in (clients, p))
                p["plgc_squares"] = p["plgc_squares"] + squares(after) - squares(before)
        p["plgc_rest"] = p["plgc_squares"] - squares(p[self._local])  # (C,) of what does not move in training
        return p | {"plgc_share": self._share(p)}

    def _share(self, p: State) -> Tensor:
        """λ_c from the traces over all M items (Eq. 14–15), (C, 1, 1)."""
        local = p["plgc_rest"] + squares(p[self._local].detach())
        wide = p["plgc_rest_global"] if self._keeps else p["plgc_rest_global"] + squares(p["items"].detach())
        return (local / (local + wide).clamp(min=TINY)).view(-1, 1, 1)

    def epoch_start(self, p: State) -> State:
        """λ_c, once per local epoch."""
        out = {"plgc_epoch": p["plgc_epoch"] + 1}
        return out | ({"plgc_share": self._share(p)} if self.plgc_mixing else {})

    def epoch_weight(self, p: State) -> float:
        """Of the regulariser in a full batch of this epoch: β on average over the epochs of a round."""
        if self.plgc_regulariser == "none":
            return 0.0
        epochs = max(self.epochs, 1)
        times = -(-epochs // self.plgc_every)
        return 0.0 if int(p["plgc_epoch"]) % self.plgc_every else self.plgc_beta * epochs / times

    def batch_weight(self, p: State, batch: Batch) -> Tensor | None:
        """Of the regulariser in a batch, (C,), by its size: few rows say little of how dimensions relate.

        Weighed like a full one, the last batch of an epoch throws its few rows so far that perceptrons diverge
        (decision 17).
        """
        weight = self.epoch_weight(p)
        return weight * torch.as_tensor(batch.share).expand(len(batch.size)) if weight else None

    def mixed(self, p: State) -> State:
        """The leaves as the backbone sees them: Q = λ_c C + (1 − λ_c) G (Eq. 16) in the place of its item table.

        A backbone that adds its own table to the shared one does so still, each with its share.
        """
        if not self.plgc_mixing:
            return p
        if self._keeps:
            return p | {"items": torch.lerp(p["plgc_global"], p["items"], p["plgc_share"])}
        return p | {n: p[n] * share for n, share in self._shares(p).items()}

    def _shares(self, p: State) -> dict[str, Tensor]:
        """What is left of a table's gradient when it is mixed, by leaf."""
        if not self.plgc_mixing:
            return {self._local: torch.ones(1)}
        share = p["plgc_share"]
        return {"items": share} if self._keeps else {"items": 1 - share, self._local: share}

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """A client ranks with Q of its own table and the one the server sends now."""
        return self.mixed(super().serve(clients, down, data, part))

    def phases(self, round: int) -> list[Phase]:
        """The backbone's, with β times the regulariser wherever its item table moves (Eq. 22)."""
        return [self._plugged(phase) for phase in super().phases(round)]

    def _plugged(self, phase: Phase) -> Phase:
        network = dict.fromkeys(NETWORK, self.plgc_lr) if self.plgc_regulariser == "err" else {}
        turns = []
        for turn in phase.turns:  # a backbone may have named all that is private
            theirs = {n: rate for n, rate in turn.items() if n != "trained" and not n.startswith("plgc_")}
            turns.append(theirs | (network if self._local in turn else {}))
        loss = Loss(partial(self.regularised, phase.loss), partial(self._step, phase.loss))
        return replace(phase, turns=tuple(turns), loss=loss, decay=phase.decay * self.plgc_decay)

    def regularised(self, loss: Value, p: State, batch: Batch) -> Tensor:
        """A loss of the backbone on Q, plus β times the regulariser of C (Eq. 22) in a batch that has it, (C,)."""
        value, weight = loss(self.mixed(p), batch), self.batch_weight(p, batch)
        return value if weight is None else value + weight * self.regulariser(p, batch)

    def regulariser(self, p: State, batch: Batch) -> Tensor:
        """eRR or what stands in its place (Table III), over the rows of a batch, (C,)."""
        local, frozen = self._views(p)
        count = counted(batch, local.shape[1])
        if self.plgc_regulariser == "err":
            return err(local, frozen, count, p[NETWORK[0]] @ p[NETWORK[1]], self.plgc_gamma)
        if self.plgc_regulariser == "feddecorr":
            return decorrelation(local, count)
        if self.plgc_regulariser == "none":
            return torch.zeros(len(local))
        rows, inside = distinct(count)  # all pairs of a batch's rows, and not of a client's
        local, frozen = take(local, rows), take(frozen, rows)
        if self.plgc_regulariser == "au":
            return alignment_uniformity(local, frozen, inside)
        return contrast(local, frozen, inside, self.plgc_temperature)

    def _views(self, p: State) -> tuple[Tensor, Tensor]:
        """C, and G as what does not move."""
        return p[self._local], (p["plgc_global"] if self._local == "items" else p["items"].detach())

    def _step(self, loss: Value, p: State, batch: Batch, names: Iterable[str], scratch: State) -> tuple[Tensor, State]:
        """`regularised` and its gradients: the backbone's by its own hand where it has one, eRR's written out."""
        theirs = [n for n in names if n not in NETWORK]
        seen = self.mixed(p)
        gradient = gradient_of(loss)
        found = gradient(seen, batch, theirs, scratch) if gradient else None
        value, grads = found or by_autograd(loss, seen, batch, theirs)
        for name, share in self._shares(p).items():
            if name in grads:  # what was written by hand may be overwritten
                grads[name] = grads[name].mul_(share) if found else grads[name] * share
        weight = self.batch_weight(p, batch)
        if weight is None or self._local not in grads:
            return value, grads
        table, wide = grads[self._local], weight.view(-1, 1, 1)
        if self.plgc_regulariser == "err":
            (local, frozen), (projector, predictor) = self._views(p), (p[n] for n in NETWORK)
            count = counted(batch, local.shape[1])
            extra, (left, right), network = err_step(local, frozen, count, projector, predictor, self.plgc_gamma)
            torch.baddbmm(table, left, wide * right, out=table)
            grads |= {n: wide * x for n, x in zip(NETWORK, network, strict=True)}
        else:
            extra, own = by_autograd(self.regulariser, p, batch, [self._local])
            table.addcmul_(own[self._local], wide)
        return value + weight * extra, grads

    def whole(self, name: str, p: State, down: Payload, data: Cohort) -> Field:
        """Of the item table what is uploaded is C, whole: a client's rows differ from the server's all over."""
        return Each(self._table(p, data)) if name == "items" and self._keeps else super().whole(name, p, down, data)

    def _table(self, p: State, data: Cohort) -> Tensor:
        """C with all its rows, (C, M, d); put together once, for the client and for the server."""
        if "plgc_whole" not in p:
            p["plgc_whole"] = Rows(p["items"], data.rows, data.real, p["plgc_local"]).dense()
        return p["plgc_whole"]

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """The backbone's, and C."""
        kept = super().keep(p, down, data)
        if self._keeps:
            kept |= {"plgc_local": self._table(p, data), "trained": torch.ones(len(data.ids))}
        elif self.plgc_mixing:
            kept["plgc_squares"] = p["plgc_rest"] + squares(p[self._local])
        return kept

    def footprint(self, size: int, n_items: int) -> int:
        """The local table is read and written whole, though training touches few of its rows."""
        return super().footprint(size, n_items) + (n_items // 8 if self._keeps else 0)
