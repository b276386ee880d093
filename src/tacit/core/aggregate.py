"""Means over uploads that arrive chunk by chunk: nothing larger than the result is kept."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tacit.core.payload import Each, Payload, Rows, State


def weighted_mean(
    uplinks: Iterable[Payload], *names: str, weight: str = "weight", dtype: torch.dtype = torch.float32
) -> State:
    """Σ_c w_c x_c / Σ_c w_c of each named field, w_c from the field `weight`.

    Sums run in double precision, so that the order of the chunks does not show. A table that came as touched
    rows is summed as its change against the base, which is the same and costs only those rows.
    """
    sums: dict[str, Tensor] = {}
    bases: dict[str, Tensor] = {}
    over: dict[str, float] = {}  # the weight of those that came as changes against the base
    total = 0.0
    for up in uplinks:
        weights = up[weight].double()
        weight_here = float(weights.sum())
        total += weight_here
        for name in names:
            field = up.fields[name]
            if isinstance(field.origin, Tensor):
                bases[name], over[name] = field.origin, over.get(name, 0.0) + weight_here
            sums[name] = field.add_weighted(weights, sums.get(name))
    if not total:
        return {}
    return {n: (over.get(n, 0.0) / total * bases.get(n, 0) + s / total).to(dtype) for n, s in sums.items()}


def plain_sum(uplinks: Iterable[Payload], *names: str) -> State:
    """Σ_c x_c of each named field, in double precision."""
    sums: dict[str, Tensor] = {}
    for up in uplinks:
        for name in names:
            part = up[name].double().sum(0)
            sums[name] = sums[name].add_(part) if name in sums else part
    return sums


def folded(up: Payload) -> Payload:
    """One upload that stands for all clients of a chunk: their weighted mean with the weight of all of them.

    Double precision keeps it equal to them in every sum. What has no weight or is no value per client stays as it is.
    """
    fields = {n: f for n, f in up.fields.items() if n != "weight"}
    means = all(isinstance(f, Each | Rows) for f in fields.values()) and "weight" in up and len(up.ids) > 1
    total = up["weight"].double().sum(0, keepdim=True) if means else torch.zeros(1)
    if not total > 0:
        return up
    mean = weighted_mean([up], *fields, dtype=torch.float64)
    return Payload(torch.tensor([-1]), {n: Each(x[None]) for n, x in mean.items()} | {"weight": Each(total, False)})
