import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit import rng

words = st.integers(0, 2**63)


def reference_word(seed, purpose, round, client, counter):
    """SplitMix64's finaliser over a keyed counter, in Python's whole numbers."""
    import zlib

    full = 2**64 - 1

    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & full
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & full
        return x ^ (x >> 31)

    key = client
    for word in (seed, zlib.crc32(purpose.encode()), round):
        key = mix((key * 0x9E3779B97F4A7C15 + word) & full)
    return mix((key + (counter + 1) * 0x9E3779B97F4A7C15) & full)


@given(st.integers(-5, 2**40), st.text(max_size=8), st.integers(0, 1000), st.integers(0, 2**31), st.integers(0, 50))
def test_words_follow_the_written_formula(seed, purpose, round, client, counter):
    expected = reference_word(seed % 2**64, purpose, round, client, counter)
    ids = np.array([3, client])
    assert int(rng.bits(seed, purpose, round, ids, counter + 1)[1, counter]) == expected
    assert int(rng.bits_at(seed, purpose, round, np.array([client]), np.array([counter]))[0]) == expected


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 20))
def test_a_client_gets_the_same_words_in_any_company_and_any_count(ids, count, more):
    together = rng.bits(7, "x", 3, np.array(ids), count + more)
    for place, client in enumerate(ids):
        alone = rng.bits(7, "x", 3, torch.tensor([client]), count)
        assert (alone[0] == together[place, :count]).all()


@pytest.mark.parametrize("change", ["seed", "purpose", "round", "client"])
def test_every_part_of_the_key_matters(change):
    key = {"seed": 1, "purpose": "a", "round": 1, "client": 1}
    other = key | {change: "b" if change == "purpose" else 2}
    draws = [rng.bits(k["seed"], k["purpose"], k["round"], np.array([k["client"]]), 1000) for k in (key, other)]
    assert not np.isin(draws[0], draws[1]).any()


def test_global_state_neither_matters_nor_moves():
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = rng.normal(0, "x", 0, torch.arange(3), 4)
    state = torch.random.get_rng_state()
    np.random.seed(2)  # noqa: NPY002
    assert torch.equal(before, rng.normal(0, "x", 0, torch.arange(3), 4))
    assert torch.equal(state, torch.random.get_rng_state())


def test_uniform_and_normal_have_their_distributions():
    uniform = rng.uniform(0, "u", 0, np.arange(100), 500)
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 0.001
    normal = rng.normal(0, "n", 0, torch.arange(100), 20, 25)
    assert normal.shape == (100, 20, 25)
    assert normal.dtype == torch.float32
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 0.001
    laplace = rng.laplace_of(rng.bits(0, "l", 0, np.arange(100), 500))
    assert stats.kstest(laplace.ravel(), "laplace").pvalue > 0.001
    assert abs((laplace > 0).mean() - 0.5) < 0.01
    # neighbouring clients and neighbouring counters do not move together
    assert abs(np.corrcoef(uniform[:-1].ravel(), uniform[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(uniform[:, :-1].ravel(), uniform[:, 1:].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("bound", [1, 2, 7, 1682])
def test_below_is_uniform_and_stays_below(bound):
    drawn = rng.below(rng.bits(0, "b", 0, np.arange(20), 5000), np.array([[bound]]))
    assert drawn.min() >= 0
    assert drawn.max() == bound - 1
    if bound > 1:
        assert stats.chisquare(np.bincount(drawn.ravel(), minlength=bound)).pvalue > 0.001


@settings(max_examples=50)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 12))
def test_distinct_draws_are_distinct_below_the_bound_or_marked(bounds, count):
    bound = np.array(bounds)
    drawn = rng.distinct(0, "d", np.arange(len(bounds)), bound, count)
    assert drawn.shape == (len(bounds), count)
    for row, limit in zip(drawn, bounds, strict=True):
        real = row[row >= 0]
        assert len(real) == min(limit, count)
        assert len(set(real.tolist())) == len(real)
        assert (real < limit).all()


def test_distinct_draws_take_every_subset_alike():
    drawn = rng.distinct(5, "d", np.arange(30_000), np.full(30_000, 5), 2)
    pairs = np.sort(drawn, 1)
    counts = np.bincount(pairs[:, 0] * 5 + pairs[:, 1], minlength=25)
    subsets = [counts[a * 5 + b] for a in range(5) for b in range(a + 1, 5)]
    assert stats.chisquare(subsets).pvalue > 0.001


def test_the_generator_depends_on_seed_purpose_and_round():
    draws = {
        float(rng.generator(*key).random()) for key in [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1)] for _ in range(2)
    }
    assert len(draws) == 4


def test_part_of_a_random_order_is_that_of_the_whole_sorted():
    key = rng.bits(3, "x", 2, np.arange(50), 1)[:, 0]
    order = np.argsort(key)
    for part in (slice(0, 7), slice(7, 20), slice(43, 50), slice(0, 50), slice(45, 60), slice(0, 0)):
        assert rng.drawn(3, "x", 2, 50, part).tolist() == sorted(order[part].tolist())
