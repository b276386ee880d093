"""Sums too large to be written out while almost all of their cells are zero: sparse until they fill up."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tacit.core.payload import Payload, Sparse

DENSE = 60_000_000  # a sum of this many cells, 240 MB, is written out from the start
FULL = 0.03  # of the cells: a sum that has filled up so far is written out; sorting it again and again would cost more
PENDING = 4_000_000  # cells that wait before they are added to a sparse sum: each time it is sorted as a whole
NOTHING = 1e-3  # a cell that a revision leaves this small held nothing but the user who left


def added(sums: dict[str, Tensor], uplinks: Iterable[Payload], written: bool) -> dict[str, Tensor]:
    """The sums with the uploads' cells added, in place where they are written out; `written`: all shall be."""
    waiting: dict[str, list[Sparse]] = {}
    for up in uplinks:
        for name, part in up.fields.items():
            assert isinstance(part, Sparse)
            if name not in sums:
                sums[name] = _zeros(part.shape, written)
            waiting.setdefault(name, []).append(part)
            if not sums[name].is_sparse or sum(len(p.value) for p in waiting[name]) > PENDING:
                sums[name] = plus(sums[name], waiting.pop(name))
    for name, parts in waiting.items():
        sums[name] = plus(sums[name], parts)
    return sums


def total_of(uplinks: Iterable[Payload], name: str) -> Tensor:
    """One field of all uploads added up, written out."""
    total = torch.zeros(0)
    for up in uplinks:
        total = total if len(total) else torch.zeros(up.fields[name].one_shape)
        up.fields[name].add_to(total)
    return total


def plus(total: Tensor, parts: Iterable[Sparse], sign: float = 1.0) -> Tensor:
    """The sum after cells came (+1) or went (−1); of those that went, no trace stays."""
    parts = list(parts)
    if not total.is_sparse:
        for part in parts:
            Sparse(part.client, part.index, sign * part.value, part.shape).add_to(total)
        return total
    index = torch.cat([p.index for p in parts])
    value = sign * torch.cat([p.value for p in parts]).to(total.dtype)
    place = torch.stack([index // total.shape[1], index % total.shape[1]])
    total = (total + _cells(place, value, total.shape)).coalesce()
    if sign < 0:
        kept = total.values().abs() > NOTHING
        total = _cells(total.indices()[:, kept], total.values()[kept], total.shape).coalesce()
    return total.to_dense() if total.values().numel() > FULL * total.numel() else total


def diagonal(total: Tensor, column: Tensor | None = None) -> Tensor:
    """The diagonal of a sum, or of every row the cell at its own `column`."""
    column = torch.arange(len(total)) if column is None else column
    if not total.is_sparse:
        return total[torch.arange(len(total)), column]
    row, place = total.indices()
    on = column[row] == place
    return torch.zeros(len(total)).index_put_((row[on],), total.values()[on])


def write_out(total: Tensor, room: Tensor | None = None) -> Tensor:
    """A sum with all its cells, in `room` if that has its shape."""
    if room is None or room.shape != total.shape:
        room = torch.empty(total.shape, dtype=total.dtype)
    if not total.is_sparse:
        return room.copy_(total)
    return room.zero_().index_put_(tuple(total.indices()), total.values())


def columns(total: Tensor, chosen: Tensor) -> Tensor:
    """Some columns of a sum, ascending, written out."""
    if not total.is_sparse:
        return total[:, chosen]
    place = torch.full((total.shape[1],), -1).index_put_((chosen,), torch.arange(len(chosen)))
    row, column = total.indices()
    inside = place[column] >= 0
    room = torch.zeros(len(total), len(chosen))
    return room.index_put_((row[inside], place[column[inside]]), total.values()[inside])


def product(left: Tensor, total: Tensor, chosen: Tensor, room: Tensor, block: int = 2048) -> None:
    """left · sum for some columns of the sum, written to the same columns of `room`."""
    for some in torch.split(chosen, block):
        right = columns(total, some)
        used = right.any(1).nonzero()[:, 0]  # rare items stand beside few others
        room[:, some] = left[:, used] @ right[used]


def _zeros(shape: tuple[int, ...], written: bool) -> Tensor:
    if written or shape[0] * shape[1] <= DENSE:
        return torch.zeros(shape)
    return _cells(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), shape).coalesce()


def _cells(place: Tensor, value: Tensor, shape: Iterable[int]) -> Tensor:
    return torch.sparse_coo_tensor(place, value, tuple(shape), check_invariants=False)
