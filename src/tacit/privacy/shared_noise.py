"""Gaussian noise that the clients of a secure sum add together, each a share of it: central privacy without trust."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from tacit.core.payload import Payload
from tacit.privacy.accountant import smallest
from tacit.privacy.gaussian import gaussian_epsilon
from tacit.privacy.mechanisms import Gaussian


@dataclass(frozen=True)
class SharedGaussian:
    """Noise of standard deviation ratio · clip on a sum of uploads that are clipped to an L2 norm of `clip`.

    `contributors` must be no more than the honest clients that will be in the sum (`Invitation.honest`): the noise of
    more clients only adds to it, and what colluding clients know of theirs takes nothing away.
    """

    clip: float
    ratio: float
    contributors: int
    delta: float = 1e-5  # at which ε is stated
    source: Literal["seed", "system"] = "seed"  # as a Mechanism's

    @property
    def share(self) -> Gaussian:
        """What each client does to its upload: variance (ratio · clip)² / contributors."""
        return Gaussian(self.ratio * self.clip / math.sqrt(self.contributors), self.clip, self.delta, self.source)

    def stated(self) -> dict[str, Any]:
        """As it is written down."""
        return dataclasses.asdict(self)

    def __call__(self, up: Payload, down: Payload, seed: int, round: int) -> Payload:
        """The upload as it goes into the sum."""
        return self.share(up, down, seed, round)

    def epsilon(self, rounds: int) -> float:
        """What the sums of this many rounds tell of a client that was in them, at δ; its part is there or is zero.

        n releases with noise σ are one with σ / √n. The steps of the fixed point are left out of account: they are
        many orders of magnitude below the noise.
        """
        return gaussian_epsilon(self.ratio / math.sqrt(rounds), self.delta) if rounds else 0.0


def for_budget(clip: float, epsilon: float, rounds: int, contributors: int, delta: float = 1e-5) -> SharedGaussian:
    """The least noise under which a client in this many sums spends at most ε."""
    ratio = smallest(lambda r: gaussian_epsilon(r / math.sqrt(max(rounds, 1)), delta), epsilon)
    return SharedGaussian(clip, ratio, contributors, delta)
