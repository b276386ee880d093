import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Sparse
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.methods.history_sums import steps
from tacit.methods.references import EASE
from tacit.methods.tally import Tally
from tacit.runs.run import run
from toys import few_users

SMALL = {"windows": (1, 5), "decays": (1.0, 0.8), "ridge": (1.0,), "blend": (0.3,)}


def fitted(method, federation, rounds=1):
    fleet = SimulatedFleet(method, federation, chunk=16)
    server = method.init_server(federation)
    for round in range(1, rounds + 1):
        ids = torch.arange(federation.n_clients if method.asks(round) else 0)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return server, fleet


def solution(sequences, method, n_items, ridge):
    """(A, B, E) on pooled data in double precision; λ = ridge × A's mean diagonal, to a power of two."""
    wide = len(method.windows) * n_items
    A, C, G = np.zeros((wide, wide)), np.zeros((wide, n_items)), np.zeros((n_items, n_items))
    for items in sequences:
        H = np.zeros((max(len(items) - 1, 0), wide))
        step, column, weight = steps(items, method.windows, method.decays, n_items)
        H[step, column] = weight
        A += H.T @ H
        C += H.T @ np.eye(n_items)[items[1:]]
        x = np.zeros(n_items)
        x[items] = 1
        G += np.outer(x, x)
    scale = ridge * 2.0 ** np.round(np.log2(A.diagonal().mean()))
    P = np.linalg.inv(G + method.ease_ridge * np.eye(n_items))
    E = -P / P.diagonal()
    np.fill_diagonal(E, 0)
    return A, np.linalg.solve(A + scale * np.eye(wide), C), E


@pytest.fixture(scope="module")
def divided():
    return split(few_users(60), "strict")


@pytest.mark.parametrize("clients", [1, 7, 60])
def test_the_solution_is_that_of_pooled_data(divided, clients):
    federation = Federation.of_users(divided) if clients == 60 else Federation.of_groups(divided, clients)
    method = Tally(**SMALL)
    server, _ = fitted(method, federation)
    A, B, E = solution([divided.train[u] for u in range(60)], method, divided.n_items, 1.0)
    np.testing.assert_allclose(server["A"].numpy(), np.tril(A), atol=1e-3)
    np.testing.assert_allclose(server["B"].numpy(), B, atol=1e-5)
    np.testing.assert_allclose(server["E"].numpy(), E, atol=1e-5)


def test_the_score_is_the_blend_of_two_standardised_parts(divided):
    method = Tally(**SMALL)
    federation = Federation.of_users(divided)
    server, fleet = fitted(method, federation)
    user = 11
    items = divided.train[user]
    h = np.zeros(2 * divided.n_items)
    h[items[-1]] = 1.0
    for age, item in enumerate(items[::-1][:5]):
        h[divided.n_items + item] = 0.8**age
    parts = [h @ server["B"].numpy(), server["E"].numpy()[items].sum(0)]
    ridge, ease = ((x - x.mean()) / x.std(ddof=1) for x in parts)
    expected = 0.7 * ridge + 0.3 * ease
    np.testing.assert_allclose(fleet.scores_of(server, user, "valid").numpy(), expected, atol=1e-4)


def test_the_known_validation_item_is_input_at_test_time_only(divided):
    federation = Federation.of_users(divided)
    plain, fleet = fitted(Tally(**SMALL), federation)
    knowing = SimulatedFleet(Tally(**SMALL, history="known"), federation)
    assert torch.equal(fleet.scores_of(plain, 3, "valid"), knowing.scores_of(plain, 3, "valid"))
    assert not torch.equal(fleet.scores_of(plain, 3, "test"), knowing.scores_of(plain, 3, "test"))


def test_one_upload_serves_every_candidate(divided):
    method = Tally(windows=(3,), decays=(0.9,), ridge=(0.5, 2.0), blend=(0.0, 0.5, 1.0))
    assert method.candidates() == [(0.5, 0.0), (0.5, 0.5), (2.0, 0.0), (2.0, 0.5), (0.5, 1.0)]
    assert method.length() == 5
    federation = Federation.of_users(divided)
    server, _ = fitted(method, federation, rounds=3)
    _, B, _ = solution([divided.train[u] for u in range(60)], method, divided.n_items, 2.0)
    np.testing.assert_allclose(server["B"].numpy(), B, atol=1e-5)
    assert float(server["blend"]) == 0.0


def test_item_weights_alone_are_ease(divided):
    federation = Federation.of_users(divided)
    server, _ = fitted(Tally(blend=(1.0,), ease_ridge=30.0), federation)
    pooled, _ = fitted(EASE(ridge=(30.0,)), Federation.of_groups(divided, 1))
    assert "A" not in server
    torch.testing.assert_close(server["E"], pooled["weights"], atol=1e-5, rtol=1e-4)


def test_the_graph_filter_is_gfcf_on_pooled_data(divided):
    method = Tally(blend=(1.0,), weights="gfcf", gfcf_rank=8, gfcf_ideal=0.3)
    server, _ = fitted(method, Federation.of_users(divided))
    X = np.zeros((60, divided.n_items))
    X[divided.train.rows, divided.train.values] = 1
    degree = np.maximum(X.sum(0), 1e-12)
    R = X / np.sqrt(X.sum(1, keepdims=True)) / np.sqrt(degree)
    V = np.linalg.svd(R, full_matrices=False)[2][:8]
    expected = R.T @ R + 0.3 * (V.T / np.sqrt(degree)[:, None]) @ (V * np.sqrt(degree))
    seen = X.sum(0) > 0  # an item nobody touched has no direction
    np.testing.assert_allclose(server["E"].numpy()[np.ix_(seen, seen)], expected[np.ix_(seen, seen)], atol=1e-4)


def test_a_client_downloads_the_rows_of_its_own_items(divided):
    method = Tally(**SMALL)
    server, _ = fitted(method, Federation.of_users(divided))
    ids = torch.tensor([4])
    down = method.downlink(server, ids)
    n = len(divided.train[4])
    rows = min(n, 1) + min(n, 5) + n
    assert method.serving_bytes(down, Federation.of_users(divided).people(ids)) == rows * divided.n_items * 4


def revised(method, divided, changes):
    """The state after changes, and the sequences that retraining would see."""
    server, _ = fitted(method, Federation.of_users(divided))
    sequences = [divided.train[u] for u in range(divided.n_users)]
    for user, new in changes:
        server = method.revise(server, sequences[user], new)
        sequences[user] = new
    return server, sequences


@pytest.mark.parametrize("blend", [0.0, 0.3, 1.0])
def test_forgetting_and_updating_equal_retraining(divided, blend):
    method = Tally(**SMALL | {"blend": (blend,)})
    nothing = np.zeros(0, dtype=np.int64)
    grown = np.concatenate([divided.train[9], divided.valid[9], divided.test[9]])
    changes = [(5, nothing), (9, grown), (30, divided.train[30][::-1].copy()), (9, nothing), (5, divided.train[5])]
    server, sequences = revised(method, divided, changes)
    A, B, E = solution(sequences, method, divided.n_items, 1.0)
    if blend < 1:
        np.testing.assert_allclose(server["A"].numpy(), np.tril(A), atol=1e-3)
        np.testing.assert_allclose(server["B"].numpy(), B, atol=1e-5)
    if blend > 0:
        np.testing.assert_allclose(server["E"].numpy(), E, atol=1e-5)


def test_a_users_contribution_is_clipped_as_a_whole(divided):
    free, bound = Tally(**SMALL), Tally(**SMALL, clip=2.0)
    sequences = [divided.train[u] for u in range(20)]
    whole = free.cells(sequences, np.arange(20), divided.n_items, many=False)
    cut = bound.cells(sequences, np.arange(20), divided.n_items, many=False)
    size = sum(_squares(part) for part in cut.values()) ** 0.5
    assert (size <= 2.0 + 1e-5).all()
    before = sum(_squares(part) for part in whole.values()) ** 0.5
    factor = np.minimum(1, 2.0 / before)
    np.testing.assert_allclose(cut["C"].value.numpy(), whole["C"].value.numpy() * factor[whole["C"].client], rtol=1e-5)


def test_a_contribution_below_the_bound_is_not_touched(divided):
    sequences = [divided.train[u] for u in range(20)]
    whole, bound = (
        Tally(**SMALL, clip=clip).cells(sequences, np.arange(20), divided.n_items, many=False) for clip in (0.0, 1e6)
    )
    for name, part in whole.items():
        assert torch.equal(part.value, bound[name].value)


def _squares(part: Sparse):
    return np.bincount(part.client.numpy(), weights=part.value.numpy().astype(np.float64) ** 2, minlength=20)


def test_noise_has_the_stated_size_and_is_fresh_unless_seeded(divided):
    settings = SMALL | {"clip": 3.0, "dp_noise": 2.0}
    federation = Federation.of_users(divided)
    quiet = fitted(Tally(**SMALL, clip=3.0), federation)[0]
    noisy = fitted(Tally(**settings, dp_seed=5), federation)[0]
    drawn = (noisy["C"] - quiet["C"]).numpy()
    assert drawn.std() == pytest.approx(6.0, rel=0.02)
    assert not np.triu(noisy["A"].numpy(), 1).any()
    assert torch.equal(noisy["C"], fitted(Tally(**settings, dp_seed=5), federation)[0]["C"])
    assert not torch.equal(noisy["C"], fitted(Tally(**settings), federation)[0]["C"])
    assert Tally(**SMALL).epsilon(1) is None
    assert Tally(**settings).epsilon(9) == Tally(**settings).epsilon(1) > 0


def test_the_planted_sequels_are_found(tmp_path):
    tally = run("tally", data="demo", settings={"ease_ridge": 50.0}, out=tmp_path / "tally")
    ease = run("ease", data="demo", out=tmp_path / "ease")
    assert tally.test["NDCG@10"] > ease.test["NDCG@10"] + 0.02
    assert tally.test["HR@5"] > ease.test["HR@5"]
    assert tally.rounds == 6
    assert tally.bytes_down == 0
