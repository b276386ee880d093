"""Who masks against whom, and how many shares open a secret.

Everybody against everybody where the server may lie; a sparse random graph (Bell et al. 2020, Sec. 3) where there are
many clients and the server follows the protocol.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from tacit.errors import UserError
from tacit.privacy.shamir import Entropy

SECURITY = 40  # a client is exposed by chance with probability 2⁻⁴⁰ at most
CORRECTNESS = 30  # the sum cannot be opened, by chance, with probability 2⁻³⁰ at most
DROPOUTS = 0.3  # of the clients invited, that a sum survives
COLLUDING = 0.1  # of the clients invited, that may tell the server all they know
FEWEST = 3  # of two, each knows the other's from the sum


def share(clients: int, part: float) -> int:
    """So many of the clients, rounded down but for a rounding error."""
    return int(part * clients + 1e-9)


def least_threshold(holders: int, colluding: int | None = None) -> int:
    """The smallest t at which a server that lies about dropouts cannot open both secrets of a client.

    Every honest holder gives a share of one of the two, colluding ones of both: with 2t > holders + colluding there are
    not enough for both (Bonawitz et al. 2017, Sec. 6.2). COLLUDING of the parties where nothing is said.
    """
    return (holders + (share(holders + 1, COLLUDING) if colluding is None else colluding)) // 2 + 1


def complete(clients: int, colluding: int, dropping: int) -> tuple[int, int]:
    """Everybody is everybody's neighbour; t is the largest that this many dropouts allow."""
    threshold = clients - 1 - dropping
    if threshold < least_threshold(clients - 1, colluding):
        raise UserError(
            f"a secure sum of {clients} clients cannot tolerate {dropping} dropouts and {colluding} colluding "
            "clients at once: allow fewer of either"
        )
    return clients - 1, threshold


@cache
def degree_and_threshold(clients: int, colluding: int, dropping: int) -> tuple[int, int]:
    """k, the neighbours of a client, and t, the shares that open one of its secrets: the smallest k that does.

    Clients stand on a circle in random order, each beside k/2 others on either side. By the union bound over clients:

    - nobody has t colluding neighbours, who could open its secrets (2⁻⁴⁰);
    - the honest clients that stay are connected, or the server would learn the sum of a part of them: no k/2 in a row
      all collude or drop out (2⁻⁴⁰);
    - everybody has t neighbours that stay, or the sum could not be opened (2⁻³⁰).

    t is the largest that the last one allows. Where no k does, everybody is everybody's neighbour.
    """
    union = math.log2(clients)
    for degree in range(2, clients, 2):
        gap = _choose(colluding + dropping, degree // 2) - _choose(clients, degree // 2)
        if union + float(gap) > -SECURITY:
            continue
        staying = np.logaddexp2.accumulate(_marked(clients - 1, clients - 1 - dropping, degree))  # P[Y ≤ y]
        threshold = int((union + staying <= -CORRECTNESS).sum())
        exposed = np.logaddexp2.reduce(_marked(clients - 1, colluding, degree)[threshold:])  # P[X ≥ t]
        if threshold and union + float(exposed) <= -SECURITY:
            return degree, threshold
    return complete(clients, colluding, dropping)


def circle(ids: Sequence[int], degree: int, entropy: Entropy) -> dict[int, list[int]]:
    """The neighbours of each client: the k nearest on a circle in random order, or all others."""
    n = len(ids)
    order = np.argsort(np.frombuffer(entropy(8 * n), dtype="<u8"), kind="stable")
    placed = [ids[int(place)] for place in order]
    if degree >= n - 1:
        return {mine: placed[:at] + placed[at + 1 :] for at, mine in enumerate(placed)}
    reach = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    return {mine: [placed[(at + step) % n] for step in reach] for at, mine in enumerate(placed)}


def _choose(n: int, k: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """log2 of the binomial coefficient; −∞ where there is none."""
    k = np.asarray(k)
    inside = (k >= 0) & (k <= n)
    there = np.where(inside, k, 0)
    value = (gammaln(n + 1) - gammaln(there + 1) - gammaln(n - there + 1)) / math.log(2)
    return np.where(inside, value, -np.inf)


def _marked(n: int, marked: int, drawn: int) -> NDArray[np.float64]:
    """log2 P[x of `drawn` out of n are among the marked], x = 0 … drawn."""
    x = np.arange(drawn + 1)
    return _choose(marked, x) + _choose(n - marked, drawn - x) - _choose(n, drawn)
