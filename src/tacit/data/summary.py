"""What a data set looks like, in numbers."""

from dataclasses import dataclass

import numpy as np

from tacit.data.interactions import Interactions, Ints


@dataclass(frozen=True)
class Summary:
    """The figures of one data set. Counts per user are of different items: repeated pairs are folded."""

    name: str
    users: int
    items: int
    interactions: int
    duplicates: int  # rows of the source folded away; papers count interactions + duplicates
    density: float  # share of all (user, item) pairs that occur
    min_per_user: int
    median_per_user: float
    mean_per_user: float
    max_per_user: int
    users_below_3: int  # too short for one interaction each to train, validate and test on
    equal_times: float | None  # share of neighbouring interactions of a user with one time stamp; None: no times
    gini: float  # of the items' popularity: 0 if all are alike, 1 if one has everything
    top_tenth: float  # share of the interactions that the most popular tenth of the items has
    degrees: float  # correlation of the log degrees of an interaction's user and item; 0 where one of them never varies
    lorenz: list[tuple[float, float]]  # (share of the items, share of the interactions), the least popular first
    histogram: list[tuple[int, int, int]]  # (low, high, users), both ends included, each bin twice as wide


def summarise(interactions: Interactions) -> Summary:
    """Describe a data set."""
    per_user = np.bincount(interactions.user, minlength=interactions.n_users)
    per_item = np.sort(np.bincount(interactions.item, minlength=interactions.n_items))
    rising = np.concatenate([[0.0], np.cumsum(per_item) / max(per_item.sum(), 1)])  # of the least popular 0 … n items
    places = np.linspace(0, len(per_item), 101).round().astype(np.int64)
    return Summary(
        name=interactions.name,
        users=interactions.n_users,
        items=interactions.n_items,
        interactions=len(interactions),
        duplicates=interactions.duplicates,
        density=len(interactions) / (interactions.n_users * interactions.n_items),
        min_per_user=int(per_user.min()),
        median_per_user=float(np.median(per_user)),
        mean_per_user=float(per_user.mean()),
        max_per_user=int(per_user.max()),
        users_below_3=int((per_user < 3).sum()),
        equal_times=_equal_times(interactions),
        gini=float(1 - (rising[1:] + rising[:-1]).sum() / max(len(per_item), 1)),
        top_tenth=float(1 - rising[len(per_item) - -(-len(per_item) // 10)]),
        degrees=_degrees(interactions),
        lorenz=[(float(n / len(per_item)), float(rising[n])) for n in places],
        histogram=_histogram(per_user),
    )


def _degrees(interactions: Interactions) -> float:
    one, other = (np.log(np.bincount(x)[x]) for x in (interactions.user, interactions.item))
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) > 0 and np.ptp(other) > 0 else 0.0


def _equal_times(interactions: Interactions) -> float | None:
    if interactions.time is None:
        return None
    order = np.lexsort((interactions.time, interactions.user))
    user, time = interactions.user[order], interactions.time[order]
    neighbours = user[1:] == user[:-1]
    equal = neighbours & (time[1:] == time[:-1])
    return float(equal.sum() / max(neighbours.sum(), 1))


def _histogram(per_user: Ints) -> list[tuple[int, int, int]]:
    """Users by length of history, in bins 1, 2-3, 4-7, … from the shortest history to the longest."""
    bins = np.floor(np.log2(per_user)).astype(np.int64)
    users = np.bincount(bins)
    return [(2**k, 2 ** (k + 1) - 1, int(users[k])) for k in range(int(bins.min()), len(users))]
