"""The exact privacy of one Gaussian release (Balle and Wang 2018, Theorem 8)."""

import math


def gaussian_delta(noise: float, epsilon: float) -> float:
    """δ of a release with L2 sensitivity 1 and noise of standard deviation `noise`, at a given ε.

    δ = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)
    """
    from scipy.special import log_ndtr

    first = log_ndtr(0.5 / noise - epsilon * noise)
    second = epsilon + log_ndtr(-0.5 / noise - epsilon * noise)
    return float(math.exp(first) - math.exp(second)) if second < first else 0.0


def gaussian_epsilon(noise: float, delta: float) -> float:
    """The smallest ε at that δ; infinite without noise."""
    from scipy.optimize import brentq

    if noise <= 0:
        return math.inf
    if gaussian_delta(noise, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(noise, high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: gaussian_delta(noise, epsilon) - delta, 0.0, high, xtol=1e-10))
