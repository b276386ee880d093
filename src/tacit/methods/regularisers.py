"""What keeps the dimensions of a table apart: PLGC's eRR and what stands in its place (Table III).

Shapes: two views of an item table, local and frozen (C, L, d); how often each row is in a batch (C, L).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.data.cohort import Batch

TINY = 1e-12  # of a squared norm that divides


def squares(table: Tensor) -> Tensor:
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


def distinct(count: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are in a batch, as many places for every client as the fullest has, and which of them are."""
    there = count > 0
    most = max(int(there.sum(1).max()), 1)
    rows = torch.argsort(~there, dim=1, stable=True)[:, :most]
    return rows, there.gather(1, rows)


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
