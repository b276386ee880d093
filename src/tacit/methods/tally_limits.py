"""What a history can add to tally's sums: an upload that no history of the announced length gives is known by that."""

import numpy as np
import torch
from torch import Tensor

from tacit.core.payload import Field, Payload, Sparse
from tacit.data.splits import in_orders
from tacit.methods.tally_sums import Sums

Followers = dict[int, set[int]]  # of every item, those one step later
LOOSE = 1e-3  # values travel in single precision


def not_a_history(sums: Sums, up: Payload, sizes: Tensor, n_items: int) -> str:
    """Why some client's cells are not those of one history; empty: all are.

    A history of one step holds the item before: its cells of C name every item's followers, so the sequence can be read
    off them, and all other cells follow from it. Items that came at once follow each other both ways.
    """
    first = sums.windows.index(1) * n_items
    steps, ones = up.fields["C"], up.fields.get("G")
    assert isinstance(steps, Sparse)
    row, column = steps.index // n_items - first, steps.index % n_items
    single = (row >= 0) & (row < n_items)
    followers: list[Followers] = [{} for _ in up.ids]
    for client, before, after in zip(*(x[single].tolist() for x in (steps.client, row, column)), strict=True):
        followers[client].setdefault(before, set()).add(after)
    alone = {}
    if isinstance(ones, Sparse):
        own = ones.index // n_items == ones.index % n_items
        alone = dict(zip(ones.client[own].tolist(), (ones.index[own] % n_items).tolist(), strict=True))
    histories = []
    for place, (client, size) in enumerate(zip(up.ids.tolist(), sizes.tolist(), strict=True)):
        moments = _moments(followers[place]) if followers[place] else [[alone[place]]] if place in alone else []
        items = [item for moment in moments for item in moment]
        # of one item, nothing but G tells that it is there
        if len(items) != size and (size > 1 or items):
            return f"the cells of client {client} are not those of a history of {size:,} items"
        at_once = [later > 0 for moment in moments for later in range(len(moment))]
        histories.append(in_orders(np.array(items, dtype=np.int64), np.array(at_once, dtype=bool)))
    honest = sums.cells(histories, np.arange(len(histories)), n_items, many=False)
    for name, field in up.fields.items():
        if not _same(field, honest[name]):
            return f"'{name}' is not what its clients' histories add up to"
    return ""


def _moments(followers: Followers) -> list[list[int]]:
    """The items of each time, the earliest first, as far as they can be read."""
    beside = {item: {x for x in after if item in followers.get(x, ())} for item, after in followers.items()}
    moments: list[list[int]] = []
    of: dict[int, int] = {}  # the moment of every item
    for item in [*followers, *(x for after in followers.values() for x in after)]:
        todo = [] if item in of else [item]
        moments += [[]] if todo else []
        while todo:
            if (one := todo.pop()) not in of:
                of[one] = len(moments) - 1
                moments[-1].append(one)
                todo += beside.get(one, ())
    then = {of[item]: of[x] for item, after in followers.items() for x in after - beside[item]}
    at = min(set(then) - set(then.values()), default=0)
    read = [at]
    while (at := then.get(at, -1)) >= 0 and len(read) < len(moments):
        read.append(at)
    return [moments[at] for at in read]


def _same(field: Field, other: Sparse) -> bool:
    assert isinstance(field, Sparse)
    size = field.shape[0] * field.shape[1]
    (one, mine), (two, theirs) = (_added(x.client * size + x.index, x.value) for x in (field, other))
    return torch.equal(one, two) and torch.allclose(mine, theirs, rtol=LOOSE, atol=LOOSE)


def _added(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The keys, each once, and the sums of their values: two orders of a history share cells."""
    one, place = torch.unique(key, return_inverse=True)
    return one, torch.zeros(len(one), dtype=torch.float64).index_add_(0, place, value.double())


def beyond(sums: Sums, up: Payload, sizes: Tensor, users: int) -> str:
    """Why cells are more than a client of this many users and interactions can add; empty: they are not.

    A cell of G and C is at most one for each user; one of A, and all of a matrix, are geometric series.
    """
    longest = [
        sum(decay**lag for lag in range(window)) for window, decay in zip(sums.windows, sums.decays, strict=True)
    ]
    most = {
        "count": (1.0, 1.0),
        "G": (1.0, float(sizes.max()) if len(sizes) else 0.0),  # once each, with every other item
        "C": (1.0, sum(longest)),
        "A": (max(longest), sum(longest) ** 2),
    }
    for name, field in up.fields.items():
        assert isinstance(field, Sparse)
        cell, for_each = most[name]
        size = field.shape[0] * field.shape[1]
        cells = _added(field.client * size + field.index, field.value)[1]
        total = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, field.client, field.value.double())
        if bool((field.value < -LOOSE).any()):
            return f"'{name}' has cells below 0"
        if len(cells) and float(cells.max()) > cell * users + LOOSE:
            return (
                f"'{name}' has a cell of {float(cells.max()):.4g}: {users:,} users add at most {cell * users:.4g} to it"
            )
        if bool((total > sizes.double() * for_each * (1 + LOOSE) + LOOSE).any()):
            return f"'{name}' adds up to more than the announced interactions can"
    return ""
