import numpy as np
import pytest
from scipy.stats import kstest

from tacit.privacy.gaussian import gaussian_epsilon
from tacit.privacy.shared_noise import SharedNoise, normals


def entropy(seed=0):
    return np.random.default_rng(seed).bytes


def test_normals_are_normal():
    drawn = normals(100_000, entropy())
    assert kstest(drawn, "norm").pvalue > 1e-3
    assert not np.array_equal(normals(5), normals(5)), "without an entropy of one's own they come from the system"


def test_a_vector_is_no_longer_than_the_clip():
    quiet = SharedNoise(clip=2.0, multiplier=0.0)
    long, short = np.array([3.0, 4.0]), np.array([0.3, 0.4])
    assert quiet.protect(long, 1) == pytest.approx([1.2, 1.6])
    assert np.array_equal(quiet.protect(short, 1), short)
    assert np.array_equal(quiet.protect(np.zeros(2), 1), np.zeros(2))


@pytest.mark.parametrize(("clients", "contributors"), [(50, 50), (50, 30)])
def test_shares_add_up_to_the_noise_asked_for(clients, contributors):
    noise, draw = SharedNoise(clip=0.5, multiplier=3.0), entropy()
    total = sum(noise.protect(np.zeros(20_000), contributors, draw) for _ in range(clients))
    expected = 3.0 * 0.5 * (clients / contributors) ** 0.5  # never less than asked for
    assert total.std() == pytest.approx(expected, rel=0.02)
    assert kstest(total / expected, "norm").pvalue > 1e-3


def test_epsilon_is_that_of_the_sum():
    assert SharedNoise(0.5, 3.0, 1e-5).epsilon() == gaussian_epsilon(3.0, 1e-5)
    assert SharedNoise(0.5, 0.0).epsilon() == float("inf")
