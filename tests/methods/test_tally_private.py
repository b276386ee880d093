import math

import numpy as np
import pytest
import torch

from tacit.config import build, config
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.errors import UserError
from tacit.methods.tally import Tally
from tacit.methods.tally_private import PrivateTally, chosen
from tacit.privacy.gaussian import add_noise, gaussian_delta, gaussian_epsilon
from tacit.privacy.secure_fleet import SecureFleet
from tacit.privacy.shared_noise import SharedGaussian
from tacit.runs.assembly import mechanism_of, method_of
from tacit.runs.audit import audit
from tacit.runs.run import reopen, resume, run
from toys import few_users


@pytest.fixture(scope="module")
def divided():
    return split(few_users(60), "strict")


def released(method, federation, kind=SimulatedFleet, protection=None):
    fleet = kind(method, federation, chunk=16, threads=1, protection=protection)
    server = method.init_server(federation)
    for round in (1, 2):
        ids = torch.arange(federation.n_clients)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return server, fleet


def contribution(method, items, inputs, n_items):
    """All that a user sends in both rounds, side by side."""
    parts = [*method.counted([items], n_items).values(), *method.summed([items], inputs, n_items).values()]
    out = []
    for cells, shape in parts:
        dense = np.zeros(shape)
        np.add.at(dense, (cells.row, cells.column), cells.value)
        out.append(dense.ravel())
    return np.concatenate(out)


@pytest.mark.parametrize("shares", [(0.1, 0.3, 0.6), (0.2, 0.8, 0.0), (0.5, 0.0, 0.5)])
@pytest.mark.parametrize("length", [2, 3, 7, 40, 300])
def test_the_worst_user_has_exactly_the_sensitivity_that_the_accountant_assumes(shares, length):
    """ε is that of Gaussian noise of deviation `ratio` on a vector that a user moves by a norm of 1."""
    method = PrivateTally(shares=shares)
    items = np.random.default_rng(length).permutation(500)[:length]
    inputs = np.sort(np.concatenate([items[: max(2, length // 2)], np.setdiff1d(np.arange(500), items)[:20]]))
    assert np.linalg.norm(contribution(method, items, inputs, 500)) == pytest.approx(1.0, abs=1e-9)
    assert gaussian_delta(method.ratio, 8.0) <= 1e-5
    assert method.spent(2) == gaussian_epsilon(method.ratio, 1e-5) == pytest.approx(8.0, rel=2e-3)
    assert method.spent(2) <= 8.0
    assert method.spent(1) == pytest.approx(gaussian_epsilon(method.ratio / math.sqrt(shares[0]), 1e-5))


def test_nobody_has_more_and_nobody_else_is_moved(divided):
    """What a user adds to the sums is its own contribution, whoever else is there."""
    method, inputs = PrivateTally(), np.arange(0, divided.n_items, 2)
    sequences = [divided.train[u] for u in range(60)] + [np.array([4]), np.zeros(0, dtype=np.int64)]
    norms = [np.linalg.norm(contribution(method, s, inputs, divided.n_items)) for s in sequences]
    assert max(norms) == pytest.approx(1.0, abs=1e-9)
    assert norms[-1] == 0
    assert norms[-2] == pytest.approx(math.sqrt(0.1))

    def total(some):
        parts = method.summed([sequences[u] for u in some], inputs, divided.n_items)
        return {
            n: np.bincount(c.row * shape[1] + c.column, c.value, math.prod(shape)) for n, (c, shape) in parts.items()
        }

    one, rest, everyone = total([5]), total([u for u in range(60) if u != 5]), total(range(60))
    for name, value in everyone.items():
        np.testing.assert_allclose(value - rest[name], one[name], atol=1e-9)


def test_the_model_follows_from_noisy_sums(divided):
    """Written out by hand: counts, pairs and transitions, each with its noise, and what is made of them."""
    method = PrivateTally(dp_seed=3, inputs=30, epsilon=200.0)
    server, fleet = released(method, Federation.of_users(divided))
    M, sigma = divided.n_items, method.ratio
    count = torch.zeros(M, 1)
    for u in range(60):
        count[divided.train[u], 0] += math.sqrt(0.1) / math.sqrt(len(divided.train[u]))
    add_noise(count, sigma, "tally-private/count", 3)
    count = count[:, 0] / math.sqrt(0.1)
    torch.testing.assert_close(server["count"], count, atol=1e-4, rtol=1e-4)
    inputs = server["inputs"].numpy()
    assert set(inputs) == set(count.argsort(descending=True)[:30].tolist())
    S, T = torch.zeros(1, 30 * 29 // 2), torch.zeros(30, 30)
    for items in chosen([divided.train[u] for u in range(60)], inputs, M):
        pairs = [(max(i, j), min(i, j)) for a, i in enumerate(items) for j in items[:a]]
        steps = [(i, j, 0.8 ** (b - a - 1)) for b, j in enumerate(items) for a, i in enumerate(items[:b]) if b - a <= 5]
        for i, j in pairs:
            S[0, i * (i - 1) // 2 + j] += math.sqrt(0.3 / len(pairs))
        for i, j, value in steps:
            T[i, j] += value * math.sqrt(0.6 / sum(v * v for _, _, v in steps))
    add_noise(S, sigma, "tally-private/S", 3)
    add_noise(T, sigma, "tally-private/T", 3)
    weight = count[inputs].clamp(min=1.0)
    T /= math.sqrt(0.6)
    B = (T - torch.outer(weight, weight) * T.sum() / weight.sum() ** 2) / (weight + 3 * weight.mean())[:, None]
    torch.testing.assert_close(server["B"], B, atol=1e-4, rtol=1e-3)
    full = torch.zeros(30, 30)
    for i in range(30):
        for j in range(i):
            full[i, j] = full[j, i] = S[0, i * (i - 1) // 2 + j] / math.sqrt(0.3)
    V = torch.linalg.eigh(full / weight.sqrt() / weight.sqrt()[:, None])[1][:, -16:]
    torch.testing.assert_close(server["V"] @ server["V"].T, V @ V.T, atol=1e-3, rtol=1e-3)
    items = chosen([divided.train[7]], inputs, M)[0]
    h, x = torch.zeros(30), torch.zeros(30)
    for age, item in enumerate(items[::-1]):
        h[item], x[item] = 0.8**age if age < 10 else 0.0, 1.0
    parts = h @ B, (x / weight.sqrt()) @ V @ V.T * weight.sqrt()
    expected = sum(w * (s - s.mean()) / s.std() for w, s in zip((1.0, 0.6), parts, strict=True))
    scores = fleet.scores_of(server, 7, "valid")
    torch.testing.assert_close(scores[inputs], expected, atol=5e-3, rtol=1e-3)
    rest = np.setdiff1d(np.arange(M), inputs)
    assert scores[rest].max() < scores[inputs].min()
    assert torch.equal(scores[rest].argsort(), count[rest].argsort())


def test_more_budget_ranks_from_more_items(divided):
    federation = Federation.of_users(divided)
    kept = [len(released(PrivateTally(epsilon=e, dp_seed=0), federation)[0]["inputs"]) for e in (1, 400, 2000)]
    assert kept[0] == 10
    assert kept == sorted(set(kept))


def test_noise_is_fresh_unless_a_seed_is_given_which_protects_nobody(divided):
    federation = Federation.of_users(divided)
    one, other = (released(PrivateTally(), federation)[0]["count"] for _ in range(2))
    assert not torch.equal(one, other)
    seeded = PrivateTally(dp_seed=4)
    assert torch.equal(*(released(seeded, federation)[0]["count"] for _ in range(2)))
    assert seeded.spent(2) == math.inf


def test_without_order_pairs_have_the_transitions_share(divided):
    method, said = PrivateTally().fitted(divided.n_items, ordered=False)
    assert (method.shares, method.ratio) == ((0.1, 0.9, 0.0), PrivateTally().ratio)
    assert "no order" in said
    assert set(method.summed([divided.train[0]], np.arange(50), divided.n_items)) == {"S"}
    server, fleet = released(method, Federation.of_users(divided))
    assert not len(server["B"])
    assert fleet.scores_of(server, 3, "valid").isfinite().all()


def test_in_a_secure_sum_the_clients_noise_adds_up_to_it(divided):
    """The server adds none, sees one upload of everybody, and states the same ε."""
    federation = Federation.of_users(divided)
    asked = config(method="tally", settings={"epsilon": 8}, secure=True)
    method = method_of(asked)
    assert isinstance(method, PrivateTally)
    assert method.noise == "clients"
    mechanism = mechanism_of(asked, method, federation)
    assert isinstance(mechanism, SharedGaussian)
    assert (mechanism.clip, mechanism.ratio, mechanism.source) == (1.0, method.ratio, "system")
    assert mechanism.contributors <= 60
    server, _ = released(method, federation, SecureFleet, mechanism)
    quiet = released(PrivateTally(noise="clients"), federation)[0]["count"]
    off = (server["count"] - quiet) * math.sqrt(method.shares[0])
    assert float(off.std()) >= 0.8 * method.ratio * math.sqrt(60 / mechanism.contributors)
    assert float(off.std()) <= 1.2 * method.ratio * math.sqrt(60 / mechanism.contributors)
    assert method.spent(2) == PrivateTally().spent(2)
    for option in ({"ldp": "kind=gaussian,clip=1,scale=1"}, {"secure": True, "dp": "clip=1,noise=1"}):
        wrong = config(method="tally", settings={"epsilon": 8}, **option)
        with pytest.raises(UserError, match="has noise of its own"):
            mechanism_of(wrong, method_of(wrong), federation)
    with pytest.raises(UserError, match="one user a client"):
        mechanism_of(asked, method, Federation.of_groups(divided, 5))


def test_a_run_states_its_budget_and_validates_nothing_to_choose_from(tmp_path):
    settings = {"epsilon": 500, "inputs": 60}
    private = run("tally", data="demo", settings=settings, out=tmp_path / "private")
    assert private.epsilon == pytest.approx(500, rel=2e-3)
    assert (private.rounds, private.best_round) == (2, 2)
    lines = (tmp_path / "private" / "rounds.jsonl").read_text().splitlines()
    assert '"valid": null' in lines[0]
    assert private.test["NDCG@10"] > run("popularity", data="demo", out=tmp_path / "popularity").test["NDCG@10"]
    assert resume(tmp_path / "private").test == private.test
    assert type(reopen(tmp_path / "private").method) is PrivateTally


def test_what_is_no_budget_is_refused():
    assert type(build(Tally, {"epsilon": "8"})) is PrivateTally
    for wrong in ("-1", "nan", "inf"):
        with pytest.raises(UserError, match=f"epsilon='?{wrong}"):
            build(Tally, {"epsilon": wrong})
    for shares in ((0.0, 0.5, 0.5), (0.3, 0.3, 0.3)):
        with pytest.raises(UserError, match="all add up to 1"):
            PrivateTally(shares=shares)


@pytest.mark.slow
def test_a_curious_server_is_at_chance(tmp_path):
    """Of two users, one with an item and one without, the noisy sum tells which no better than a coin."""
    done = run("tally", data="demo", settings={"epsilon": 8, "inputs": 20}, secure=True, out=tmp_path / "run")
    assert (done.epsilon, done.settings["noise"]) == (PrivateTally().spent(2), "clients")
    popularity, found = audit([tmp_path / "run"], clients=0)
    assert not found.refused
    assert max(attack.between for attack in found.attacks.values()) == pytest.approx(0.5, abs=0.01)
    best = popularity.attacks["popularity"]
    assert max(attack.auc for attack in found.attacks.values()) < best.auc + 0.02
