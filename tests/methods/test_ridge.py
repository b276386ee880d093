import pytest
import torch

from tacit.methods import ridge
from tacit.methods.ridge import ease_inverse, ease_weights, factor_of, inverse_of, solved


@pytest.fixture(params=[4, 10, 64])  # blocks that do not divide the size, that do, and one block for all
def block(request, monkeypatch):
    monkeypatch.setattr(ridge, "BLOCK", request.param)


@pytest.fixture(params=[0, 15, 30])
def corner(request):
    return request.param


@pytest.fixture
def sums(block, corner):
    x = torch.rand(50, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, :corner] = torch.eye(max(corner, 1), dtype=torch.float64).repeat(50, 1)[:50, :corner]
    return x.T @ x


def test_the_factor_is_that_of_the_whole_matrix_and_the_sums_stay(sums, corner):
    lower = sums.tril()
    before = lower.clone()
    expected = torch.linalg.cholesky(sums + 2.0 * torch.eye(30))
    torch.testing.assert_close(factor_of(lower, 2.0, corner), expected)
    assert torch.equal(lower, before)


def test_the_solution_and_the_inverse_undo_the_matrix(sums, corner):
    whole = sums.float() + 2.0 * torch.eye(30)
    factor = factor_of(sums.float().tril(), 2.0, corner)
    right = torch.rand(30, 7, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(whole @ solved(factor, right, corner), right, atol=1e-4, rtol=1e-4)
    right[torch.arange(30) % 5 > 0] = 0
    torch.testing.assert_close(whole @ solved(factor, right, corner), right, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(whole @ inverse_of(factor), torch.eye(30), atol=1e-4, rtol=1e-4)


def test_weights_are_the_inverse_by_column_without_the_diagonal():
    inverse = torch.tensor([[2.0, 1.0], [3.0, 4.0]])
    expected = torch.tensor([[0.0, -0.25], [-1.5, 0.0]])
    before, diagonal = inverse.clone(), inverse.diagonal().clone()
    assert torch.equal(ease_weights(inverse), expected)
    torch.testing.assert_close(ease_inverse(expected, diagonal), before)


def test_noisy_sums_still_have_a_factor():
    sums = torch.tensor([[1.0, 0.0], [5.0, 1.0]])  # not positive definite by its lower half
    factor = factor_of(sums, 0.5)
    whole = factor @ factor.T
    assert whole[1, 0] == pytest.approx(5.0)
    assert torch.linalg.eigvalsh(whole).min() > 0


def test_sums_of_no_data_are_an_error():
    with pytest.raises(ValueError, match="no ridge"):
        factor_of(torch.tensor([[-1e30]]), 1.0)
