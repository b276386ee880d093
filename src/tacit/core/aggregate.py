"""Means over uploads that arrive chunk by chunk: nothing larger than the result is kept."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core.payload import Cut, Each, Field, Payload, Rows, State, stacked

ROBUST = ("median", "trimmed")
TRIM = 0.1  # of the clients, at either end
CELLS = 1 << 22  # values sorted at a time
EVERYBODY = torch.tensor([-1])  # the id of one upload that stands for many clients'


def weighted_mean(
    uplinks: Iterable[Payload], *names: str, weight: str = "weight", dtype: torch.dtype = torch.float32
) -> State:
    """Σ_c w_c x_c / Σ_c w_c of each named field, w_c from the field `weight`.

    Sums run in double precision, so that the order of the chunks does not show. A table that came as touched
    rows is summed as its change against the base, which is the same and costs only those rows.
    """
    found = _Sums()
    for up in uplinks:
        found.add(up, up[weight].double(), names)
    return {n: x.to(dtype) for n, x in found.over(found.total).items()} if found.total else {}


@dataclass
class _Sums:
    """Σ_c w_c x_c by field, in two parts: the changes, and the bases that they were counted from."""

    changes: dict[str, Tensor] = field(default_factory=dict)
    bases: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)  # of those that came as changes against the base
    total: float = 0.0

    def add(self, up: Payload, weights: Tensor, names: Iterable[str]) -> None:
        """And these clients, with weights (C,)."""
        weight_here = float(weights.sum())
        self.total += weight_here
        for name in names:
            part = up.fields[name]
            if isinstance(part.origin, Tensor):
                self.bases[name], self.weights[name] = part.origin, self.weights.get(name, 0.0) + weight_here
            self.changes[name] = part.add_weighted(weights, self.changes.get(name))

    def over(self, count: float) -> State:
        """The sums divided by a number."""
        return {n: self.weights.get(n, 0.0) / count * self.bases.get(n, 0) + s / count for n, s in self.changes.items()}


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

    Double precision keeps it equal to them in every sum. What has no weight, or no value per client, stays as it is.
    """
    fields = {n: f for n, f in up.fields.items() if n != "weight"}
    means = all(isinstance(f, Each | Rows) for f in fields.values()) and "weight" in up and len(up.ids) > 1
    total = up["weight"].double().sum(0, keepdim=True) if means else torch.zeros(1)
    if not total > 0:
        return up
    mean = weighted_mean([up], *fields, dtype=torch.float64)
    return Payload(EVERYBODY, {n: Each(x[None]) for n, x in mean.items()} | {"weight": Each(total, False)})


def foldable(up: Payload) -> bool:
    """Whether uploads of this form can be added up: real numbers for each client, none of them cells of a history."""
    return bool(up.fields) and all(
        isinstance(f, Each | Rows | Cut) and f.wire_dtype.is_floating_point for f in up.fields.values()
    )


def one_for_all(uplinks: Iterable[Payload], down: Payload) -> Payload:
    """One upload, in the types of a single one, for all clients of a node.

    Of uploads with a weight it is their weighted mean with the weight of all of them, of others their sum. Where nobody
    weighs anything the mean is what was sent.
    """
    found = _Sums()
    forms: Mapping[str, Field] = {}
    for up in uplinks:
        forms = up.fields
        weights = up["weight"].double() if "weight" in up else torch.ones(len(up.ids), dtype=torch.float64)
        found.add(up, weights, [n for n in forms if n != "weight"])
    values = found.over((found.total or 1.0) if "weight" in forms else 1.0)
    if not found.total:
        alike = {n: f.dense() for n, f in down.fields.items() if n in values and f.alike}
        values |= {n: x for n, x in alike.items() if x.shape == values[n].shape}
    fields = {n: Each(x[None].to(forms[n].wire_dtype), forms[n].private) for n, x in values.items()}
    if "weight" in forms:
        weight = forms["weight"]
        fields["weight"] = Each(torch.tensor([found.total], dtype=weight.wire_dtype), weight.private)
    return Payload(EVERYBODY, fields)


def guarded_mean(uplinks: Iterator[Payload], down: Payload, kind: str) -> Iterator[Payload]:
    """The uploads as they are, or where a `kind` is asked for one that stands for all of them: their robust mean."""
    if not kind:
        yield from uplinks
    elif parts := list(uplinks):
        yield robust_mean(stacked(parts), down, kind)


def robust_mean(up: Payload, down: Payload, kind: str) -> Payload:
    """One upload for all clients: of every coordinate's change the median, or the mean without the ends.

    Who left a coordinate as it was sent has no say in it: nearly all clients leave nearly all rows of a table, and
    a median over everybody would never move them. What the others agree on counts by their share of the weight, which
    is what it has in a mean.
    """
    weights = up["weight"].double()
    total = weights.sum(0, keepdim=True)
    out = {"weight": Each(total, False)}
    for name in up.fields.keys() - {"weight"}:
        value, sent = up[name], down.fields.get(name)
        alike = sent is not None and sent.alike and sent.one_shape == value.shape[1:]
        base = sent.dense().double().flatten() if sent is not None and alike else torch.zeros(value[0].numel()).double()
        flat, step = value.flatten(1), max(1, CELLS // len(value))
        done = torch.zeros_like(base)
        for at in range(0, len(base), step):
            change = (flat[:, at : at + step].double() - base[at : at + step]).float().T.contiguous()  # (N, C)
            moved = change != 0 if alike else torch.ones_like(change, dtype=torch.bool)
            done[at : at + step] = _agreed(change, moved, kind) * (moved.double() @ weights) / total
        out[name] = Each((base + done).view(1, *value.shape[1:]))
    return Payload(EVERYBODY, out)


def _agreed(change: Tensor, moved: Tensor, kind: str) -> Tensor:
    """(N,) the middle of each row of (N, C), over the cells that were moved."""
    count = moved.sum(1, keepdim=True)
    ordered = change.masked_fill_(~moved, torch.inf).sort(1).values
    ends = (count - 1).clamp(min=0) // 2 if kind == "median" else (TRIM * count).long()  # at either side
    place = torch.arange(change.shape[1])
    kept = (place >= ends) & (place < count - ends)
    return ordered.where(kept, 0).double().sum(1) / kept.sum(1).clamp(min=1)
