"""What lists are like beside being right: how much of the catalogue they show, how evenly, and how well known it is.

All four go by how often each item is shown, a whole number, so they do not depend on the order of users.
"""

import math

import torch
from torch import Tensor

from tacit.evaluation.metrics.metric import Metric, Rankings


class Coverage(Metric):
    """Share of the catalogue that stands in the first k of anyone."""

    name = "Coverage"
    lists = True

    def __call__(self, found: Rankings) -> float:
        """Items shown over all items."""
        return float((found.shown(self.k) > 0).double().mean())


class Gini(Metric):
    """How unevenly the items of the whole catalogue are shown: 0 all alike, towards 1 a few alone."""

    name = "Gini"
    lists = True

    def __call__(self, found: Rankings) -> float:
        """Σ (2i − M − 1) e_i / (M Σ e_i), with e_i ascending and i from 1."""
        shown = found.shown(self.k).sort().values
        place = 2 * torch.arange(1, len(shown) + 1) - len(shown) - 1
        total = int(shown.sum())
        return int(place @ shown) / (len(shown) * total) if total else 0.0


class Novelty(Metric):
    """Mean self-information of what is shown: −log2 of the share of users who have the item in training.

    An item that nobody has counts as if one user had it, which bounds the metric by log2 of the number of users.
    """

    name = "Novelty"
    lists = True

    def __call__(self, found: Rankings) -> float:
        """In bits."""
        share = found.train.clamp(min=1).double() / max(found.users, 1)
        return _mean(-torch.log2(share), found.shown(self.k))


class Popularity(Metric):
    """Mean number of training interactions of what is shown."""

    name = "Popularity"
    lists = True

    def __call__(self, found: Rankings) -> float:
        """In interactions."""
        return _mean(found.train.double(), found.shown(self.k))


def _mean(value: Tensor, shown: Tensor) -> float:
    """The mean of a value of items over all places of all lists."""
    total = int(shown.sum())
    return math.fsum((value * shown).tolist()) / total if total else 0.0
