import math
import os

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tacit.methods.tally import Tally
from tacit.privacy.gaussian import add_noise, gaussian_delta, gaussian_epsilon


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_delta_is_the_integral_of_the_privacy_loss(noise, epsilon):
    x = np.linspace(-60, 60, 2_000_001)
    gap = norm.pdf(x, 1, noise) - math.exp(epsilon) * norm.pdf(x, 0, noise)
    assert gaussian_delta(noise, epsilon) == pytest.approx(np.trapezoid(np.maximum(gap, 0), x), rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_epsilon_inverts_delta(noise, delta):
    epsilon = gaussian_epsilon(noise, delta)
    assert gaussian_delta(noise, epsilon) == pytest.approx(delta, rel=1e-3)
    assert gaussian_epsilon(noise * 1.1, delta) < epsilon


def test_without_noise_there_is_no_privacy():
    assert gaussian_epsilon(0.0, 1e-6) == math.inf
    assert gaussian_epsilon(1e9, 1e-6) == 0.0


def test_noise_is_the_systems_own_word_for_word(monkeypatch):
    """A seed behind many words could be found from the noise: as many bytes of entropy are read as there are words."""
    read = []

    def counted(size, own=os.urandom):
        read.append(size)
        return own(size)

    monkeypatch.setattr("tacit.privacy.gaussian.os.urandom", counted)
    one, other = torch.zeros(300, 7), torch.zeros(300, 7)
    add_noise(one, 2.0, "test")
    add_noise(other, 2.0, "test")
    assert sum(read) == 2 * 8 * 300 * 7
    assert not torch.equal(one, other)
    assert abs(float(one.std()) - 2.0) < 0.2


def test_noise_of_a_seed_repeats_and_claims_nothing():
    one, other = torch.zeros(300, 7), torch.zeros(300, 7)
    add_noise(one, 2.0, "test", seed=5)
    add_noise(other, 2.0, "test", seed=5)
    assert torch.equal(one, other)
    assert Tally(clip=1.0, dp_noise=4.0, dp_seed=5).spent(1) == math.inf
    assert 0 < Tally(clip=1.0, dp_noise=4.0).spent(1) < 2
