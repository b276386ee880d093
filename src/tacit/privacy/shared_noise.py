"""Gaussian noise that the clients of a secure sum add together, each a share of it: central privacy without trust."""

import math
import secrets
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from tacit.privacy.fixed_point import Reals
from tacit.privacy.gaussian import gaussian_epsilon
from tacit.privacy.secure_sum import add_masks
from tacit.privacy.shamir import Entropy


@dataclass(frozen=True)
class SharedNoise:
    """Noise of standard deviation multiplier · clip on a sum of vectors that are no longer than clip (L2)."""

    clip: float
    multiplier: float
    delta: float = 1e-6

    def protect(self, values: Reals, contributors: int, entropy: Entropy = secrets.token_bytes) -> Reals:
        """A client's vector, shortened to the clip, with noise of variance (multiplier · clip)² / contributors.

        `contributors` must be no more than the honest clients that will be in the sum (`Invitation.honest`): shares of
        more clients only add to the noise.
        """
        length = float(np.linalg.norm(values))
        shortened = values * min(1.0, self.clip / length) if length else values
        return shortened + self.multiplier * self.clip / math.sqrt(contributors) * normals(len(values), entropy)

    def epsilon(self) -> float:
        """ε of one sum at `delta`, when one client more or less takes part.

        The steps of the fixed point are left out of account: they are many orders of magnitude below the noise.
        """
        return gaussian_epsilon(self.multiplier, self.delta)


def normals(count: int, entropy: Entropy = secrets.token_bytes) -> Reals:
    """Standard normals that nobody can foretell: 53 bits of a keystream each, by inverting the distribution."""
    words = np.zeros(count, dtype=np.uint64)
    add_masks(words, [(entropy(32), True)])
    drawn: Reals = ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return drawn
