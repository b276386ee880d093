"""HR, NDCG, MRR, Recall, Precision and F1 at several K.

A ranking is judged by its hits: (n, depth) True where the list of a user holds an item to be found. Ties count
against the items to be found. Shapes: n users, T targets of a user (padded with -1), M items.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tacit.errors import UserError

Metrics: TypeAlias = dict[str, float]

KS = (5, 10, 20)
NAMES = ("HR", "NDCG", "MRR", "Recall", "Precision", "F1")


def full_hits(scores: Tensor, targets: Tensor, excluded: Tensor, depth: int) -> Tensor:
    """Hits when every column of `scores` (n, M) is ranked but the excluded ones (n, M)."""
    check_numbers(scores)
    own = scores.gather(1, targets.clamp(min=0))  # (n, T)
    user = torch.arange(len(scores))[:, None].expand_as(targets)
    there = targets >= 0
    if targets.shape[1] == 1:  # one comparison instead of a sort
        rivals = scores.masked_fill(excluded, -torch.inf)
        rivals.scatter_(1, targets, -torch.inf)
        return _hit_at((rivals >= own).sum(1), depth)
    # Between two neighbouring float32 values there are doubles: a target moved down by one double loses to its
    # equals and to nobody else.
    fine = scores.to(torch.float64, copy=True).masked_fill_(excluded, -torch.inf)
    lowered = torch.nextafter(own.double(), torch.tensor(-torch.inf, dtype=torch.float64))
    fine[user[there], targets[there]] = lowered[there]
    wanted = torch.zeros(scores.shape, dtype=torch.bool)
    wanted[user[there], targets[there]] = True
    best = fine.topk(min(depth, fine.shape[1]), 1).indices
    hits = wanted.gather(1, best)
    return torch.nn.functional.pad(hits, (0, depth - hits.shape[1]))


def sampled_hits(scores: Tensor, target: Tensor, negatives: Tensor, depth: int) -> Tensor:
    """Hits when one target (n,) is ranked among itself and fixed negatives (n, 99), -1 padded."""
    check_numbers(scores)
    own = scores.gather(1, target[:, None])
    rivals = scores.gather(1, negatives.clamp(min=0))
    return _hit_at(((rivals >= own) & (negatives >= 0)).sum(1), depth)


def _hit_at(place: Tensor, depth: int) -> Tensor:
    """A single hit at a place from 0, (n,) -> (n, depth); none where the place is beyond."""
    return place[:, None] == torch.arange(depth)


def check_numbers(scores: Tensor) -> None:
    """A score that is not a number has no rank: it is an error, never rank 1."""
    if torch.isnan(scores).any():
        raise UserError("a score is not a number: the training diverged; try a smaller lr, as in --set lr=0.001")


def per_user(hits: Tensor, total: Tensor, ks: Sequence[int] = KS) -> dict[str, Tensor]:
    """Metrics of each user but F1, name@K -> (n,); `total` (n,) is how many items there were to find.

    DCG has gain 1 and discount log2(rank + 1); the ideal list holds min(total, K) hits. MRR looks at the first
    hit and is 0 beyond K.
    """
    discount = 1 / torch.log2(torch.arange(hits.shape[1]).double() + 2)
    ideal = torch.cumsum(discount, 0)
    rank = torch.arange(1, hits.shape[1] + 1).double()
    out: dict[str, Tensor] = {}
    for k in ks:
        found = hits[:, :k].double()
        count = found.sum(1)
        out[f"HR@{k}"] = (count > 0).double()
        out[f"NDCG@{k}"] = (found * discount[:k]).sum(1) / ideal[total.clamp(1, k) - 1]
        out[f"MRR@{k}"] = (found / rank[:k]).amax(1)
        out[f"Recall@{k}"] = count / total.clamp(min=1)
        out[f"Precision@{k}"] = count / k
    return out


def mean(values: dict[str, Tensor]) -> Metrics:
    """The mean over users of each metric, and F1 from the means of precision and recall.

    F1 is not the mean of the users' own F1: FedCIA, whose tables it serves, joins the two means.
    """
    out = {name: float(value.mean()) if len(value) else 0.0 for name, value in values.items()}
    for name in list(out):
        if name.startswith("Precision@"):
            precision, recall = out[name], out[name.replace("Precision", "Recall")]
            both = precision + recall
            out[name.replace("Precision", "F1")] = 2 * precision * recall / both if both else 0.0
    return out
