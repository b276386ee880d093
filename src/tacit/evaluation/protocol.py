"""Rank every user's held-out items as the protocol says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.ragged import Ragged
from tacit.data.splits import Split
from tacit.evaluation.metrics import Metric, Metrics, Rankings, all_of, measured
from tacit.evaluation.metrics.ranking import full_hits, sampled_hits, top


@dataclass(frozen=True)
class Result:
    """Metrics of one part. `main` is what the protocol ranks; `sampled99` stands beside it under `strict`."""

    main: Metrics
    sampled99: Metrics | None = None
    groups: dict[str, Metrics] = field(default_factory=dict)  # by user group, of `main`
    users: int = 0  # evaluated


@dataclass(frozen=True)
class Evaluator:
    """Turns scores into metrics under one split."""

    split: Split
    metrics: tuple[Metric, ...] = field(default_factory=all_of)

    @cached_property
    def _known(self) -> dict[str, Ragged]:
        return {part: self.split.known(part) for part in ("valid", "test")}

    @cached_property
    def _trained_on(self) -> tuple[Tensor, int]:
        """(M,) how many users have each item, and how many have any."""
        train = self.split.train
        return torch.from_numpy(np.bincount(train.values, minlength=self.split.n_items)), int((train.lengths > 0).sum())

    def __call__(
        self, blocks: Iterable[tuple[Tensor, Tensor]], part: str, groups: Mapping[str, Tensor] | None = None
    ) -> Result:
        """Evaluate (users (n,), scores (n, M)) blocks; `groups` are masks over all users, by name."""
        accuracy = [metric for metric in self.metrics if not metric.lists]
        listed = part == "test" and len(accuracy) < len(self.metrics)
        depth = max(metric.k for metric in self.metrics)
        held_out = self.split.held_out(part)
        candidates = self.split.negatives.get(part)
        # one room for all users: small results kept between large blocks would break the heap into pieces
        seen = torch.zeros(self.split.n_users, dtype=torch.bool)
        full, sampled = torch.zeros(2, self.split.n_users, depth, dtype=torch.bool)
        lists = torch.full((self.split.n_users, depth if listed else 0), -1, dtype=torch.int32)
        for everyone, everything in blocks:
            evaluated = torch.from_numpy(held_out.lengths[everyone.numpy()] > 0)
            users, scores = everyone[evaluated], everything[evaluated]
            if not len(users):
                continue
            seen[users] = True
            index = users.numpy()
            targets = torch.from_numpy(held_out.padded(index))
            if candidates is not None:
                rivals = torch.from_numpy(candidates[index])
                sampled[users] = sampled_hits(scores, targets[:, 0], rivals, depth)
            if listed or not self.split.sampled_only:
                excluded = _mask(self._known[part], index, scores.shape[1])
                if not self.split.sampled_only:
                    full[users] = full_hits(scores, targets, excluded, depth)
                if listed:
                    lists[users] = top(scores, excluded, depth).int()
        ranked = Rankings(sampled, torch.from_numpy(held_out.lengths), lists, *self._trained_on)
        of_sample = ranked.of(seen)
        main = of_sample if self.split.sampled_only else replace(ranked, hits=full).of(seen)
        beside = candidates is not None and not self.split.sampled_only
        return Result(
            main=measured(self.metrics if listed else accuracy, main),
            sampled99=measured(accuracy, of_sample) if beside else None,
            groups={name: measured(accuracy, main.of(inside[seen])) for name, inside in (groups or {}).items()},
            users=len(main.total),
        )


def gap(groups: Sequence[Metrics]) -> Metrics:
    """How far groups of users are apart: the largest of each metric minus the smallest."""
    return {name: max(g[name] for g in groups) - min(g[name] for g in groups) for name in (groups[0] if groups else ())}


def by_activity(split: Split, groups: int = 3) -> dict[str, Tensor]:
    """Masks of the users who are evaluated by training interactions: equal parts, the least active first.

    Parts that cover the same range are one group.
    """
    length = split.train.lengths
    evaluated = np.flatnonzero(split.test.lengths)
    masks: dict[str, Tensor] = {}
    for part in np.array_split(evaluated[np.argsort(length[evaluated], kind="stable")], groups):
        if len(part):
            name = f"{length[part].min()}–{length[part].max()} interactions"
            masks.setdefault(name, torch.zeros(split.n_users, dtype=torch.bool))[torch.from_numpy(part)] = True
    return masks


def _mask(known: Ragged, users: NDArray[np.int64], n_items: int) -> Tensor:
    """(n, M) True on items left out of the ranking."""
    items = known.padded(users)
    real = items >= 0
    mask = np.zeros((len(users), n_items), dtype=bool)
    mask[np.nonzero(real)[0], items[real]] = True
    return torch.from_numpy(mask)
