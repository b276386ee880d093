import math

import numpy as np
import pytest
from scipy.stats import norm

from tacit.privacy.gaussian import gaussian_delta, gaussian_epsilon


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
