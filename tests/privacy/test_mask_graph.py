import math
import secrets

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import hypergeom

from tacit.errors import UserError
from tacit.privacy.mask_graph import circle, degree_and_threshold


def holds(clients, colluding, dropping, degree, threshold):
    """The three conditions, by scipy's own distribution."""
    exposed = clients * hypergeom(clients - 1, colluding, degree).sf(threshold - 1)
    stuck = clients * hypergeom(clients - 1, clients - 1 - dropping, degree).cdf(threshold - 1)
    gone, half = colluding + dropping, degree // 2
    cut = clients * math.prod((gone - i) / (clients - i) for i in range(half)) if gone >= half else 0.0
    return exposed <= 2**-40, stuck <= 2**-30, cut <= 2**-40


@pytest.mark.parametrize("clients", [50, 100, 400, 566, 1600, 6040])
def test_the_smallest_degree_that_keeps_the_three_promises(clients):
    colluding, dropping = clients // 10, 3 * clients // 10
    degree, threshold = degree_and_threshold(clients, colluding, dropping)
    assert all(holds(clients, colluding, dropping, degree, threshold))
    assert not holds(clients, colluding, dropping, degree, threshold + 1)[1], "the threshold is the largest possible"
    assert not any(all(holds(clients, colluding, dropping, degree - 2, t)) for t in range(1, degree))


def test_the_degree_grows_with_the_logarithm_of_the_clients():
    """Four times as many clients cost about as many neighbours more, each time."""
    sizes = [100, 400, 1600, 6400, 25_600, 102_400]
    degrees = [degree_and_threshold(n, n // 10, 3 * n // 10)[0] for n in sizes]
    assert max(np.diff(degrees)) <= 28
    assert degrees[0] == 54
    assert degrees[-1] < 3 * degrees[0]


def test_few_clients_are_everybodys_neighbours():
    assert degree_and_threshold(3, 0, 0) == (2, 2)
    assert degree_and_threshold(4, 0, 1) == (3, 2)
    assert degree_and_threshold(10, 1, 3) == (9, 6)
    with pytest.raises(UserError, match="cannot tolerate 5 dropouts and 4 colluding clients at once"):
        degree_and_threshold(10, 4, 5)


@pytest.mark.parametrize(("clients", "degree"), [(12, 4), (13, 6), (9, 8), (8, 7)])
def test_everyone_has_as_many_neighbours_and_is_theirs(clients, degree):
    ids = list(range(100, 100 + clients))
    graph = circle(ids, degree, secrets.token_bytes)
    assert sorted(graph) == ids
    for mine, others in graph.items():
        assert len(set(others)) == len(others) == degree
        assert mine not in others
        assert all(mine in graph[other] for other in others)


def test_the_order_is_random():
    draw = np.random.default_rng(0).bytes
    met = np.zeros((8, 8))
    for _ in range(4000):
        for mine, others in circle(range(8), 2, draw).items():
            met[mine, others] += 1
    expected = 4000 * 2 / 7
    assert np.abs(met[~np.eye(8, dtype=bool)] - expected).max() < 5 * math.sqrt(expected)


def test_the_promises_in_a_trial():
    """Whoever colludes or drops out: honest clients stay connected, and secrets can be opened, but not by a few."""
    draw = np.random.default_rng(0)
    clients, colluding, dropping = 100, 10, 30
    degree, threshold = degree_and_threshold(clients, colluding, dropping)
    for _ in range(100):
        graph = circle(range(clients), degree, draw.bytes)
        order = draw.permutation(clients)
        bad, gone = set(order[:colluding].tolist()), set(order[colluding : colluding + dropping].tolist())
        assert max(len(bad.intersection(others)) for others in graph.values()) < threshold
        assert min(len(set(others) - gone) for others in graph.values()) >= threshold
        left = [i for i in range(clients) if i not in bad | gone]
        edges = csr_array([[j in graph[i] for j in left] for i in left])
        assert connected_components(edges, return_labels=False) == 1
