"""The exact privacy of one Gaussian release (Balle and Wang 2018, Theorem 8)."""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """δ of a release with L2 sensitivity 1 and noise of standard deviation σ = `ratio`, at a given ε.

    δ = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)
    """
    first = log_ndtr(0.5 / ratio - epsilon * ratio)
    second = epsilon + log_ndtr(-0.5 / ratio - epsilon * ratio)
    return float(math.exp(first) - math.exp(second)) if second < first else 0.0


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """The smallest ε at that δ; infinite without noise."""
    if ratio <= 0:
        return math.inf
    if gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(ratio, high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: gaussian_delta(ratio, epsilon) - delta, 0.0, high, xtol=1e-10))
