"""The few operations every method scores and learns with, with gradients written for stacked clients."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core.payload import State
from tacit.data.cohort import Batch


class _Dot(torch.autograd.Function):
    """user @ tableᵀ whose table gradient is written as a contiguous outer product."""

    @staticmethod
    def forward(ctx: Any, user: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(user, table)
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


def perceptron_step(
    p: State, depth: int, table: Tensor, batch: Batch, names: Iterable[str], scratch: State
) -> tuple[Tensor, State]:
    """The same for a perceptron over [user, row] with ReLU between its layers: w0, b0, …, w{depth}, b{depth} in `p`.

    Only the rows of the batch pass through it.
    """
    chosen = Chosen.of(table, batch)
    loss, grads, of_rows = chosen.through(p, depth, p["user"], chosen.rows)
    if "items" in names:
        grads["items"] = chosen.back(of_rows, scratch)
    return loss, {n: grads[n] for n in names}


@dataclass(frozen=True)
class Chosen:
    """The rows of a batch taken out of the tables, B a client at most, and the way back."""

    rows: Tensor  # (C, B, d)
    batch: Batch  # with counts (C, 1, B)
    place: Tensor  # (n,) in (C, B), flat, of every row of the batch
    row: Tensor  # (n,) in (C, L), flat
    shape: torch.Size  # of the tables, (C, L, d)

    @classmethod
    def of(cls, table: Tensor, batch: Batch) -> "Chosen":
        """The rows that occur in a batch, client by client."""
        assert batch.count is not None
        assert batch.positive is not None
        C, L, d = table.shape
        client, row = batch.count[:, 0].nonzero(as_tuple=True)  # client by client
        number = torch.bincount(client, minlength=C)
        B = max(int(number.max()), 1)
        place = torch.arange(len(client)) - (number.cumsum(0) - number)[client] + client * B
        row = row + client * L
        taken = torch.zeros(C * B, dtype=torch.long)
        taken[place] = row  # padding takes any row: its slope is zero
        rows = table.reshape(-1, d).index_select(0, taken).view(C, B, d)
        count, positive = table.new_zeros(2, C, 1, B)
        count.view(-1)[place] = batch.count.reshape(-1)[row]
        positive.view(-1)[place] = batch.positive.reshape(-1)[row]
        return cls(rows, replace(batch, count=count, positive=positive), place, row, table.shape)

    def through(
        self, p: State, depth: int, user: Tensor, rows: Tensor, leak: float = 0.0
    ) -> tuple[Tensor, State, Tensor]:
        """The perceptron's loss (C,) for users (C, 1, d) and rows (C, B, d); gradients of its weights, user and rows.

        h is a layer's width, `leak` its units' slope below zero.
        """
        d = rows.shape[2]
        of_user, of_row = p["w0"][:, :d], p["w0"][:, d:]  # (C, d, h) each
        hidden = [torch.baddbmm(torch.baddbmm(p["b0"][:, None], user, of_user), rows, of_row)]
        for n in range(1, depth + 1):
            hidden.append(torch.baddbmm(p[f"b{n}"][:, None], F.leaky_relu_(hidden[-1], leak), p[f"w{n}"]))
        loss, slope = row_slope(hidden.pop().mT, self.batch)
        back = slope.mT  # (C, B, h) of the layer's output
        grads: State = {}
        for n in range(depth, 0, -1):
            inputs = hidden.pop()
            grads[f"w{n}"], grads[f"b{n}"] = inputs.mT @ back, back.sum(1)
            # ReLU's slope is the sign of what it gave
            back = (back @ p[f"w{n}"].mT).mul_(torch.where(inputs > 0, 1.0, leak) if leak else inputs.sign_())
        total = back.sum(1, keepdim=True)
        grads |= {"b0": total[:, 0], "w0": torch.cat([user.mT @ total, rows.mT @ back], 1), "user": total @ of_user.mT}
        return loss, grads, back @ of_row.mT

    def back(self, of_rows: Tensor, scratch: State, name: str = "items") -> Tensor:
        """Gradients of the rows (C, B, d) put back to their places in the tables, in scratch memory of that name."""
        C, L, d = self.shape
        if name not in scratch:
            scratch[name] = of_rows.new_empty(self.shape)
        spread = torch.full((C * L,), len(of_rows[0]) * C)  # the last of the following rows is zero
        spread[self.row] = self.place
        padded = torch.cat([of_rows.reshape(-1, d), of_rows.new_zeros(1, d)])
        torch.index_select(padded, 0, spread, out=scratch[name].view(-1, d))
        return scratch[name]


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
