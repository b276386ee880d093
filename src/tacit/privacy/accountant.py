"""What noise costs: ε at a given δ, composed over rounds, by dp-accounting; and the noise that a given ε allows.

Local model: every upload is noisy before it leaves its client, and the server may look at each. Two possible data sets
of a client may differ in everything (replacement), so uploads clipped to norm C differ by at most 2C. The server knows
who took part: being chosen at random hides nothing, and a client has spent what its own rounds cost.

Central model: only a sum with noise is seen. Who was in it is not, where the choice itself is kept from those who see
the result; then sampling makes a round cheaper.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeAlias

from tacit.errors import UserError

Sampling: TypeAlias = Literal["all", "poisson", "fixed"]

POINTS = 1_000, 200_000  # of a privacy loss distribution's grid: for a round, and for all at most; more are not tighter


@cache
def gaussian_cost(ratio: float, rounds: int, delta: float) -> float:
    """ε of a client that took part in this many rounds; `ratio` is the noise's scale over the sensitivity, 2C."""
    if rounds == 0:
        return 0.0
    if ratio <= 0:
        return math.inf
    # n releases with noise σ are one with σ / √n
    return float(_library().get_epsilon_gaussian(ratio / math.sqrt(rounds), delta))


@cache
def laplace_cost(ratio: float, rounds: int, delta: float) -> float:
    """The same of Laplace noise.

    Laplace noise in many dimensions costs at most what it costs in one: moving the mean by a and then by b is never
    easier to see than moving one coordinate by a + b, for which the two steps' trade-off curves compose exactly.
    """
    if rounds == 0:
        return 0.0
    if ratio <= 0:
        return math.inf
    dp = _library()
    pure = rounds / ratio
    grid = pure / min(POINTS[0] * rounds, POINTS[1])  # its estimate is from above, however coarse
    accountant = dp.pld.PLDAccountant(value_discretization_interval=grid)
    accountant.compose(dp.LaplaceDpEvent(ratio), rounds)
    return min(pure, float(accountant.get_epsilon(delta)))


@cache
def central_epsilon(
    ratio: float,
    rounds: int,
    delta: float,
    sampling: Sampling = "all",
    clients: int = 1,
    chosen: int = 1,
) -> float:
    """ε of sums with Gaussian noise of standard deviation ratio · C, C bounding the L2 norm of a client's part.

    `all`: every client is in every round. `poisson`: each is in with probability chosen / clients, by a coin of its
    own. For both a client's part is there or is zero (sensitivity C), by privacy loss distributions. `fixed`: exactly
    `chosen` of `clients`, and a client's part may become any other (sensitivity 2C), by Rényi divergences: no privacy
    loss distribution of it is known to the library, so that this one is the least tight.
    """
    if rounds == 0:
        return 0.0
    if ratio <= 0:
        return math.inf
    dp = _library()
    if sampling == "all":
        return gaussian_cost(ratio, rounds, delta)
    if sampling == "poisson":
        accountant = dp.pld.PLDAccountant()
        event = dp.PoissonSampledDpEvent(chosen / clients, dp.GaussianDpEvent(ratio))
    else:
        accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        event = dp.SampledWithoutReplacementDpEvent(clients, chosen, dp.GaussianDpEvent(ratio / 2))
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def smallest(epsilon_of: Callable[[float], float], target: float) -> float:
    """The smallest ratio whose ε is at most the target, to a thousandth and from above."""
    low = high = 1.0
    while epsilon_of(high) > target:
        low, high = high, 2 * high
    while low == high or epsilon_of(low) <= target:
        low, high = low / 2, low
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon_of(middle) <= target else (middle, high)
    return high


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise UserError(
            "stating a privacy budget needs the package dp-accounting: pip install 'tacit[privacy]'"
        ) from None
    return dp_accounting
