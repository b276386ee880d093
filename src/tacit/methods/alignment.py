"""A contrast that keeps items of one cluster together in a client's table (CGFedRec, CoFedRec)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor

from tacit import rng
from tacit.core.objective import gradient_by
from tacit.core.payload import State
from tacit.core.scorers import affine_step
from tacit.core.settings import Positive, Search, Weight, Whole
from tacit.data.cohort import Batch, Cohort
from tacit.methods.pfedrec import PFedRec

TILE = 576  # rows of a tile of the similarity matrix, at most: it stays in the cache
CACHED = 2**18  # values of the tables that are worked on at a time, for the same reason


@dataclass(frozen=True)
class Aligned(PFedRec):
    """PFedRec whose clients, once the server has sent `labels`, add λ times the contrast to their loss.

    Symbols: λ -> strength, τ -> temperature. With `anchors` = a, the denominators are computed for a of the m items,
    drawn every round, and the rest is estimated from them; 0 computes all. The loss is estimated without bias, and its
    gradient where `smooth` is off; where it is on, every row moves a little instead of few rows far.
    """

    strength: Weight = 0.1  # λ
    temperature: Annotated[Positive, Search(0.01, 1, log=True)] = 0.1  # τ
    base_temperature: Positive = 0.5  # τ_base
    anchors: Whole = 0
    smooth: bool = False  # of the gradient from anchors; without them nothing is estimated

    @property
    def every_row(self) -> bool:
        """The contrast moves the whole table."""
        return self.strength > 0

    def guide(self, labels: Tensor, data: Cohort) -> State:
        """From the second round on the labels (M,) and the round's anchors (C, a); before it there are none."""
        if not self.strength or data.round < 2:
            return {}
        found = {"labels": labels.long()}
        if self.anchors:
            words = rng.bits(data.federation.seed, "anchors", data.round, data.ids, data.federation.n_items)
            found["anchors"] = torch.from_numpy(np.argsort(words, 1, kind="stable")[:, : self.anchors])
        return found

    @gradient_by("aligned_gradient")
    def loss(self, p: State, batch: Batch) -> Tensor:
        """BCE + λ · contrast (CGFedRec, Eq. 12), (C,)."""
        bce = super().loss(p, batch)
        if "labels" not in p:
            return bce
        return bce + self.strength * contrast(p, self.temperature, self.base_temperature, self.smooth)

    def aligned_gradient(
        self, p: State, batch: Batch, names: Iterable[str], scratch: State
    ) -> tuple[Tensor, State] | None:
        """`loss` and its gradients; a step of the head does not need the contrast unless someone reads the loss."""
        if batch.count is None:
            return None
        loss, grads = affine_step(p["head"], p["bias"], p["items"], batch, names, scratch)
        if "labels" not in p or not ("items" in grads or batch.report):
            return loss, grads
        on = batch.active.nonzero().flatten()  # the others take no step
        whose = p if len(on) == len(loss) else p | {n: p[n][on] for n in ("items", "anchors") if n in p}
        value, slope = alignment(
            whose["items"], p["labels"], self.temperature, self.base_temperature, whose.get("anchors"), self.smooth
        )
        if "items" in grads:
            grads["items"].index_add_(0, on, slope, alpha=self.strength)
        return loss.index_add(0, on, value, alpha=self.strength), grads


def alignment(
    table: Tensor, labels: Tensor, temperature: float, base: float, anchors: Tensor | None = None, smooth: bool = False
) -> tuple[Tensor, Tensor]:
    """L_cg of Eq. 11 for every client (C,) and its gradient (C, m, d).

    With z_i = e_i / ‖e_i‖ and S_c = Σ_{j in c} z_j the numerators of Eq. 10 need only the clusters' sums:
    Σ_j M_ij z_i·z_j / n_i = z_i·(S_c − z_i) / n_i. The denominators are the whole cost; `anchors` (C, a) restricts
    them to a of the m rows, weighted by m / a.
    """
    # exp((z·z' − 1) / τ) leaves the range of float32 below e^−87
    exact = table.double() if temperature < 0.025 else table
    C, m, d = table.shape
    size = torch.bincount(labels)
    others = (size - 1)[labels]  # (m,) n_i, positives of an item
    counts = (others > 0).to(exact.dtype)  # an item alone in its cluster has no term
    each = counts / others.clamp(min=1)
    scale = temperature / (base * m)
    value, slopes = table.new_empty(C), torch.empty_like(table)
    some = 1 if anchors is None else max(CACHED // (m * d), 1)  # clients at a time
    for first in range(0, C, some):
        here = slice(first, first + some)
        norm = exact[here].norm(dim=-1, keepdim=True).clamp(min=1e-12)
        z = exact[here] / norm  # (c, m, d), Eq. 7
        sums = z.new_zeros(len(z), len(size), d).index_add_(1, labels, z)  # S_c
        near = sums.index_select(1, labels).sub_(z)
        if anchors is None:
            log, pull = (x[None] for x in _denominators(z[0], counts, temperature))
        else:
            log, pull = _some_denominators(z, counts, temperature, anchors[here], smooth)
        value[here] = scale * (log - (each * (z * near).sum(2)).sum(1) / temperature)
        # z_j is in the numerator of its own row and of its cluster's other rows, all with the same n
        slope = near.mul_((-2 / temperature) * each[:, None]).add_(pull)
        slope -= (slope * z).sum(-1, keepdim=True) * z  # through the normalisation
        slopes[here] = slope.div_(norm).mul_(scale)
    return value, slopes


def _denominators(z: Tensor, counts: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Σ_i ln Σ_{l≠i} exp(z_i·z_l / τ) and its gradient for z, over the items that count.

    The matrix X = exp((z zᵀ − 1) / τ) is symmetric, so half of its tiles are computed; with D its row sums, the
    gradient is (D⁻¹ X + X D⁻¹) z / τ, whose matrix is symmetric as well.
    """
    m = len(z)
    step = math.ceil(m / math.ceil(m / TILE))  # tiles of one size
    scaled = z / temperature**0.5
    tiles: list[tuple[slice, slice, Tensor]] = []
    total = torch.zeros(m, dtype=z.dtype)
    for i in range(0, m, step):
        for j in range(i, m, step):
            a, b = slice(i, min(i + step, m)), slice(j, min(j + step, m))
            tile = torch.mm(scaled[a], scaled[b].T).sub_(1 / temperature).exp_()
            if i == j:
                tile.fill_diagonal_(0)
            else:
                total[b] += tile.sum(0)
            total[a] += tile.sum(1)
            tiles.append((a, b, tile))
    total.clamp_(min=torch.finfo(z.dtype).tiny)
    share = counts / total
    out = torch.zeros_like(z)
    for a, b, tile in tiles:
        tile.mul_(share[a, None] + share[b])
        out[a].addmm_(tile, z[b])
        if a != b:
            out[b].addmm_(tile.T, z[a])
    return (counts * (total.log() + 1 / temperature)).sum(), out / temperature


def _some_denominators(
    z: Tensor, counts: Tensor, temperature: float, anchors: Tensor, smooth: bool
) -> tuple[Tensor, Tensor]:
    """The same of several clients, (c,) and (c, m, d), estimated from the rows of their anchors (c, a).

    An item's gradient has a part from the denominators of others, to which all anchors add, and one from its own:
    D_i⁻¹ Σ_l X_il z_l. Without bias, the anchors' own parts stand for everybody's, m / a times as large, and throw few
    rows far at a time. Smooth, every item has its own part, a mean over the anchors weighted by X: a ratio of two
    estimates, with a bias that falls with a, and an error that all rows share.
    """
    places = anchors[..., None]
    rows = places.expand(-1, -1, z.shape[2])
    chosen, weight = z.gather(1, rows), counts[anchors] * (z.shape[1] / anchors.shape[1])
    tile = torch.baddbmm(
        z.new_full((1, 1, 1), -1 / temperature), chosen, z.mT, alpha=1 / temperature
    ).exp_()  # (c, a, m)
    tile.scatter_(2, places, 0)
    tiny = torch.finfo(z.dtype).tiny
    total = tile.sum(2).clamp(min=tiny)
    share = (weight / total)[..., None]
    slope = torch.bmm(tile.mT, share * chosen)
    if smooth:
        slope += torch.bmm(tile.mT, chosen) * (counts / tile.sum(1).clamp(min=tiny))[..., None]
    else:
        slope.scatter_add_(1, rows, share * torch.bmm(tile, z))
    return (weight * (total.log() + 1 / temperature)).sum(1), slope / temperature


class _Alignment(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, labels: Tensor, temperature: float, base: float, some: Tensor | None, smooth: bool
    ) -> Tensor:
        value, slope = alignment(table, labels, temperature, base, some, smooth)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0].view(-1, 1, 1), None, None, None, None, None


def contrast(p: State, temperature: float, base: float, smooth: bool = False) -> Tensor:
    """The value of `alignment` for autograd, (C,)."""
    inputs = (p["items"], p["labels"], temperature, base, p.get("anchors"), smooth)
    return cast(Tensor, _Alignment.apply(*inputs))  # type: ignore[no-untyped-call]
