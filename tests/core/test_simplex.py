"""The closed projection against a general solver."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tacit.core import simplex
from tacit.core.simplex import project


def solved(linear, prior, strength):
    """argmin over the simplex of strength · ‖w − prior‖² + linear · w, by sequential quadratic programming."""
    n = len(prior)
    found = minimize(
        lambda w: strength * ((w - prior) ** 2).sum() + linear @ w,
        np.full(n, 1 / n),
        jac=lambda w: 2 * strength * (w - prior) + linear,
        method="SLSQP",
        bounds=[(0, None)] * n,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(n)},
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    assert found.success
    return found.x


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("strength", [0.1, 0.8, 5.0])
def test_it_solves_the_quadratic_programme(seed, strength):
    draw = np.random.default_rng(seed)
    prior = draw.dirichlet(np.ones(12))
    linear = draw.normal(size=12)
    found = project(torch.from_numpy(prior - linear / (2 * strength))[None])[0]
    np.testing.assert_allclose(found.numpy(), solved(linear, prior, strength), atol=1e-6)


def test_known_points():
    points = torch.tensor([[0.2, 0.3, 0.5], [5.0, 0.0, 0.0], [0.5, 0.5, -9.0], [1.0, 1.0, 1.0], [0.9, 0.5, 0.0]])
    expected = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3] * 3, [0.7, 0.3, 0.0]])
    torch.testing.assert_close(project(points), expected.double())


def test_rows_are_projected_by_themselves(monkeypatch):
    points = torch.randn(23, 7, generator=torch.Generator().manual_seed(0))
    whole = project(points)
    torch.testing.assert_close(whole.sum(1), torch.ones(23, dtype=torch.float64))
    assert (whole >= 0).all()
    monkeypatch.setattr(simplex, "BLOCK", 4)
    assert torch.equal(project(points), whole)
    assert torch.equal(project(points[[5]])[0], whole[5])
