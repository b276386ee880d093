import numpy as np
import pytest

from tacit.data.interactions import from_columns
from tacit.data.summary import summarise


def test_figures_of_a_small_data_set() -> None:
    data = from_columns(
        "small",
        np.array([1, 1, 1, 1, 1, 2, 2, 2, 3, 3]),
        np.array([1, 2, 3, 4, 1, 1, 2, 3, 1, 5]),
        # user 1 sorted: 5 5 6 6, two of three neighbours equal; user 2: none of two; user 3: one of one
        time=np.array([5.0, 6.0, 5.0, 6.0, 9.0, 1.0, 2.0, 3.0, 4.0, 4.0]),
    )
    summary = summarise(data)
    assert (summary.name, summary.users, summary.items) == ("small", 3, 5)
    assert (summary.interactions, summary.duplicates) == (9, 1)
    assert summary.density == 9 / 15
    assert (summary.min_per_user, summary.median_per_user, summary.max_per_user) == (2, 3.0, 4)
    assert summary.mean_per_user == 9 / 3
    assert summary.users_below_3 == 1
    assert summary.equal_times == 3 / 6
    assert summary.histogram == [(2, 3, 2), (4, 7, 1)]


def test_concentration_and_degrees_of_a_small_data_set() -> None:
    """Ten items: one has four users, the others one each, so that its tenth has 4 of 13 interactions."""
    user = np.array([0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 1, 1, 2])
    item = np.array([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    summary = summarise(from_columns("x", user, item))
    assert summary.top_tenth == pytest.approx(4 / 13)
    counts = np.array([1] * 9 + [4])
    apart = np.abs(counts[:, None] - counts).sum() / (2 * 10 * 10 * counts.mean())  # by definition
    assert summary.gini == pytest.approx(apart)
    assert summary.lorenz[0] == (0.0, 0.0)
    assert summary.lorenz[-1] == (1.0, pytest.approx(1.0))
    assert dict(summary.lorenz)[0.9] == pytest.approx(9 / 13)
    ends = np.log([7, 3, 2, 1, 7, 7, 7, 7, 7, 7, 3, 3, 2]), np.log([4] * 4 + [1] * 9)
    assert summary.degrees == pytest.approx(np.corrcoef(*ends)[0, 1])
    assert summarise(from_columns("x", np.array([0, 1]), np.array([0, 1]))).degrees == 0


def test_no_times_no_share_of_equal_times() -> None:
    assert summarise(from_columns("x", np.array([1]), np.array([1]))).equal_times is None


def test_one_interaction_each_has_no_neighbours() -> None:
    data = from_columns("x", np.array([1, 2]), np.array([1, 1]), time=np.array([5.0, 5.0]))
    assert summarise(data).equal_times == 0.0


def test_histogram_bins_hold_both_of_their_ends() -> None:
    lengths = [1, 7, 8, 15, 16, 64]
    user = np.repeat(np.arange(len(lengths)), lengths)
    item = np.concatenate([np.arange(n) for n in lengths])
    histogram = summarise(from_columns("x", user, item)).histogram
    assert histogram == [
        (1, 1, 1),
        (2, 3, 0),
        (4, 7, 1),
        (8, 15, 2),
        (16, 31, 1),
        (32, 63, 0),
        (64, 127, 1),
    ]
