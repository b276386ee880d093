"""Means over uploads that arrive chunk by chunk: nothing larger than the result is kept."""

from collections.abc import Iterable

from torch import Tensor

from tacit.core.payload import Payload, State


def weighted_mean(uplinks: Iterable[Payload], *names: str, weight: str = "weight") -> State:
    """Σ_c w_c x_c / Σ_c w_c of each named field, w_c from the field `weight`.

    Sums run in double precision, so that the order of the chunks does not show. A table that came as touched
    rows is summed as its change against the base, which is the same and costs only those rows.
    """
    sums: dict[str, Tensor] = {}
    origins: dict[str, Tensor | float] = {}
    total = 0.0
    for up in uplinks:
        weights = up[weight].double()
        total += float(weights.sum())
        for name in names:
            field = up.fields[name]
            origins[name] = field.origin
            sums[name] = field.add_weighted(weights, sums.get(name))
    if not total:
        return {}
    return {n: (origins[n] + s / total).float() for n, s in sums.items()}


def plain_sum(uplinks: Iterable[Payload], *names: str) -> State:
    """Σ_c x_c of each named field, in double precision."""
    sums: dict[str, Tensor] = {}
    for up in uplinks:
        for name in names:
            part = up[name].double().sum(0)
            sums[name] = sums[name].add_(part) if name in sums else part
    return sums
