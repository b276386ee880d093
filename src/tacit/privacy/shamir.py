"""Secrets of 32 bytes in shares of which a threshold is needed (Shamir 1979)."""

from collections.abc import Callable, Collection, Mapping
from itertools import islice

Entropy = Callable[[int], bytes]  # this many unpredictable bytes

PRIME = 2**256 + 297  # the first one behind every secret
SECRET = 32  # bytes
SHARE = 33


def shares(secret: bytes, threshold: int, holders: Collection[int], entropy: Entropy) -> dict[int, bytes]:
    """A share for each holder: a random polynomial of degree threshold − 1 with the secret at 0, at holder + 1."""
    if len(secret) != SECRET or not 0 < threshold <= len(set(holders)):
        raise ValueError(f"{len(secret)} bytes cannot be shared among {len(holders)} with threshold {threshold}")
    # 48 bytes modulo a prime of 33 are uniform to 2⁻¹²⁷
    powers = [int.from_bytes(entropy(48), "big") % PRIME for _ in range(threshold - 1)]
    powers.append(int.from_bytes(secret, "big"))  # highest power first
    out = {}
    for holder in holders:
        value = 0
        for coefficient in powers:
            value = (value * (holder + 1) + coefficient) % PRIME
        out[holder] = value.to_bytes(SHARE, "big")
    return out


def secret_of(found: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from at least `threshold` shares, by Lagrange's polynomial at 0."""
    if len(found) < threshold:
        raise ValueError(f"{len(found)} shares of a secret that needs {threshold}")
    points = {holder + 1: int.from_bytes(share, "big") for holder, share in islice(found.items(), threshold)}
    total = 0
    for x, value in points.items():
        above, below = value, 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        total += above * pow(below, -1, PRIME)
    total %= PRIME
    if total >= 2 ** (8 * SECRET):
        raise ValueError("shares that do not belong together")
    return total.to_bytes(SECRET, "big")
