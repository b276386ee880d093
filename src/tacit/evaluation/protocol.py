"""Rank every user's held-out items as the protocol says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.ragged import Ragged
from tacit.data.splits import Split
from tacit.evaluation.metrics import KS, Metrics, full_hits, mean, per_user, sampled_hits


@dataclass(frozen=True)
class Result:
    """Metrics of one phase. `main` is what the protocol ranks; `sampled99` stands beside it under `strict`."""

    main: Metrics
    sampled99: Metrics | None = None
    groups: dict[str, Metrics] = field(default_factory=dict)  # by user group, of `main`
    users: int = 0  # evaluated


@dataclass(frozen=True)
class Evaluator:
    """Turns scores into metrics under one split."""

    split: Split
    ks: tuple[int, ...] = KS

    @cached_property
    def _known(self) -> dict[str, Ragged]:
        return {phase: self.split.known(phase) for phase in ("valid", "test")}

    def __call__(
        self, blocks: Iterable[tuple[Tensor, Tensor]], phase: str, groups: Mapping[str, Tensor] | None = None
    ) -> Result:
        """Evaluate (users (n,), scores (n, M)) blocks; `groups` are masks over all users, by name."""
        depth = max(self.ks)
        held_out = self.split.held_out(phase)
        candidates = self.split.negatives.get(phase)
        # one room for all users: small results kept between large blocks would break the heap into pieces
        seen = torch.zeros(self.split.n_users, dtype=torch.long)
        full, sampled = torch.zeros(2, self.split.n_users, depth, dtype=torch.bool)
        done = 0
        for everyone, everything in blocks:
            evaluated = torch.from_numpy(held_out.lengths[everyone.numpy()] > 0)
            users, scores = everyone[evaluated], everything[evaluated]
            if not len(users):
                continue
            here = slice(done, done + len(users))
            done = here.stop
            seen[here] = users
            index = users.numpy()
            targets = torch.from_numpy(held_out.padded(index))
            if candidates is not None:
                rivals = torch.from_numpy(candidates[index])
                sampled[here] = sampled_hits(scores, targets[:, 0], rivals, depth)
            if not self.split.sampled_only:
                excluded = _mask(self._known[phase], index, scores.shape[1])
                full[here] = full_hits(scores, targets, excluded, depth)
        users = seen[:done]
        total = torch.from_numpy(held_out.lengths[users.numpy()])
        of_sample = None if candidates is None else per_user(sampled[:done], total, self.ks)
        if self.split.sampled_only:
            assert of_sample is not None
            main, beside = of_sample, None
        else:
            main, beside = per_user(full[:done], total, self.ks), of_sample
        return Result(
            main=mean(main),
            sampled99=None if beside is None else mean(beside),
            groups={
                name: mean({metric: value[inside[users]] for metric, value in main.items()})
                for name, inside in (groups or {}).items()
            },
            users=len(users),
        )


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
