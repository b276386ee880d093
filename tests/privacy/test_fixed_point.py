import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.fixed_point import FixedPoint

points = st.builds(
    FixedPoint,
    bound=st.floats(1e-6, 1e9),
    clients=st.integers(1, 100_000),
    word=st.sampled_from([32, 64]),
)


@given(points)
def test_no_sum_can_overflow_and_one_bit_more_could(point):
    largest = int(point.encode(np.array([point.bound])).astype(object)[0])
    assert point.clients * largest < 2 ** (point.word - 1)
    finer = np.rint(point.bound * 2.0 ** (point.bits + 1)) + 1
    assert point.clients * int(finer) >= 2 ** (point.word - 1)


@given(points, st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_values_come_back_to_half_a_step(point, shares):
    values = np.array(shares) * point.bound
    back = point.decode(point.encode(values))
    assert np.abs(back - values).max() <= point.step / 2 + 1e-15 * point.bound


@pytest.mark.parametrize("word", [32, 64])
def test_a_sum_of_words_is_the_sum_of_values(word):
    values = np.random.default_rng(0).uniform(-3, 3, (500, 40))
    point = FixedPoint(3.0, 500, word)
    words = point.encode(values)
    total = words[0].copy()
    for row in words[1:]:
        total += row  # modulo 2^word
    exact = np.array([math.fsum(column) for column in values.T])
    assert np.abs(point.decode(total) - exact).max() <= 500 * point.step / 2
    assert point.step < (1e-14 if word == 64 else 1e-5)


def test_the_extremes_of_everybody_still_fit():
    for word in (32, 64):
        point = FixedPoint(1.0, 7, word)
        for value in (1.0, -1.0):
            words = point.encode(np.full((7, 1), value))
            assert point.decode(words.sum(0, dtype=words.dtype))[0] == pytest.approx(7 * value)


def test_hand_computed_words():
    point = FixedPoint(1.0, 2**10, 32)
    assert point.bits == 20  # 1024 · 2^20 = 2^30 < 2^31 and twice that is not
    assert point.encode(np.array([0.5, -0.5, 2.0])).tolist() == [2**19, 2**32 - 2**19, 2**20]  # the last one is clipped


def test_what_is_no_number_is_refused():
    with pytest.raises(ValueError, match="not a number"):
        FixedPoint(1.0, 2).encode(np.array([0.0, np.nan]))
    for bound, clients in ((0.0, 1), (np.inf, 1), (1.0, 0)):
        with pytest.raises(ValueError, match="no fixed point"):
            FixedPoint(bound, clients)
