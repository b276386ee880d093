"""Whether the items to be found stand in the first k, and how high."""

import torch
from torch import Tensor

from tacit.evaluation.metrics.metric import Metric, Metrics, Rankings, UserMetric


class HR(UserMetric):
    """Share of users with a hit."""

    name = "HR"

    def each(self, found: Rankings) -> Tensor:
        """1 with a hit, 0 without."""
        return (found.count[:, self.k - 1] > 0).double()


class NDCG(UserMetric):
    """Discounted gain over that of the ideal list, which holds min(total, k) hits: gain 1, discount log2(rank + 1)."""

    name = "NDCG"

    def each(self, found: Rankings) -> Tensor:
        """DCG over ideal DCG."""
        discount = 1 / torch.log2(torch.arange(self.k).double() + 2)
        ideal = torch.cumsum(discount, 0)
        return (found.hits[:, : self.k] * discount).sum(1) / ideal[found.total.clamp(1, self.k) - 1]


class MRR(UserMetric):
    """One over the rank of the first hit, 0 beyond k."""

    name = "MRR"

    def each(self, found: Rankings) -> Tensor:
        """One over the first rank."""
        return (found.hits[:, : self.k] / torch.arange(1, self.k + 1).double()).amax(1)


class Recall(UserMetric):
    """Hits over the items to be found."""

    name = "Recall"

    def each(self, found: Rankings) -> Tensor:
        """Hits over all there were to find."""
        return found.count[:, self.k - 1] / found.total.clamp(min=1)


class Precision(UserMetric):
    """Hits over k."""

    name = "Precision"

    def each(self, found: Rankings) -> Tensor:
        """Hits over k."""
        return found.count[:, self.k - 1] / self.k


class F1(Metric):
    """The harmonic mean of the mean precision and the mean recall.

    It is not the mean of the users' own F1: FedCIA, whose tables it serves, joins the two means.
    """

    name = "F1"

    def __call__(self, found: Rankings) -> float:
        """From the two means over users."""
        return self.joined({str(m): m(found) for m in (Precision(self.k), Recall(self.k))})

    def joined(self, means: Metrics) -> float:
        """From the two means over all nodes."""
        precision, recall = means[str(Precision(self.k))], means[str(Recall(self.k))]
        both = precision + recall
        return 2 * precision * recall / both if both else 0.0
