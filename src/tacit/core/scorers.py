"""The few operations every method scores and learns with, with gradients written for stacked clients."""

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core.payload import State
from tacit.data.cohort import Batch

BLOCK = 256  # columns that are added up at a time
OFTEN = 16  # uses of a row that pay for copying it


def one_for_all(value: Tensor) -> bool:
    """Whether all clients of (C, …) see the same memory."""
    return len(value) == 1 or value.stride(0) == 0


class _Dot(torch.autograd.Function):
    """user @ tableᵀ whose table gradient is written as a contiguous outer product."""

    @staticmethod
    def forward(ctx: Any, user: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(user, table)
        if len(user) > 1 and one_for_all(table):  # one product instead of one for each client
            return (user.reshape(-1, user.shape[2]) @ table[0].T).view(*user.shape[:2], -1)
        return user @ table.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        user, table = ctx.saved_tensors
        (grad,) = grads  # (C, U, L)
        to_user = grad @ table if ctx.needs_input_grad[0] else None
        to_table = None
        if ctx.needs_input_grad[1]:
            # one user: broadcasting is several times faster than a batched product of width one
            to_table = grad.mT * user if user.shape[1] == 1 else grad.mT @ user
        return to_user, to_table


def dot(user: Tensor, table: Tensor) -> Tensor:
    """Inner products of users (C, U, d) with all rows (C, L, d): (C, U, L)."""
    return cast(Tensor, _Dot.apply(user, table))  # type: ignore[no-untyped-call]


class _RowBCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, count: Tensor, positive: Tensor, size: Tensor) -> Tensor:
        ctx.save_for_backward(logits, count, positive, size)
        total = count * F.softplus(logits) - positive * logits
        return total.sum((1, 2)) / size

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits, count, positive, size = ctx.saved_tensors
        slope = torch.sigmoid(logits).mul_(count).sub_(positive)
        return slope.mul_((grads[0] / size).view(-1, 1, 1)), None, None, None


def row_bce(logits: Tensor, batch: Batch) -> Tensor:
    """Mean binary cross-entropy of a batch from the logits of all rows (C, 1, L): (C,).

    A row that is in the batch n times, p times as a positive, adds n·softplus(z) − p·z.
    """
    return cast(Tensor, _RowBCE.apply(logits, batch.count, batch.positive, batch.size))  # type: ignore[no-untyped-call]


def row_slope(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """`row_bce` of logits (C, 1, L) and its derivative by them, which takes their memory.

    The loss (C,) is computed only where someone reads it; elsewhere it is zero.
    """
    assert batch.count is not None
    assert batch.positive is not None
    loss = torch.zeros_like(batch.size)
    if batch.report:
        loss = (batch.count * F.softplus(logits) - batch.positive * logits).sum((1, 2)) / batch.size
    return loss, logits.sigmoid_().mul_(batch.count).sub_(batch.positive).div_(batch.size.view(-1, 1, 1))


def inner_product_step(
    user: Tensor, table: Tensor, batch: Batch, names: Iterable[str], scratch: State
) -> tuple[Tensor, State]:
    """`row_bce(dot(user, table))` and its gradients for `user` and `items`, written out.

    Autograd's share of a step at this size is a third; the one large gradient is written to the same memory in every
    step.
    """
    loss, slope = row_slope(user @ table.mT, batch)
    grads: State = {}
    for name in names:
        grads[name] = slope @ table if name == "user" else _outer(slope, user, name, scratch)
    return loss, grads


def affine_step(
    head: Tensor, bias: Tensor, table: Tensor, batch: Batch, names: Iterable[str], scratch: State
) -> tuple[Tensor, State]:
    """The same for w·q + b: head w (C, 1, d), bias b (C, 1, 1), and the gradient for the table under `items`."""
    loss, slope = row_slope(torch.baddbmm(bias, head, table.mT), batch)
    grads: State = {}
    for name in names:
        if name == "bias":
            grads[name] = slope.sum(2, keepdim=True)
        else:
            grads[name] = slope @ table if name == "head" else _outer(slope, head, name, scratch)
    return loss, grads


def _outer(slope: Tensor, vector: Tensor, name: str, scratch: State) -> Tensor:
    """slopeᵀ · vector, (C, 1, L) and (C, 1, d) -> (C, L, d), in the scratch memory of that name."""
    if name not in scratch:
        scratch[name] = vector.new_empty(len(slope), slope.shape[2], vector.shape[2])
    return torch.mul(slope.mT, vector, out=scratch[name])


def pair_bce(logits: Tensor, batch: Batch) -> Tensor:
    """The same from the logits of the batch's pairs (C, B): (C,)."""
    assert batch.label is not None
    assert batch.mask is not None
    each = F.binary_cross_entropy_with_logits(logits, batch.label, reduction="none")
    return (each * batch.mask).sum(1) / batch.size


def pair_bpr(margin: Tensor, batch: Batch) -> Tensor:
    """Mean −ln σ(margin) of a ranked batch from its margins (C, B): (C,)."""
    assert batch.mask is not None
    return (F.softplus(-margin) * batch.mask).sum(1) / batch.size


def pick(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a stacked table: (C, L, d), (C, B) -> (C, B, d)."""
    return table.gather(1, index[..., None].expand(-1, -1, table.shape[-1]))


def take(table: Tensor, rows: Tensor) -> Tensor:
    """The same by one flat index, which is faster where rows are wide: (C, L, d), (C, B) -> (C, B, d)."""
    C, L, d = table.shape
    flat = (rows + torch.arange(C)[:, None] * L).view(-1)
    return table.reshape(-1, d).index_select(0, flat).view(C, -1, d)


def standardised(scores: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the items of each user, in place."""
    scores -= scores.mean(-1, keepdim=True)
    deviation = torch.linalg.vector_norm(scores, dim=-1, keepdim=True) / max(scores.shape[-1] - 1, 1) ** 0.5
    return scores.div_(deviation.clamp(min=1e-12))


def added_rows(few: Tensor, table: Tensor) -> Tensor:
    """few · table for a sparse matrix in rows, (n, R) and (R, M) -> (n, M): much faster than torch's own product.

    Where each row of the table is needed often, it goes by columns that stay in the cache.
    """
    if not len(few.values()):
        return torch.zeros(len(few), table.shape[1])
    wide = BLOCK if len(few.values()) > OFTEN * len(table) else table.shape[1]
    found = (
        F.embedding_bag(
            few.col_indices(),
            part.contiguous(),
            few.crow_indices(),
            mode="sum",
            per_sample_weights=few.values(),
            include_last_offset=True,
        )
        for part in torch.split(table, wide, 1)
    )
    return torch.cat(list(found), 1)


def put(chosen: Tensor, rows: Tensor, batch: Batch, like: Tensor, scratch: State, name: str = "items") -> Tensor:
    """The way back of `take`: values (C, B, d) at their rows, zero elsewhere, in scratch memory of that name.

    `batch` is the one that the rows occur in, `like` a tensor of the table's shape.
    """
    assert batch.count is not None
    (C, L, d), B = like.shape, rows.shape[1]
    if name not in scratch:
        scratch[name] = torch.empty_like(like)
    place = torch.full((C * L,), C * B)  # the last of the following rows is zero
    there = batch.count.view(-1).nonzero()[:, 0]
    place[(rows + torch.arange(C)[:, None] * L).view(-1)[there]] = there
    padded = torch.cat([chosen.reshape(-1, d), chosen.new_zeros(1, d)])
    torch.index_select(padded, 0, place, out=scratch[name].view(-1, d))
    return scratch[name]
