"""Who stands where: hits (n, depth), True where the list of a user holds an item to be found, and the lists themselves.

Ties count against the items to be found. Shapes: n users, T targets of a user (padded with -1), M items.
"""

from typing import TypeAlias

import torch
from torch import Tensor

from tacit.errors import UserError

Cells: TypeAlias = tuple[Tensor, Tensor]  # (n,) rows and (n,) columns


def full_hits(scores: Tensor, targets: Tensor, excluded: Cells, depth: int) -> Tensor:
    """Hits when every column of `scores` (n, M) is ranked but the excluded ones."""
    check_numbers(scores)
    own = scores.gather(1, targets.clamp(min=0))  # (n, T)
    if targets.shape[1] == 1:  # one comparison instead of a sort, and no copy of the scores
        row, item = excluded
        left_out = row[(scores[row, item] >= own[row, 0]) & (item != targets[row, 0])]
        # as real numbers, which are added up several times faster than truths; exact below 2²⁴ items
        ahead = torch.ge(scores, own, out=torch.empty_like(scores)).sum(1).long()
        return _hit_at(ahead - 1 - torch.bincount(left_out, minlength=len(scores)), depth)
    # Between two neighbouring float32 values there are doubles: a target moved down by one double loses to its
    # equals and to nobody else.
    user = torch.arange(len(scores))[:, None].expand_as(targets)
    there = targets >= 0
    fine = scores.to(torch.float64, copy=True)
    fine[excluded] = -torch.inf
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


def top(scores: Tensor, excluded: Cells, depth: int) -> Tensor:
    """(n, depth) items from the best to the worst but the excluded ones, -1 where none is left.

    Of equal scores the lower number comes first, so a list does not depend on how users are put into blocks.
    """
    allowed = scores.clone()
    allowed[excluded] = -torch.inf
    width = min(depth, scores.shape[1])
    value, item = allowed.topk(min(width + 1, scores.shape[1]), 1)
    item = item[:, :width].sort(1).values  # ascending: a stable sort leaves equals in this order
    if value.shape[1] > width and (tied := value[:, -2] == value[:, -1]).any():  # equals on both sides of the end
        some, last = allowed[tied], value[tied, -1:]
        above, level = some > last, some == last
        kept = above | (level & (level.cumsum(1) <= width - above.sum(1, keepdim=True)))
        item[tied] = kept.nonzero()[:, 1].view(-1, width)
    value, order = allowed.gather(1, item).sort(dim=1, descending=True, stable=True)
    item = item.gather(1, order).masked_fill(value == -torch.inf, -1)
    return torch.nn.functional.pad(item, (0, depth - width), value=-1)


def _hit_at(place: Tensor, depth: int) -> Tensor:
    """A single hit at a place from 0, (n,) -> (n, depth); none where the place is beyond."""
    return place[:, None] == torch.arange(depth)


def check_numbers(scores: Tensor) -> None:
    """A score that is not a number has no rank: it is an error, never rank 1."""
    # a sum shows it in a twentieth of the time, and may be none of infinite scores, too
    if torch.isnan(scores.sum()) and torch.isnan(scores).any():
        raise UserError("a score is not a number: the training diverged; try a smaller lr, as in --set lr=0.001")
