import math

import numpy as np
import pytest
import torch

from tacit.evaluation.diagnostics import collapse, information_abundance, spectrum, variance


def rotation(angle):
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def test_singular_values_of_a_matrix_made_of_them():
    """U diag(4, 3, 1) Vᵀ with orthonormal U (5 × 3) and V (3 × 3), written down."""
    U = torch.zeros(5, 3)
    U[0, 0], U[3, 1] = 1, -1
    U[1, 2] = U[2, 2] = math.sqrt(0.5)
    V = torch.eye(3)
    V[:2, :2] = rotation(0.7)
    found = spectrum(U @ torch.diag(torch.tensor([4.0, 3.0, 1.0])) @ V.T)
    torch.testing.assert_close(found, torch.tensor([4.0, 3.0, 1.0], dtype=torch.float64), atol=1e-6, rtol=1e-6)
    assert information_abundance(found).item() == pytest.approx(8 / 4)
    assert variance(found).item() == pytest.approx(((4 - 8 / 3) ** 2 + (3 - 8 / 3) ** 2 + (1 - 8 / 3) ** 2) / 3)


@pytest.mark.parametrize("shape", [(40, 6), (6, 6), (4, 9)])
def test_they_are_those_of_numpy(shape):
    tables = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    found = spectrum(tables)
    assert found.shape == (3, min(shape))
    np.testing.assert_allclose(found.numpy(), np.linalg.svd(tables.double().numpy(), compute_uv=False), rtol=1e-8)


def test_a_table_that_uses_all_dimensions_alike():
    values = spectrum(2 * torch.eye(7, 4))
    assert information_abundance(values).item() == pytest.approx(4)
    assert variance(values).item() == pytest.approx(0)


def test_a_collapsed_table():
    values = spectrum(torch.outer(torch.arange(1.0, 6.0), torch.tensor([3.0, 0.0, 4.0])))
    assert values[0].item() == pytest.approx(5 * math.sqrt(55))
    assert values[1].item() == pytest.approx(0, abs=1e-5)
    assert information_abundance(values).item() == pytest.approx(1, abs=1e-6)


def test_a_table_of_zeros_has_nothing():
    values = spectrum(torch.zeros(2, 5, 3))
    assert information_abundance(values).tolist() == [0, 0]
    assert variance(values).tolist() == [0, 0]


def test_neither_turning_nor_scaling_changes_the_abundance():
    table = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    one, other = (information_abundance(spectrum(x)) for x in (table, 3 * table @ rotation(1.1)))
    assert one.item() == pytest.approx(other.item(), rel=1e-6)


def test_collapse_is_the_variance_of_the_covariance_matrixs_singular_values():
    tables = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(2)) * torch.tensor([3.0, 1.0, 1.0, 0.1]) + 5
    for table, found in zip(tables.double().numpy(), collapse(tables), strict=True):
        covariance = np.cov(table.T, bias=True)
        assert found.item() == pytest.approx(np.linalg.svd(covariance, compute_uv=False).var(), rel=1e-6)
    assert collapse(tables[0]).item() == pytest.approx(collapse(tables)[0].item())
