from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Sparse
from tacit.data.cohort import Federation
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from tacit.errors import UserError
from tacit.methods import large_sums, tally, tally_choice
from tacit.methods.history_sums import steps
from tacit.methods.references import EASE
from tacit.methods.tally import Tally, blended
from tacit.methods.tally_small import shares_of
from tacit.runs.run import run
from toys import few_users, fitted, random_data

SMALL = {"windows": (1, 5), "decays": (1.0, 0.8), "ridge": (1.0,), "blend": (0.3,)}


def solution(sequences, method, n_items, ridge):
    """(A, B, E) on pooled data in double precision; λ = ridge × A's mean diagonal, to a power of two."""
    wide = len(method.windows) * n_items
    A, C, G = np.zeros((wide, wide)), np.zeros((wide, n_items)), np.zeros((n_items, n_items))
    for items in sequences:
        H = np.zeros((max(len(items) - 1, 0), wide))
        told = steps(items, method.windows, method.decays, n_items)
        H[told.owner, told.column] = told.value
        A += H.T @ H
        C += H.T @ np.eye(n_items)[items[1:]]
        x = np.zeros(n_items)
        x[items] = 1
        G += np.outer(x, x)
    scale = ridge * 2.0 ** np.round(np.log2(A.diagonal().mean()))
    P = np.linalg.inv(G + method.ease_ridge[0] * np.eye(n_items))
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
    share = 0.3 + 0.08 * np.log2(21 / 64)
    assert len(items) == 21
    expected = (1 - share) * ridge + share * ease
    np.testing.assert_allclose(fleet.scores_of(server, user, "valid").numpy(), expected, atol=1e-4)


def test_item_weights_count_the_more_the_longer_a_history(divided):
    lengths = np.array([1, 16, 64, 128, 1024])
    np.testing.assert_allclose(shares_of(0.3, 0.08, lengths), [0.14, 0.14, 0.3, 0.38, 0.62])
    np.testing.assert_allclose(shares_of(0.1, 0.3, lengths), [0, 0, 0.1, 0.4, 1])
    assert [shares_of(w, 0.08, lengths).tolist() for w in (0.0, 1.0)] == [[0] * 5, [1] * 5]
    few = torch.ones(2, 64)
    few[1, 0] = 0
    seen = few.to_sparse_csr()  # 64 items and 63
    for state, expected in (([0.3, 0.08], [0.3, 0.3 + 0.08 * np.log2(63 / 64)]), ([0.3], [0.3, 0.3])):
        found = blended({"blend": torch.tensor(state), "seen": seen})
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6, err_msg="a state without a tilt has one w")


def test_the_known_validation_item_is_input_at_test_time_only(divided):
    federation = Federation.of_users(divided)
    plain, fleet = fitted(Tally(**SMALL), federation)
    knowing = SimulatedFleet(Tally(**SMALL, history="known"), federation)
    assert torch.equal(fleet.scores_of(plain, 3, "valid"), knowing.scores_of(plain, 3, "valid"))
    assert not torch.equal(fleet.scores_of(plain, 3, "test"), knowing.scores_of(plain, 3, "test"))


def test_one_upload_serves_every_candidate(divided):
    method = Tally(windows=(3,), decays=(0.9,), ridge=(0.5, 2.0), blend=(0.0, 0.5, 1.0), ease_ridge=(200.0, 50.0))
    assert method.candidates() == [
        *((ridge, w, 200.0, 0.0) for ridge in (0.5, 2.0) for w in (0.0, 0.5)),
        *((0.5, 1.0, *alone) for alone in ((200.0, 0.0), (50.0, 0.0), (50.0, 0.1), (50.0, 0.3))),
    ]
    assert method.length() == 8
    federation = Federation.of_users(divided)
    server, _ = fitted(method, federation, rounds=3)
    _, B, _ = solution([divided.train[u] for u in range(60)], method, divided.n_items, 2.0)
    np.testing.assert_allclose(server["B"].numpy(), B, atol=1e-5)
    torch.testing.assert_close(server["blend"], torch.tensor([0.0, 0.08]))


def test_item_weights_alone_are_ease(divided):
    federation = Federation.of_users(divided)
    server, _ = fitted(Tally(blend=(1.0,), ease_ridge=(30.0,)), federation)
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


@pytest.mark.parametrize(("blend", "round", "rows"), [((0.0, 0.3), 1, 2), ((0.0, 0.3), 2, 3), ((0.3, 1.0), 2, 1)])
def test_every_client_downloads_the_same_whole_solution(divided, blend, round, rows):
    method = Tally(**SMALL | {"blend": blend})
    server, _ = fitted(method, Federation.of_users(divided), rounds=round)
    size = rows * divided.n_items**2 * 4 + 8
    assert [method.downlink(server, torch.tensor([client])).nbytes() for client in (4, 5)] == [size, size]


def revised(method, divided, changes):
    """The state after changes, and the sequences that retraining would see."""
    server, _ = fitted(method, Federation.of_users(divided))
    sequences = [divided.train[u] for u in range(divided.n_users)]
    for user, new in changes:
        server = method.revise(server, *((x,) if len(x) else () for x in (sequences[user], new)))
        sequences[user] = new
    return server, sequences


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("blend", [0.0, 0.3, 1.0])
def test_forgetting_and_updating_equal_retraining(divided, blend, large, monkeypatch):
    if large:
        monkeypatch.setattr(large_sums, "DENSE", 0)
        monkeypatch.setattr(large_sums, "FULL", 1.0)
    method = Tally(**SMALL | {"blend": (blend,)})
    nothing = np.zeros(0, dtype=np.int64)
    grown = np.concatenate([divided.train[9], divided.valid[9], divided.test[9]])
    changes = [(5, nothing), (9, grown), (30, divided.train[30][::-1].copy()), (9, nothing), (5, divided.train[5])]
    server, sequences = revised(method, divided, changes)
    A, B, E = solution(sequences, method, divided.n_items, 1.0)
    if blend < 1:
        assert server["A"].is_sparse == large
        np.testing.assert_allclose(server["A"].to_dense().numpy(), np.tril(A), atol=1e-3)
        np.testing.assert_allclose(server["B"].numpy(), B, atol=1e-5)
    if blend > 0:
        np.testing.assert_allclose(server["E"].numpy(), E, atol=1e-5)


@pytest.mark.parametrize("blend", [0.0, 0.3])
def test_a_history_counts_in_both_orders_of_what_came_at_once(blend):
    """Half of each, in the sums and the solution, when ranking, and when a user goes and comes."""
    divided = split(random_data(20, items=40, ties=True), "strict")
    method = Tally(**SMALL | {"blend": (blend,), "tilt": 0})
    server, fleet = fitted(method, Federation.of_users(divided))
    orders = [divided.orders(u) for u in range(divided.n_users)]
    assert {len(one) for one in orders} == {1, 2}
    twice = [one[k % len(one)] for one in orders for k in (0, 1)]
    A, _, _ = solution(twice, method, 40, 1.0)
    np.testing.assert_allclose(server["A"].numpy(), np.tril(A) / 2, atol=1e-3)
    user = next(u for u, one in enumerate(orders) if len(one) == 2)
    h = np.zeros(80)
    for items in orders[user]:
        h[items[-1]] += 0.5
        for age, item in enumerate(items[::-1][:5]):
            h[40 + item] += 0.5 * 0.8**age
    ridge = h @ server["B"].numpy()
    ease = server["E"].numpy()[divided.train[user]].sum(0) if blend else np.arange(2.0)
    expected = sum(w * (x - x.mean()) / x.std(ddof=1) for w, x in ((1 - blend, ridge), (blend, ease)) if w)
    np.testing.assert_allclose(fleet.scores_of(server, user, "valid").numpy(), expected, atol=1e-4)

    before = {name: server[name].clone() for name in ("A", "B")}
    gone = method.revise(server, orders[user], ())
    rest = np.delete(np.arange(divided.n_users), user)
    fresh, _ = fitted(method, Federation(divided, Ragged(np.arange(len(rest) + 1), rest)))
    torch.testing.assert_close(gone["A"], fresh["A"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(gone["B"], fresh["B"], atol=1e-4, rtol=1e-3)
    back = method.revise(method.revise(gone, (), orders[user][:1]), orders[user][:1], orders[user])
    for name, value in before.items():
        torch.testing.assert_close(back[name], value, atol=1e-4, rtol=1e-3)


def test_sums_of_one_order_are_not_revised(divided):
    server, _ = fitted(Tally(**SMALL), Federation.of_users(divided))
    del server["orders"]  # as earlier versions saved them
    with pytest.raises(UserError, match="train again"):
        Tally(**SMALL).revise(server, divided.orders(5), ())


def test_more_item_weights_alone_are_tried_only_where_they_may_win(tmp_path):
    method = Tally(ridge=(1.0,), blend=(0.3, 1.0), ease_ridge=(200.0, 50.0), denoise=(0.0,))
    assert not method.settled([0.1])
    assert method.settled([0.1, 0.07])
    assert not method.settled([0.1, 0.09])
    assert not replace(method, blend=(1.0,)).settled([0.1, 0.01])
    counted = replace(method, inputs=5)
    assert not counted.settled([0.0, 0.1])
    assert counted.settled([0.0, 0.1, 0.07])
    assert run("tally", data="demo", settings={"ease_ridge": (200.0, 50.0)}, out=tmp_path / "run").rounds == 3 * 3 + 1


def restricted(sequences, method, n_items, ridge, inputs):
    """(B, E) in double precision when only `inputs` are in histories: plain least squares, column by column for E."""
    wide = len(method.windows) * n_items
    rows, followed = [], []
    for items in sequences:
        told = steps(items, method.windows, method.decays, n_items)
        H = np.zeros((max(len(items) - 1, 0), wide))
        H[told.owner, told.column] = told.value
        rows.append(H)
        followed.append(np.eye(n_items)[items[1:]])
    H = np.concatenate(rows)[:, np.concatenate([k * n_items + inputs for k in range(len(method.windows))])]
    A = H.T @ H
    scale = ridge * 2.0 ** np.round(np.log2(A.diagonal().mean()))
    B = np.linalg.solve(A + scale * np.eye(len(A)), H.T @ np.concatenate(followed))
    X = np.array([np.isin(np.arange(n_items), items) for items in sequences]).astype(float)
    E = np.zeros((len(inputs), n_items))
    for j in range(n_items):
        rest = np.flatnonzero(inputs != j)  # an item does not explain itself
        x = X[:, inputs[rest]]
        own = method.ease_ridge[0] + method.denoise[0] * x.sum(0)
        E[rest, j] = np.linalg.solve(x.T @ x + np.diag(own), x.T @ X[:, j])
    return B, E


@pytest.mark.parametrize("clients", [7, 60])
def test_histories_of_popular_items_alone_are_least_squares_on_these(divided, clients):
    federation = Federation.of_users(divided) if clients == 60 else Federation.of_groups(divided, clients)
    method = Tally(**SMALL, inputs=12)
    assert [method.asks(r) for r in (1, 2, 3)] == [True, True, False]
    assert method.length() == 2
    server, _ = fitted(method, federation, rounds=2)
    often = np.bincount(divided.train.values, minlength=divided.n_items)
    inputs = server["inputs"].numpy()
    assert len(inputs) == 12
    assert often[inputs].min() >= np.delete(often, inputs).max()
    assert "count" not in server
    B, E = restricted([divided.train[u] for u in range(60)], method, divided.n_items, 1.0, inputs)
    np.testing.assert_allclose(server["B"].numpy(), B, atol=1e-5)
    np.testing.assert_allclose(server["E"].numpy(), E, atol=1e-5)


def test_as_many_inputs_as_items_are_the_whole(divided):
    federation = Federation.of_users(divided)
    whole, fleet = fitted(Tally(**SMALL), federation)
    cut, narrow = fitted(Tally(**SMALL, inputs=divided.n_items), federation, rounds=2)
    for name in ("A", "C", "B", "E"):
        torch.testing.assert_close(cut[name], whole[name], atol=1e-5, rtol=1e-4)
    for user in (0, 31):
        torch.testing.assert_close(
            narrow.scores_of(cut, user, "test"), fleet.scores_of(whole, user, "test"), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("denoise", [0.0, 0.3])
def test_forgetting_and_updating_equal_retraining_on_the_same_inputs(divided, denoise):
    method = Tally(**SMALL, inputs=12, denoise=(denoise,))
    server, _ = fitted(method, Federation.of_users(divided), rounds=2)
    sequences = [divided.train[u] for u in range(60)]
    grown = np.concatenate([divided.train[9], divided.valid[9], divided.test[9]])
    strangers = np.setdiff1d(np.arange(divided.n_items), server["inputs"].numpy())[:5]  # no history, yet followers
    for user, new in [
        (5, np.zeros(0, dtype=np.int64)),
        (9, grown),
        (30, strangers),
        (5, divided.train[5][::-1].copy()),
    ]:
        server = method.revise(server, *((x,) if len(x) else () for x in (sequences[user], new)))
        sequences[user] = new
    B, E = restricted(sequences, method, divided.n_items, 1.0, server["inputs"].numpy())
    np.testing.assert_allclose(server["B"].numpy(), B, atol=1e-5)
    np.testing.assert_allclose(server["E"].numpy(), E, atol=1e-5)


def test_a_client_scores_with_the_rows_of_its_items_that_are_inputs(divided):
    method = Tally(**SMALL, inputs=100, tilt=0)
    federation = Federation.of_users(divided)
    server, fleet = fitted(method, federation, rounds=2)
    items, inputs = divided.train[11], server["inputs"].tolist()
    h, x = np.zeros(200), np.zeros(100)
    for age, item in enumerate(items[::-1]):
        if item in inputs:
            place = inputs.index(item)
            x[place] = 1.0
            h[place] = float(age == 0)
            h[100 + place] = 0.8**age if age < 5 else 0.0
    ridge, ease = ((s - s.mean()) / s.std(ddof=1) for s in (h @ server["B"].numpy(), x @ server["E"].numpy()))
    np.testing.assert_allclose(fleet.scores_of(server, 11, "valid").numpy(), 0.7 * ridge + 0.3 * ease, atol=1e-4)
    size = 4 * (3 * 100 * divided.n_items + 100 + 2)
    assert method.downlink(server, torch.tensor([11])).nbytes() == size


def test_counting_sends_a_cell_an_item_and_ranks_nothing_yet(divided):
    method = Tally(**SMALL, inputs=12)
    federation = Federation.of_users(divided)
    traffic, fleet = Traffic(), SimulatedFleet(method, federation)
    server = method.aggregate(
        method.init_server(federation),
        fleet.train(method.init_server(federation), torch.arange(60), 1, traffic),
        Moment(1, 0),
    )
    assert traffic.bytes_up == 8 * len(divided.train.values)
    assert not fleet.scores_of(server, 3, "valid").any()


def test_settings_fit_the_data(divided, monkeypatch):
    """Everything where it fits, as many inputs as fit elsewhere; without times nothing that needs an order."""
    M = divided.n_items
    assert Tally().fitted(M, ordered=True) == (Tally(denoise=(0.0,)), "")
    blind, said = Tally().fitted(M, ordered=False)
    assert (blind.blend, said) == ((1.0,), "these data have no order: item weights alone")
    assert set(blind._sums.cells([(np.arange(3),)], np.zeros(1, dtype=np.int64), M, many=False)) == {"G"}
    monkeypatch.setattr(tally_choice, "CELLS", 2 * M * M)
    narrow, said = Tally().fitted(M, ordered=True)
    assert 0 < narrow.inputs < M
    assert f"the {narrow.inputs} most popular" in said
    assert narrow._sums.whole(narrow.inputs, M) <= tally_choice.CELLS < narrow._sums.whole(narrow.inputs + 1, M)
    assert Tally(inputs=7).fitted(M, ordered=True)[0].inputs == 7


def test_too_many_inputs_name_the_way_out(divided, monkeypatch):
    monkeypatch.setattr(tally, "CELLS", divided.n_items**2 // 4)
    federation = Federation.of_users(divided)
    with pytest.raises(UserError, match="more than tally holds in memory; try --set inputs="):
        Tally().init_server(federation)
    Tally(inputs=2).init_server(federation)
    for wrong in ({"clip": 1.0}, {"weights": "gfcf"}):
        with pytest.raises(UserError, match="is invalid with"):
            Tally(inputs=2, **wrong).init_server(federation)


def test_the_graph_filter_is_made_anew_for_a_revision(divided):
    method = Tally(blend=(1.0,), weights="gfcf", gfcf_rank=8)
    server, _ = revised(method, divided, [(5, np.zeros(0, dtype=np.int64))])
    rest = Federation(divided, Ragged(np.arange(60), np.delete(np.arange(60), 5)))
    torch.testing.assert_close(server["E"], fitted(method, rest)[0]["E"], atol=1e-4, rtol=1e-4)


def test_revisions_that_outgrow_the_factor_are_folded_into_it(divided):
    method = Tally(**SMALL)
    server, _ = revised(method, divided, [(user, np.zeros(0, dtype=np.int64)) for user in range(40)])
    steps_gone = sum(len(divided.train[u]) - 1 for u in range(40))
    assert len(server["sign"]) == server["W"].shape[1] < steps_gone
    rest = fitted(method, Federation(divided, Ragged(np.arange(21), np.arange(40, 60))))[0]
    A = rest["A"].double() + rest["A"].double().tril(-1).T + float(server["lambda"]) * torch.eye(len(rest["A"]))
    torch.testing.assert_close(server["B"].double(), torch.linalg.solve(A, rest["C"].double()), atol=1e-5, rtol=1e-4)


def test_a_users_contribution_is_clipped_as_a_whole(divided):
    free, bound = Tally(**SMALL), Tally(**SMALL, clip=2.0)
    sequences = [(divided.train[u],) for u in range(20)]
    whole = free._sums.cells(sequences, np.arange(20), divided.n_items, many=False)
    cut = bound._sums.cells(sequences, np.arange(20), divided.n_items, many=False)
    size = sum(_squares(part) for part in cut.values()) ** 0.5
    assert (size <= 2.0 + 1e-5).all()
    before = sum(_squares(part) for part in whole.values()) ** 0.5
    factor = np.minimum(1, 2.0 / before)
    np.testing.assert_allclose(cut["C"].value.numpy(), whole["C"].value.numpy() * factor[whole["C"].client], rtol=1e-5)


def test_a_contribution_below_the_bound_is_not_touched(divided):
    sequences = [(divided.train[u],) for u in range(20)]
    whole, bound = (
        Tally(**SMALL, clip=clip)._sums.cells(sequences, np.arange(20), divided.n_items, many=False)
        for clip in (0.0, 1e6)
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
    assert Tally(**SMALL).spent(1) is None
    assert Tally(**settings).spent(9) == Tally(**settings).spent(1) > 0


def test_the_planted_sequels_are_found(tmp_path):
    tally = run("tally", data="demo", settings={"ease_ridge": 50.0}, out=tmp_path / "tally")
    ease = run("ease", data="demo", out=tmp_path / "ease")
    assert tally.test["NDCG@10"] > ease.test["NDCG@10"] + 0.02
    assert tally.test["HR@5"] > ease.test["HR@5"]
    assert tally.rounds == 3 * 3 + 1
    assert tally.bytes_down == tally.clients * tally.bytes_to_rank > 0


def test_what_validation_chose_is_said():
    method = Tally(ridge=(1.0,), blend=(0.0, 0.5, 1.0), ease_ridge=(200.0, 50.0), denoise=(0.0, 0.3), inputs=3)
    assert [method.choice(round) for round in range(2, 7)] == [
        "the next item alone, by ridge with λ = 1",
        "the next item by ridge with λ = 1, blended 0.5 with item weights, λ = 200",
        "item weights alone, with λ = 200",
        "item weights alone, with λ = 50",
        "item weights alone, with λ = 50 and q = 0.3",
    ]
    assert method.chosen(6).candidates() == [(1.0, 1.0, 50.0, 0.3)]


def test_leaving_out_items_of_a_history_adds_to_its_own_count(divided):
    """EASE with dropout, by its expectation: λ + q · diag(G), forgotten and retrained alike."""
    method = Tally(blend=(1.0,), ease_ridge=(20.0,), denoise=(0.5,))
    server, sequences = revised(
        method, divided, [(5, np.zeros(0, dtype=np.int64)), (9, divided.test[9]), (5, divided.train[5][1:])]
    )
    X = np.array([np.isin(np.arange(divided.n_items), items) for items in sequences]).astype(float)
    G = X.T @ X
    P = np.linalg.inv(G + np.diag(20 + 0.5 * G.diagonal()))
    E = -P / P.diagonal()
    np.fill_diagonal(E, 0)
    np.testing.assert_allclose(server["E"].numpy(), E, atol=1e-5)
