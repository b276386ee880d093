"""Small made-up data that several test files share."""

from functools import cache

import numpy as np

from tacit.data.cohort import Federation
from tacit.data.demo import demo
from tacit.data.interactions import Interactions, from_columns
from tacit.data.splits import split


def random_data(users=12, items=400, seed=0, shortest=3, longest=15, times=True, ties=False) -> Interactions:
    """Users with histories of different lengths and two who share the catalogue, in a shuffled file."""
    rng = np.random.default_rng(seed)
    rows = [(users + item % 2, item) for item in range(items)]
    for user in range(users):
        length = int(rng.integers(shortest, longest + 1))
        rows += [(user, int(item)) for item in rng.choice(items, length, replace=False)]
    user, item = np.array(rows)[rng.permutation(len(rows))].T
    time = rng.integers(0, 4, len(user)) if ties else rng.permutation(len(user))
    return from_columns("toy", user, item, time.astype(np.float64) if times else None)


@cache
def few_users(count: int) -> Interactions:
    """The first users of the demo."""
    data = demo()
    kept = data.user < count
    return from_columns("few", data.user[kept], data.item[kept], data.time[kept])


def few_clients(count: int, protocol="strict", seed=0, groups=0) -> Federation:
    """The first users of the demo as clients, or as `groups` clients of many users."""
    divided = split(few_users(count), protocol, seed)
    return Federation.of_groups(divided, groups) if groups else Federation.of_users(divided)
