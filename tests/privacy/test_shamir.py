import secrets
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

from tacit.privacy.shamir import PRIME, SHARE, secret_of, shares


def entropy():
    return np.random.default_rng(0).bytes


def test_any_threshold_of_shares_opens_the_secret():
    secret = secrets.token_bytes(32)
    made = shares(secret, 3, [0, 5, 17, 1000, 4_000_000_000], secrets.token_bytes)
    for some in combinations(made.items(), 3):
        assert secret_of(dict(some), 3) == secret
    assert secret_of(made, 3) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_smallest_and_the_largest_secret(secret):
    assert secret_of(shares(secret, 2, [4, 9], secrets.token_bytes), 2) == secret
    assert secret_of(shares(secret, 1, [4], secrets.token_bytes), 1) == secret


def test_shares_are_a_polynomial():
    """With 2 + 3x the holders 0 and 4 get its values at 1 and 5."""
    made = shares((2).to_bytes(32, "big"), 2, [0, 4], lambda size: (3).to_bytes(size, "big"))
    assert {h: int.from_bytes(s, "big") for h, s in made.items()} == {0: 5, 4: 17}
    assert {len(s) for s in made.values()} == {SHARE}


def test_too_few_shares_say_so_and_wrong_ones_open_something_else():
    secret = secrets.token_bytes(32)
    made = shares(secret, 3, range(5), secrets.token_bytes)
    with pytest.raises(ValueError, match="2 shares of a secret that needs 3"):
        secret_of({h: made[h] for h in (0, 1)}, 3)
    wrong = {0: made[0], 1: made[1], 2: made[3]}
    assert secret_of(wrong, 3) != secret  # but for one time in 2²⁴⁷, when it is no secret at all
    with pytest.raises(ValueError, match="do not belong together"):
        secret_of({0: (2**256).to_bytes(33, "big")}, 1)


def test_fewer_shares_than_the_threshold_tell_nothing():
    """A share's last byte is uniform whatever the secret is."""
    draw = entropy()
    for secret in (bytes(32), b"\xff" * 32):
        last = np.array([shares(secret, 2, [3, 8], draw)[3][-1] for _ in range(5000)])
        assert chisquare(np.bincount(last >> 4, minlength=16)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("secret", "threshold", "holders"), [(b"short", 1, [0]), (bytes(32), 3, [0, 1]), (bytes(32), 0, [0])]
)
def test_what_cannot_be_shared(secret, threshold, holders):
    with pytest.raises(ValueError, match="cannot be shared"):
        shares(secret, threshold, holders, secrets.token_bytes)


def test_the_modulus_is_prime_and_beyond_every_secret():
    """Miller and Rabin's test to forty bases."""
    assert PRIME > 2**256
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, PRIME)
        assert x in (1, PRIME - 1) or any(pow(x, 2**k, PRIME) == PRIME - 1 for k in range(1, twos))
