"""What a metric is, and what it may look at."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

Metrics: TypeAlias = dict[str, float]


@dataclass(frozen=True)
class Rankings:
    """The ranked lists of n users: their hits in validation and test, the items themselves in the test alone."""

    hits: Tensor  # (n, depth) True where a list holds an item to be found; ties count against it
    total: Tensor  # (n,) how many items there were to find
    lists: Tensor  # (n, depth) item numbers from the best on, -1 where a list ends early; depth 0 in validation
    train: Tensor  # (M,) how many users have each item in training
    users: int  # users who have anything in training

    @cached_property
    def count(self) -> Tensor:
        """(n, depth) hits up to each place, as doubles."""
        return self.hits.double().cumsum(1)

    def of(self, inside: Tensor) -> "Rankings":
        """Those of some users, a mask (n,)."""
        return replace(self, hits=self.hits[inside], total=self.total[inside], lists=self.lists[inside])

    def shown(self, k: int) -> Tensor:
        """(M,) how many users have each item among their first k."""
        items = self.lists[:, :k]
        return torch.bincount(items[items >= 0], minlength=len(self.train))


@dataclass(frozen=True)
class Metric(ABC):
    """A number that tells how good the first k of every list are; more is better where it selects a round."""

    name: ClassVar[str]
    lists: ClassVar[bool] = False  # looks at the lists themselves: for the test alone, it cannot select a round

    k: int = 10

    @abstractmethod
    def __call__(self, found: Rankings) -> float:
        """The metric over all users."""

    def joined(self, means: Metrics) -> float:
        """The metric of users who are on several nodes, from the means of the nodes' metrics by users."""
        return means[str(self)]

    def __str__(self) -> str:
        cls = type(self)
        own = cls.__module__.startswith(f"{__package__}.")
        return f"{cls.name if own else f'{cls.__module__}:{cls.__qualname__}'}@{self.k}"


class UserMetric(Metric):
    """A metric that every user has: its mean is reported."""

    @abstractmethod
    def each(self, found: Rankings) -> Tensor:
        """(n,) the metric of each user."""

    def __call__(self, found: Rankings) -> float:
        """The mean over users."""
        return float(self.each(found).double().mean()) if len(found.hits) else 0.0
