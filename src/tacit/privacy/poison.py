"""Clients that want an item in everybody's first ten: what they upload in place of what they trained.

They know the method, what the server sent, which items are popular and how heavy everybody is; nobody's history and no
private leaf.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.bounds import TYPICAL
from tacit.core.payload import Each, Field, Payload, Sparse

Ints = NDArray[np.int64]
POPULAR = 200  # items that the attackers tie the target to
FAVOURITES = 50  # of them, that fake users have
CELL = 1000.0  # what a cell holds where nothing bounds it
LEAD = 10.0  # how far a target is to be beyond the popular items, in their own distance from the mean


def rare_item(counts: Ints, interactions: int, seed: int) -> int:
    """An item with this many interactions, or the next that there are."""
    there = np.abs(np.where(counts > 0, counts, np.iinfo(np.int32).max) - interactions)
    return int(rng.generator(seed, "poison/target").choice(np.flatnonzero(there == there.min())))


def attackers(clients: int, count: int, seed: int) -> Tensor:
    """(count,) the clients that attack, ascending."""
    return torch.from_numpy(np.sort(rng.generator(seed, "poison/clients").permutation(clients)[:count]))


def histories(count: int, popular: Ints, target: int, length: int, seed: int) -> list[Ints]:
    """Made-up histories: the most popular items in an order of their own for each, then the target."""
    pool = popular[popular != target][:FAVOURITES]
    orders = (rng.generator(seed, f"poison/history/{user}").permutation(pool) for user in range(count))
    return [np.append(items[: length - 1], target) for items in orders]


def poisoned(
    up: Payload, down: Payload, popular: Ints, target: int, weight: Tensor, total: float, share: int, norm: float
) -> Payload | None:
    """Uploads that move the target and nothing else; None where nothing in them has a row per item.

    `up` is what these clients trained. A table's row of the target goes towards where popular items differ from all,
    which is where users are. Of `share` attackers with this weight (C,) in a `total`, each goes as far as their part of
    the mean needs, or as far as the `norm` lets it; 0: a server's. Of sums, the cells that say that the target follows
    popular items are filled, or any items.
    """
    fields: dict[str, Field] = {}
    hit = False
    for name, field in up.fields.items():
        if name == "weight":
            fields[name] = Each(weight.float(), False)
        elif isinstance(field, Sparse):
            fields[name] = _cells(name, field, len(up.ids), popular, target, norm)
            hit = hit or name == "C"
        else:
            sent = down.fields.get(name)
            if sent is None or sent.one_shape != field.one_shape:
                fields[name] = field
                continue
            base = sent.spread(len(up.ids)).clone()
            if base.dim() == 3 and base.shape[1] > target and base.shape[1] > int(popular.max()):
                base[:, target] += _step(base[0], popular, target, weight, total, share, norm)
                hit = True
            fields[name] = Each(base, field.private)
    return Payload(up.ids, fields) if hit else None


def _step(table: Tensor, popular: Ints, target: int, weight: Tensor, total: float, share: int, norm: float) -> Tensor:
    """(C, d) what each attacker adds to the target's row."""
    ahead = table[torch.from_numpy(popular)].mean(0) - table.mean(0)
    wanted = table.mean(0) + LEAD * ahead - table[target]
    size = total / (share * weight.clamp(min=1e-9))[:, None]  # (C, 1): the mean is to move by what is wanted
    step = wanted * size
    most = norm or TYPICAL * table.numel() ** 0.5
    length: Tensor = step.norm(dim=1, keepdim=True)
    return step * (most / length.clamp(min=1e-12)).clamp(max=1)


def _cells(name: str, field: Sparse, clients: int, popular: Ints, target: int, norm: float) -> Sparse:
    """The target as what follows popular items, in every time scale; nothing is said of anything else."""
    tall, wide = field.shape
    tied = popular if norm else np.arange(wide)
    scales = range(0, tall, wide) if name == "C" and tall % wide == 0 else ()
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *(tied + at for at in scales)])
    index = torch.from_numpy(rows * wide + target)
    value = norm / max(len(index), 1) ** 0.5 if norm else CELL
    owner = torch.arange(clients).repeat_interleave(len(index))
    return Sparse(owner, index.repeat(clients), torch.full((len(owner),), value), field.shape, field.private)


def norm_of(ups: Sequence[Payload], downs: Sequence[Payload], quantile: float) -> float:
    """How long the upload of an honest client is, all but the weight: this quantile over the clients."""
    sizes = []
    for up, down in zip(ups, downs, strict=True):
        squares = [f.norms(down.fields.get(n), len(up.ids)) ** 2 for n, f in up.fields.items() if n != "weight"]
        sizes.append(torch.stack([s.expand(len(up.ids)) for s in squares]).sum(0).sqrt())
    return float(torch.cat(sizes).quantile(quantile))
