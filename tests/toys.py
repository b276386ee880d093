"""Small made-up data that several test files share."""

import numpy as np
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.data.cohort import Federation
from tacit.data.interactions import Interactions, from_columns
from tacit.data.splits import split
from tacit.testing import few_users


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


def few_clients(count: int, protocol="strict", seed=0, groups=0) -> Federation:
    """The first users of the demo as clients, or as `groups` clients of many users."""
    divided = split(few_users(count), protocol, seed)
    return Federation.of_groups(divided, groups) if groups else Federation.of_users(divided)


def fitted(method, federation, rounds=1):
    """(server state, fleet) after so many rounds of a closed form."""
    fleet = SimulatedFleet(method, federation, chunk=16)
    server = method.init_server(federation)
    for round in range(1, rounds + 1):
        ids = torch.arange(federation.n_clients if method.asks(round) else 0)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return server, fleet
