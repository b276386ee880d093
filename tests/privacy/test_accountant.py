import math
import sys

import dp_accounting
import pytest
from dp_accounting import pld, rdp

from tacit.errors import UserError
from tacit.privacy.accountant import central_epsilon, gaussian_cost, laplace_cost, smallest
from tacit.privacy.gaussian import gaussian_epsilon

DELTA = 1e-5


@pytest.mark.parametrize(("ratio", "rounds"), [(0.5, 3), (2.0, 60), (30.0, 100)])
def test_laplace_is_what_the_library_says_directly(ratio, rounds):
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(ratio), rounds))
    found = laplace_cost(ratio, rounds, DELTA)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)
    assert found <= rounds / ratio


@pytest.mark.parametrize(("ratio", "rounds"), [(0.5, 3), (3.0, 60)])
def test_gaussian_is_what_the_library_says_directly(ratio, rounds):
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(ratio), rounds))
    found = gaussian_cost(ratio, rounds, DELTA)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)
    assert found == pytest.approx(gaussian_epsilon(ratio / math.sqrt(rounds), DELTA), rel=1e-6)


@pytest.mark.parametrize("ratio", [0.01, 1.0, 50.0])
def test_one_round_of_laplace_by_hand(ratio):
    """δ(ε') = 1 − e^((ε' − ε) / 2) for ε' < ε."""
    expected = 1 / ratio + 2 * math.log(1 - DELTA)
    assert laplace_cost(ratio, 1, DELTA) == pytest.approx(expected, abs=1e-6 / ratio)


@pytest.mark.parametrize("parts", [2, 5, 50])
def test_a_change_spread_over_many_values_costs_no_more_than_in_one(parts):
    """A shift by 1/k in each of k coordinates is k releases of ratio k·r: what the docstring's argument says."""
    assert laplace_cost(0.7 * parts, parts, DELTA) <= laplace_cost(0.7, 1, DELTA)


def test_rounds_add_up_and_none_costs_nothing():
    for cost in (laplace_cost, gaussian_cost):
        spent = [cost(5.0, rounds, DELTA) for rounds in (0, 1, 2, 10, 100)]
        assert spent[0] == 0
        assert spent == sorted(set(spent))
        assert cost(0.0, 1, DELTA) == math.inf
    assert central_epsilon(0.0, 1, DELTA) == math.inf
    assert central_epsilon(1.0, 0, DELTA) == 0


def test_sampling_in_the_central_model_is_what_the_library_says_directly():
    poisson = pld.PLDAccountant()
    poisson.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), 20)
    found = central_epsilon(2.0, 20, DELTA, "poisson", clients=500, chosen=50)
    assert found == pytest.approx(poisson.get_epsilon(DELTA), rel=1e-9)
    fixed = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(500, 50, dp_accounting.GaussianDpEvent(4.0))
    fixed.compose(event, 20)  # twice the sensitivity: noise of 8 C is 4 · 2 C
    assert central_epsilon(8.0, 20, DELTA, "fixed", 500, 50) == pytest.approx(fixed.get_epsilon(DELTA), rel=1e-9)


def test_being_chosen_seldom_costs_less_in_the_central_model():
    everybody = central_epsilon(4.0, 30, DELTA)
    assert everybody == pytest.approx(gaussian_epsilon(4.0 / math.sqrt(30), DELTA), rel=1e-6)
    for sampling in ("poisson", "fixed"):
        few, more = (central_epsilon(8.0, 30, DELTA, sampling, 1000, chosen) for chosen in (10, 100))
        assert few < more < everybody


@pytest.mark.parametrize("cost", [laplace_cost, gaussian_cost])
@pytest.mark.parametrize("target", [0.05, 1.0, 300.0])
def test_the_noise_for_a_target_is_enough_and_hardly_more(cost, target):
    ratio = smallest(lambda tried: cost(tried, 40, DELTA), target)
    assert cost(ratio, 40, DELTA) <= target
    assert cost(0.998 * ratio, 40, DELTA) > target


def test_the_search_is_a_search():
    for root in (1e-6, 0.3, 1.0, 7.0, 1e7):
        assert root <= smallest(lambda x, root=root: 5 * root / x, 5.0) <= 1.0011 * root


def test_without_the_package_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'tacit\[privacy\]'"):
        laplace_cost(123.456, 1, DELTA)
