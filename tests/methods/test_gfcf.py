import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.methods.gfcf import GFCF, graph_filter, leading
from toys import few_clients


def history(split, known=False):
    out = np.zeros((split.n_users, split.n_items))
    for user in range(split.n_users):
        out[user, split.train[user]] = 1
        if known:
            out[user, split.valid[user]] = 1
    return out


def written(X, rank, ideal):
    """GF-CF's filter from the interactions themselves, through a singular value decomposition."""
    users, items = (np.where(n > 0, 1 / np.sqrt(np.maximum(n, 1)), 0) for n in (X.sum(1), X.sum(0)))
    R = X * users[:, None] * items
    V = np.linalg.svd(R, full_matrices=False)[2][:rank]
    return R.T @ R + ideal * items[:, None] * (V.T @ V) * np.sqrt(X.sum(0))


@pytest.mark.parametrize("rank", [1, 5, 12])
def test_the_filter_is_that_of_the_interactions(rank):
    X = (np.random.default_rng(0).random((40, 15)) < 0.3).astype(float)
    X[:, 4] = 0  # nobody touched it
    gram = torch.from_numpy((X / np.maximum(X.sum(1, keepdims=True), 1)).T @ X)
    found = graph_filter(gram, leading(gram, rank), 0.3).numpy()
    np.testing.assert_allclose(found, written(X, rank, 0.3), atol=1e-8)
    assert not found[4].any()
    assert not found[:, 4].any()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_every_round_tries_the_next_rank_on_one_upload(groups, known):
    federation = few_clients(40, groups=groups)
    method = GFCF(rank=(3, 9), history="known" if known else "train")
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    assert method.length() == 2
    for round, rank in ((1, 3), (2, 9)):
        ids = torch.arange(federation.n_clients if method.asks(round) else 0)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
        expected = written(history(federation.split), rank, 0.3)
        np.testing.assert_allclose(server["filter"].numpy(), expected, atol=1e-4)
    inputs = history(federation.split, known)
    for users, scores in fleet.scores(server, "test"):
        np.testing.assert_allclose(scores.numpy(), (inputs @ expected)[users.numpy()], atol=1e-3)
