"""Rank every user's held-out items as the protocol says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tacit import rng
from tacit.data.ragged import Ragged
from tacit.data.splits import Split
from tacit.errors import UserError
from tacit.evaluation.metrics import Metric, Metrics, Rankings, all_of, measured
from tacit.evaluation.metrics.ranking import full_hits, sampled_hits, top

MANY, SOME = 50_000, 10_000  # users of a data set, and those of them that validation ranks for


@dataclass(frozen=True)
class Result:
    """Metrics of one part. `main` is what the protocol ranks; `sampled99` stands beside it under `strict`."""

    main: Metrics
    sampled99: Metrics | None = None
    groups: dict[str, Metrics] = field(default_factory=dict)  # by user group, of `main`
    users: int = 0  # evaluated
    ranked: Rankings | None = field(default=None, compare=False, repr=False)  # what `main` is measured on
    who: Tensor | None = field(default=None, compare=False, repr=False)  # (n,) the users in it


@dataclass(frozen=True)
class Evaluator:
    """Turns scores into metrics under one split."""

    split: Split
    metrics: tuple[Metric, ...] = field(default_factory=all_of)

    @cached_property
    def _known_at_test(self) -> Ragged:
        return self.split.known("test")

    @cached_property
    def _trained_on(self) -> tuple[Tensor, int]:
        """(M,) how many users have each item, and how many have any."""
        train = self.split.train
        return torch.from_numpy(np.bincount(train.values, minlength=self.split.n_items)), int((train.lengths > 0).sum())

    def __call__(
        self,
        blocks: Iterable[tuple[Tensor, Tensor]],
        part: str,
        groups: Mapping[str, Tensor] | None = None,
        sampled_too: bool = True,
    ) -> Result:
        """Evaluate (users (n,), scores (n, M)) blocks; `groups` are masks over all users, by name.

        Without `sampled_too` only the protocol's own ranking is made.
        """
        accuracy = [metric for metric in self.metrics if not metric.lists]
        listed = part == "test" and len(accuracy) < len(self.metrics)
        depth = max(metric.k for metric in self.metrics)
        held_out = self.split.held_out(part)
        candidates = self.split.negatives.get(part) if sampled_too or self.split.sampled_only else None
        known = self._known_at_test if part == "test" and (listed or not self.split.sampled_only) else self.split.train
        # one room for all users: small results kept between large blocks would break the heap into pieces
        seen = torch.zeros(self.split.n_users, dtype=torch.bool)
        full, sampled = torch.zeros(2, self.split.n_users, depth, dtype=torch.bool)
        lists = torch.full((self.split.n_users, depth if listed else 0), -1, dtype=torch.int32)
        for everyone, everything in blocks:
            evaluated = torch.from_numpy(held_out.lengths_of(everyone.numpy()) > 0)
            users, scores = (everyone, everything) if evaluated.all() else (everyone[evaluated], everything[evaluated])
            if not len(users):
                continue
            seen[users] = True
            index = users.numpy()
            targets = torch.from_numpy(held_out.padded(index))
            if candidates is not None:
                rivals = torch.from_numpy(candidates[index])
                sampled[users] = sampled_hits(scores, targets[:, 0], rivals, depth)
            if listed or not self.split.sampled_only:
                theirs = known.only(index)
                excluded = torch.from_numpy(theirs.rows), torch.from_numpy(theirs.values)
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
            ranked=main,
            who=seen.nonzero().flatten(),
        )


def validated(users: int, seed: int, asked: int | None) -> Tensor | None:
    """(n,) which of this many users validation ranks for, ascending; None: all of them.

    They depend on the seed and the number of users, so that every method is validated on the same. Unless something
    else is asked for (0: all), it is `SOME` where there are more than `MANY`.
    """
    count = (SOME if users > MANY else 0) if asked is None else asked
    if count > users:
        raise UserError(f"--evaluate-users {count} is more than the {users:,} users there are; leave it out")
    return torch.from_numpy(rng.drawn(seed, "validate", 0, users, slice(0, count))) if count else None


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
