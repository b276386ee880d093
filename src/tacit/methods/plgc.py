"""PLGC: every client keeps an item table of its own beside the server's and scores with a mixture of the two.

A plug-in: it is no method by itself but goes over a backbone, as in `tacit run fedmf --plug plgc` or `plgc+fedmf`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import rng
from tacit.core.method import ByHand, Phase
from tacit.core.payload import Each, Field, Payload, Rows, State, rows_of
from tacit.data.cohort import Batch, Cohort, Federation

if TYPE_CHECKING:
    from tacit.core.method import Method as Backbone
else:
    Backbone = object  # the backbone stands behind the plug-in in the order of bases, and keeps its own defaults

NETWORK = ("plgc_projector", "plgc_predictor")
TINY = 1e-12  # of a squared norm that divides


@dataclass(frozen=True)
class PLGC(Backbone):
    """Mix a local and the global item table by their traces, and push their dimensions apart (PLGC).

    Symbols: C -> items, which training moves and the server averages; G -> plgc_global, which the server sent; Q -> the
    items that the backbone sees, in its loss and when it ranks; λ_c -> plgc_share; θ_eRR -> NETWORK. Choices where the
    paper is silent: docs/decisions/0017-plgc.md.
    """

    plgc_beta: float = 0.1  # β of Eq. 22
    plgc_gamma: float = 0.005  # γ of Eq. 19
    plgc_lr: float = 0.1  # of projector and predictor
    plgc_decay: float = 1.0  # of all rates, per local step
    plgc_mixing: bool = True  # dLGM of Table IV; without it the backbone starts from the server's table as ever
    plgc_regulariser: Literal["err", "au", "duorec", "feddecorr", "none"] = "err"  # Table III; none: dLGM alone
    plgc_every: int = 5  # the regulariser acts once in so many local epochs, with more weight; 0: in every batch
    plgc_temperature: float = 0.2  # τ of DuoRec

    @property
    def _local(self) -> str:
        """The leaf that is C: the backbone's own private table where it has one (FedRAP), else its item table."""
        return "personal" if "personal" in super().private else "items"

    @property
    def _keeps(self) -> bool:
        """Whether a client has to keep its item table for PLGC's sake."""
        return self.plgc_mixing and self._local == "items"

    @property
    def private(self) -> tuple[str, ...]:  # type: ignore[override]
        """The backbone's, projector and predictor, and what a trace over all rows needs."""
        squares = ("plgc_squares",) if self.plgc_mixing and not self._keeps else ()
        return (*super().private, *squares, *(NETWORK if self.plgc_regulariser == "err" else ()))

    @property
    def kept(self) -> tuple[str, ...]:  # type: ignore[override]
        """The backbone's, and the local table."""
        return (*super().kept, *(("plgc_local",) if self._keeps else ()))

    @property
    def own_leaves(self) -> tuple[str, ...]:
        """The backbone's, without the table: a client has its own anyway."""
        return tuple(n for n in super().own_leaves if not (self._keeps and n == "items"))

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """The local table counts from the first round on (Algorithm 1, line 13); projector and predictor are random."""
        out = super().init_clients(federation, ids)
        if self._keeps:
            table = torch.zeros(len(ids), federation.n_items, self.dim)
            out |= {"plgc_local": table, "trained": torch.zeros(len(ids))}
        elif self.plgc_mixing:
            out["plgc_squares"] = _squares(out[self._local])
        if self.plgc_regulariser == "err":
            scale = self.dim**-0.5  # keeps a row's length
            out |= {n: scale * rng.normal(federation.seed, f"init/{n}", 0, ids, self.dim, self.dim) for n in NETWORK}
        return out

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
            items = local
            if not data.every_row:  # padding as the backbone has it, so that nothing moves it
                items = torch.where(data.real[..., None], rows_of(local, data.rows, own=True), p["items"])
            p |= {"plgc_global": p["items"], "items": items, "plgc_local": local, "plgc_squares": _squares(local)}
            p["plgc_rest_global"] = _squares(sent).expand(len(data.ids))
        else:
            p["plgc_rest_global"] = _squares(sent) - _squares(p["items"])
            if data.every_row:
                p["plgc_squares"] = _squares(p[self._local])
        p["plgc_rest"] = p["plgc_squares"] - _squares(p[self._local])  # (C,) of what does not move in training
        return p | {"plgc_share": self._share(p)}

    def _share(self, p: State) -> Tensor:
        """λ_c from the traces over all M items (Eq. 14–15), (C, 1, 1)."""
        local = p["plgc_rest"] + _squares(p[self._local].detach())
        wide = p["plgc_rest_global"] if self._keeps else p["plgc_rest_global"] + _squares(p["items"].detach())
        return (local / (local + wide).clamp(min=TINY)).view(-1, 1, 1)

    def epoch_start(self, p: State) -> State:
        """λ_c, once per local epoch."""
        out = super().epoch_start(p) | {"plgc_epoch": p["plgc_epoch"] + 1}
        return out | ({"plgc_share": self._share(p)} if self.plgc_mixing else {})

    def weight(self, p: State) -> float:
        """Of the regulariser in this epoch: β on average over the epochs of a round."""
        if self.plgc_regulariser == "none" or not self.plgc_every:
            return 0.0 if self.plgc_regulariser == "none" else self.plgc_beta
        epochs = max(self.epochs, 1)
        times = -(-epochs // self.plgc_every)
        return 0.0 if int(p["plgc_epoch"]) % self.plgc_every else self.plgc_beta * epochs / times

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

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """A client ranks with Q of its own table and the one the server sends now."""
        return self.mixed(super().serve(clients, down, data, phase))

    def phases(self, round: int) -> list[Phase]:
        """The backbone's, with β times the regulariser wherever its item table moves (Eq. 22)."""
        return [self._plugged(phase) for phase in super().phases(round)]

    def _plugged(self, phase: Phase) -> Phase:
        network = dict.fromkeys(NETWORK, self.plgc_lr) if self.plgc_regulariser == "err" else {}
        turns = []
        for turn in phase.turns:  # a backbone may have named all that is private
            theirs = {n: rate for n, rate in turn.items() if not n.startswith("plgc_")}
            turns.append(theirs | (network if self._local in turn else {}))
        by_hand = phase.by_hand or (super().by_hand if phase.loss == self.loss else None)
        return replace(
            phase,
            turns=tuple(turns),
            loss=partial(self.regularised, phase.loss),
            by_hand=partial(self._step, phase.loss, by_hand),
            decay=phase.decay * self.plgc_decay,
        )

    def regularised(self, loss: Callable[[State, Batch], Tensor], p: State, batch: Batch) -> Tensor:
        """A loss of the backbone on Q, plus β times the regulariser of C (Eq. 22) in a batch that has it, (C,)."""
        value = loss(self.mixed(p), batch)
        return value + weight * self.regulariser(p, batch) if (weight := self.weight(p)) else value

    def regulariser(self, p: State, batch: Batch) -> Tensor:
        """eRR or what stands in its place (Table III), over the rows of a batch, (C,)."""
        local, frozen = self._views(p)
        count = counted(batch, local.shape[1])
        match self.plgc_regulariser:
            case "err":
                return err(local, frozen, count, p[NETWORK[0]] @ p[NETWORK[1]], self.plgc_gamma)
            case "au":
                return alignment_uniformity(local, frozen, count > 0)
            case "duorec":
                return contrast(local, frozen, count > 0, self.plgc_temperature)
            case "feddecorr":
                return decorrelation(local, count)
            case "none":
                return torch.zeros(len(local))

    def _views(self, p: State) -> tuple[Tensor, Tensor]:
        """C, and G as what does not move."""
        return p[self._local], (p["plgc_global"] if self._local == "items" else p["items"].detach())

    def _step(
        self,
        loss: Callable[[State, Batch], Tensor],
        by_hand: ByHand | None,
        p: State,
        batch: Batch,
        names: Iterable[str],
        scratch: State,
    ) -> tuple[Tensor, State]:
        """`regularised` and its gradients: the backbone's by its own hand where it has one, eRR's written out."""
        theirs = [n for n in names if n not in NETWORK]
        seen = self.mixed(p)
        found = by_hand(seen, batch, theirs, scratch) if by_hand else None
        value, grads = found or by_autograd(loss, seen, batch, theirs)
        for name, share in self._shares(p).items():
            if name in grads:  # what was written by hand may be overwritten
                grads[name] = grads[name].mul_(share) if found else grads[name] * share
        weight, epoch = self.weight(p), p["plgc_epoch"]
        done = self.plgc_every > 0 and scratch.get("plgc_epoch") is epoch  # this epoch has had its turn
        if not weight or done or self._local not in grads:
            return value, grads
        scratch["plgc_epoch"] = epoch
        table = grads[self._local]
        if self.plgc_regulariser == "err":
            (local, frozen), (projector, predictor) = self._views(p), (p[n] for n in NETWORK)
            count = counted(batch, local.shape[1])
            extra, rows, network = err_step(local, frozen, count, projector, predictor, self.plgc_gamma)
            torch.baddbmm(table, *rows, alpha=weight, out=table)
            grads |= {n: weight * x for n, x in zip(NETWORK, network, strict=True)}
        else:
            extra, own = by_autograd(self.regulariser, p, batch, [self._local])
            table.add_(own[self._local], alpha=weight)
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
            kept["plgc_squares"] = p["plgc_rest"] + _squares(p[self._local])
        return kept

    def footprint(self, size: int, n_items: int) -> int:
        """The local table is read and written whole, though training touches few of its rows."""
        return super().footprint(size, n_items) + (n_items // 8 if self._keeps else 0)


def _squares(table: Tensor) -> Tensor:
    """tr(E Eᵀ), the squares of all entries (Eq. 14)."""
    norm: Tensor = torch.linalg.vector_norm(table, dim=(-2, -1))
    return norm.square()


def counted(batch: Batch, rows: int) -> Tensor:
    """(C, L) how often each row is in a batch, whichever its form."""
    if batch.count is not None:
        return batch.count[:, 0]
    assert batch.row is not None
    assert batch.mask is not None
    count = torch.zeros(len(batch.size), rows)
    for row in (batch.row, batch.rival):
        if row is not None:
            count.scatter_add_(1, row, batch.mask.float())
    return count


def by_autograd(
    loss: Callable[[State, Batch], Tensor], p: State, batch: Batch, names: Iterable[str]
) -> tuple[Tensor, State]:
    """A loss (C,) and its gradients; a leaf that it does not reach has none."""
    with torch.enable_grad():
        leaves = {n: p[n].detach().requires_grad_() for n in names}
        value = loss(p | leaves, batch)
        grads = torch.autograd.grad(value, list(leaves.values()), torch.ones_like(value), allow_unused=True)
    return value.detach(), {n: g for n, g in zip(leaves, grads, strict=True) if g is not None}


def err(local: Tensor, frozen: Tensor, count: Tensor, network: Tensor, gamma: float) -> Tensor:
    """Redundancy of dimensions between two views of a batch's rows (Eq. 18–19), (C,).

    A row (C, L, d) that is in the batch n times is n of the B rows of Z; `network` (C, d, d) is projector times
    predictor.
    """
    ours, theirs = local @ network, frozen @ network  # Z^C and Z^G
    weight = count[..., None]
    lengths = [(z.square() * weight).sum(1).clamp(min=TINY).sqrt() for z in (ours, theirs)]
    H = (ours * weight).mT @ theirs / (lengths[0][:, :, None] * lengths[1][:, None])
    self_correlation = H.diagonal(dim1=1, dim2=2)
    inter_correlation = H.square().sum((1, 2)) - self_correlation.square().sum(1)
    return ((1 - self_correlation).square().sum(1) + gamma * inter_correlation) / local.shape[2]


def err_step(
    local: Tensor, frozen: Tensor, count: Tensor, projector: Tensor, predictor: Tensor, gamma: float
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`err` and its gradients for the local rows (as two factors), and for projector and predictor, written out.

    All that it needs of the rows is XᵀNX, XᵀNY and YᵀNY (d × d) of the two views X and Y, weighed by the counts N, and
    its gradient for X is N (X S + Y T) with S and T (d × d): a step takes two products with the rows.
    """
    d = local.shape[2]
    weighed = torch.cat([local, frozen], 2).mul_(count[..., None])  # N [X, Y]
    of_local = local.mT @ weighed
    XX, XY = of_local[..., :d], of_local[..., d:]
    YY = frozen.mT @ weighed[..., d:]
    W = projector @ predictor
    XXW, XYW, YYW = XX @ W, XY @ W, YY @ W
    ours, theirs = ((SW * W).sum(1).clamp(min=TINY) for SW in (XXW, YYW))  # squared lengths of Z's columns, (C, d)
    scale = (ours[:, :, None] * theirs[:, None]).rsqrt()
    H = (W.mT @ XYW) * scale
    diagonal = H.diagonal(dim1=1, dim2=2)
    value = ((1 - diagonal).square().sum(1) + gamma * (H.square().sum((1, 2)) - diagonal.square().sum(1))) / d
    slope = (2 * gamma / d) * H  # by H
    slope.diagonal(dim1=1, dim2=2).copy_((2 / d) * (diagonal - 1))
    to_K = slope * scale  # by K = Wᵀ XᵀNY W
    pull = slope * H
    to_ours, to_theirs = (-pull.sum(2) / ours)[:, None], (-pull.sum(1) / theirs)[:, None]  # twice those by the lengths²
    WK = W @ to_K
    rows = weighed, torch.cat([(W * to_ours) @ W.mT, W @ WK.mT], 1)  # N [X, Y], and S over T
    to_W = (XYW @ to_K.mT).add_(XY.mT @ WK).add_(XXW * to_ours).add_(YYW * to_theirs)
    return value, rows, (to_W @ predictor.mT, projector.mT @ to_W)


def alignment_uniformity(local: Tensor, frozen: Tensor, inside: Tensor) -> Tensor:
    """AU in eRR's place (Wang and Isola 2020, exponents 2): the two views of an item close, different items apart.

    Over the distinct items of a batch, `inside` (C, L); the second view is frozen and cannot be spread.
    """
    ours, theirs = F.normalize(local, dim=2), F.normalize(frozen, dim=2)
    n = inside.sum(1).clamp(min=1)
    alignment = ((ours - theirs).square().sum(2) * inside).sum(1) / n
    near = torch.exp(4 * (ours @ ours.mT) - 4)  # exp(−2 ‖x − y‖²) on the sphere
    pairs = (inside[:, :, None] & inside[:, None]) & ~torch.eye(inside.shape[1], dtype=torch.bool)
    return alignment + torch.log((near * pairs).sum((1, 2)).clamp(min=TINY) / (n * (n - 1)).clamp(min=1))


def contrast(local: Tensor, frozen: Tensor, inside: Tensor, temperature: float) -> Tensor:
    """DuoRec's contrast in eRR's place (Qiu et al. 2022): an item's other view against all others, in both.

    Over the distinct items of a batch, `inside` (C, L), with cosine similarity.
    """
    ours, theirs = F.normalize(local, dim=2), F.normalize(frozen, dim=2)
    alone = torch.eye(inside.shape[1], dtype=torch.bool)
    across = (ours @ theirs.mT / temperature).masked_fill(~inside[:, None], -torch.inf)  # (C, L, L)
    among = (ours @ ours.mT / temperature).masked_fill(~inside[:, None] | alone, -torch.inf)
    total = torch.logaddexp(across.logsumexp(2), among.logsumexp(2))
    right = (ours * theirs).sum(2) / temperature
    return torch.where(inside, total - right, 0).sum(1) / inside.sum(1).clamp(min=1)


def decorrelation(local: Tensor, count: Tensor) -> Tensor:
    """FedDecorr in eRR's place (Shi et al. 2023): ‖K‖_F² / d² of the correlations K between a batch's dimensions."""
    weight = (count / count.sum(1, keepdim=True).clamp(min=1))[..., None]
    centred = local - (local * weight).sum(1, keepdim=True)
    covariance = (centred * weight).mT @ centred
    deviation = covariance.diagonal(dim1=1, dim2=2).clamp(min=TINY).sqrt()
    K = covariance / (deviation[:, :, None] * deviation[:, None])
    return K.square().sum((1, 2)) / local.shape[2] ** 2
