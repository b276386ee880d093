"""What a history can add to tally's sums: an upload that no history of the announced length gives is known by that."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.payload import Field, Payload, Sparse
from tacit.methods.tally_sums import Sums

Ints = NDArray[np.int64]
LOOSE = 1e-3  # values travel in single precision


def not_a_history(sums: Sums, up: Payload, sizes: Tensor, n_items: int) -> str:
    """Why some client's cells are not those of one history; empty: all are.

    A history of one step holds the item before: its cells of C name every item's follower, so the sequence can be read
    off them, and all other cells follow from it.
    """
    first = sums.windows.index(1) * n_items
    steps, ones = up.fields["C"], up.fields.get("G")
    assert isinstance(steps, Sparse)
    row, column = steps.index // n_items - first, steps.index % n_items
    single = (row >= 0) & (row < n_items)
    followers: list[dict[int, int]] = [{} for _ in up.ids]
    for client, before, after in zip(*(x[single].tolist() for x in (steps.client, row, column)), strict=True):
        followers[client][before] = after
    alone = {}
    if isinstance(ones, Sparse):
        own = ones.index // n_items == ones.index % n_items
        alone = dict(zip(ones.client[own].tolist(), (ones.index[own] % n_items).tolist(), strict=True))
    sequences = []
    for place, (client, size) in enumerate(zip(up.ids.tolist(), sizes.tolist(), strict=True)):
        follows = followers[place]
        item = next(iter(follows.keys() - set(follows.values())), None) if follows else alone.get(place)
        sequence = [] if item is None else [item]
        while sequence and sequence[-1] in follows and len(sequence) <= size:
            sequence.append(follows[sequence[-1]])
        # of one item, nothing but G tells that it is there
        if len(sequence) != size and (size > 1 or sequence):
            return f"the cells of client {client} are not those of a history of {size:,} items"
        sequences.append(np.array(sequence, dtype=np.int64))
    honest = sums.cells(sequences, np.arange(len(sequences)), n_items, many=False)
    for name, field in up.fields.items():
        if not _same(field, honest[name]):
            return f"'{name}' is not what its clients' histories add up to"
    return ""


def _same(field: Field, other: Sparse) -> bool:
    assert isinstance(field, Sparse)
    size = field.shape[0] * field.shape[1]
    (one, mine), (two, theirs) = ((x.client * size + x.index).sort() for x in (field, other))
    return torch.equal(one, two) and torch.allclose(field.value[mine], other.value[theirs], rtol=LOOSE, atol=LOOSE)


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
        _, place = torch.unique(field.client * size + field.index, return_inverse=True)
        cells = torch.zeros(len(field.value), dtype=torch.float64).index_add_(0, place, field.value.double())
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
