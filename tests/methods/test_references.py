import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.methods.fedmf import MF
from tacit.methods.references import EASE, Oracle, Popularity, ease_of
from tacit.runs.run import run
from toys import few_clients, random_data


def trained(method, federation, rounds=1):
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    for round in range(1, rounds + 1):
        ids = torch.arange(federation.n_clients if method.asks(round) else 0)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return fleet, server


def scores(fleet, server, phase="valid"):
    users, values = (torch.cat(parts) for parts in zip(*fleet.scores(server, phase), strict=True))
    return values[users.argsort()]


def history(made, known=False):
    """(users, items) matrix of ones, in plain NumPy."""
    out = np.zeros((made.n_users, made.n_items))
    for user in range(made.n_users):
        out[user, made.train[user]] = 1
        if known:
            out[user, made.valid[user]] = 1
    return out


@pytest.mark.parametrize("groups", [0, 4, 1])
def test_popularity_counts_training_interactions_and_no_others(groups):
    federation = few_clients(20, groups=groups)
    fleet, server = trained(Popularity(), federation, rounds=2)
    expected = torch.from_numpy(history(federation.split).sum(0)).float()
    assert torch.equal(server["count"], expected)
    assert torch.equal(scores(fleet, server), expected.expand(20, -1))


@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_the_oracle_counts_draws(protocol):
    federation = few_clients(12, protocol=protocol)
    fleet, server = trained(Oracle(), federation, rounds=3)
    drawn = np.zeros((12, federation.n_items))
    for round in (1, 2, 3):
        data = federation.cohort(torch.arange(12), round, 4)
        for c in range(12):
            for place in range(int(data.samples[c])):
                if not data.label[c, place]:
                    drawn[c, data.rows[c, data.row[c, place]]] += 1
    assert torch.equal(scores(fleet, server), torch.from_numpy(-drawn).float())


def constrained_least_squares(x, ridge):
    """Column by column: the item itself is left out, the rest solved as an augmented least-squares problem."""
    items = x.shape[1]
    weights = np.zeros((items, items))
    for j in range(items):
        rest = [i for i in range(items) if i != j]
        a = np.vstack([x[:, rest], np.sqrt(ridge) * np.eye(items - 1)])
        b = np.concatenate([x[:, j], np.zeros(items - 1)])
        weights[rest, j] = np.linalg.lstsq(a, b, rcond=None)[0]
    return weights


@pytest.mark.parametrize("ridge", [0.5, 10.0, 500.0])
def test_ease_is_the_constrained_least_squares_solution(ridge):
    x = (np.random.default_rng(0).random((40, 12)) < 0.3).astype(float)
    made = ease_of(torch.from_numpy(x.T @ x), ridge)
    np.testing.assert_allclose(made.numpy(), constrained_least_squares(x, ridge), atol=1e-9)
    assert not made.diagonal().any()


@pytest.mark.parametrize("groups", [1, 3])
def test_ease_scores_a_users_history(groups):
    federation = Federation.of_groups(split(random_data(items=30), "strict"), groups)
    fleet, server = trained(EASE(ridge=(3.0,)), federation)
    x = history(federation.split)
    expected = x @ constrained_least_squares(x, 3.0)
    np.testing.assert_allclose(scores(fleet, server).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(scores(fleet, server, "test").numpy(), expected, atol=1e-5)


def test_ease_with_known_history_takes_the_validation_item_as_input_at_test_and_never_trains_on_it():
    federation = Federation.of_groups(split(random_data(items=30), "strict"), 1)
    fleet, server = trained(EASE(ridge=(3.0,), history="known"), federation)
    x = history(federation.split)
    weights = constrained_least_squares(x, 3.0)
    np.testing.assert_allclose(server["weights"].numpy(), weights, atol=1e-6)
    np.testing.assert_allclose(scores(fleet, server, "valid").numpy(), x @ weights, atol=1e-5)
    known = history(federation.split, known=True)
    np.testing.assert_allclose(scores(fleet, server, "test").numpy(), known @ weights, atol=1e-5)


def test_ease_tries_one_ridge_a_round():
    federation = Federation.of_groups(split(random_data(items=30), "strict"), 1)
    x = history(federation.split)
    assert EASE(ridge=(3.0, 50.0)).length() == 2
    assert [EASE().asks(round) for round in (1, 2, 5)] == [True, False, False]
    for rounds, ridge in ((1, 3.0), (2, 50.0)):
        _, server = trained(EASE(ridge=(3.0, 50.0)), federation, rounds)
        np.testing.assert_allclose(server["weights"].numpy(), constrained_least_squares(x, ridge), atol=1e-6)


def test_pooled_references_have_a_single_client(tmp_path):
    for method in ("mf", "ease"):
        summary = run(method, data="demo", rounds=1, threads=1, out=tmp_path / method)
        assert summary.clients == 1
    assert MF.pooled
    assert EASE.pooled


# Real data: the levels of PROTOCOLS.md.

QUIET = {"data": "ml-100k", "threads": 1, "checkpoint_every": 1000, "evaluate_every": 1000}


def test_popularity_on_movielens(raw_data, tmp_path):
    summary = run("popularity", out=tmp_path / "run", **QUIET)
    assert 0.38 <= summary.test_sampled99["HR@10"] <= 0.44
    assert 0.07 <= summary.test["HR@10"] <= 0.09
    assert summary.users_evaluated == 943


def test_ease_on_movielens(raw_data, tmp_path):
    summary = run("ease", settings={"ridge": [500.0]}, out=tmp_path / "run", **QUIET)
    assert summary.test_sampled99["HR@10"] >= 0.62
    assert summary.test["HR@10"] >= 0.130
    assert summary.test["NDCG@10"] >= 0.070


@pytest.mark.slow
def test_the_oracle_finds_everything_under_the_papers_protocol_and_nothing_under_the_strict_one(raw_data, tmp_path):
    leaky = run("oracle", protocol="paper", rounds=100, out=tmp_path / "paper", **QUIET)
    assert leaky.test["HR@10"] >= 0.99
    honest = run("oracle", protocol="strict", rounds=100, out=tmp_path / "strict", **QUIET)
    assert honest.test_sampled99["HR@10"] <= 0.12


def test_the_oracle_tells_the_protocols_apart_on_the_demo(tmp_path):
    """The same in a second: 60 rounds on 210 items."""
    options = QUIET | {"data": "demo", "rounds": 60}
    hits = {}
    for protocol in ("paper", "strict", "symmetric"):
        summary = run("oracle", protocol=protocol, out=tmp_path / protocol, **options)
        hits[protocol] = (summary.test_sampled99 or summary.test)["HR@10"]
    assert hits["paper"] >= 0.99
    assert hits["strict"] <= 0.15
    assert hits["symmetric"] <= 0.15
