"""One Gaussian release: its noise, and its exact privacy (Balle and Wang 2018, Theorem 8)."""

import math
import os

import numpy as np
import torch
from torch import Tensor

from tacit import rng


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """δ of a release with L2 sensitivity 1 and noise of standard deviation σ = `ratio`, at a given ε.

    δ = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)
    """
    from scipy.special import log_ndtr

    first = log_ndtr(0.5 / ratio - epsilon * ratio)
    second = epsilon + log_ndtr(-0.5 / ratio - epsilon * ratio)
    return float(math.exp(first) - math.exp(second)) if second < first else 0.0


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """The smallest ε at that δ; infinite without noise."""
    if ratio <= 0:
        return math.inf
    if gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    from scipy.optimize import brentq

    high = 1.0
    while gaussian_delta(ratio, high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: gaussian_delta(ratio, epsilon) - delta, 0.0, high, xtol=1e-10))


def add_noise(total: Tensor, scale: float, purpose: str, seed: int = -1) -> None:
    """Gaussian noise on every cell of a matrix, in place.

    Every word comes from the system's entropy: a short seed behind many words could be found from the noise itself. A
    seed of 0 or more repeats a simulation and protects nobody.
    """
    for block in torch.split(torch.arange(len(total)), 256):
        cells = len(block) * total.shape[1]
        if seed < 0:
            words = np.frombuffer(os.urandom(8 * cells), dtype=np.uint64)
        else:
            words = rng.bits(seed, purpose, 0, block, total.shape[1])
        total[block] += scale * torch.from_numpy(rng.normal_of(words).reshape(len(block), -1)).float()
