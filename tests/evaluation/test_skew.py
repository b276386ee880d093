import pytest
import torch

from tacit.evaluation.skew import balance, calibration, skew


def gradient(user, table, label):
    """Of the summed cross-entropy for a user vector (Eq. 3), by autograd."""
    user = user.clone().requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(table @ user, label, reduction="sum")
    return torch.autograd.grad(loss, user)[0]


@pytest.fixture
def clients():
    draw = torch.Generator().manual_seed(0)
    user, local = (torch.randn(*shape, generator=draw, dtype=torch.double) for shape in ((3, 4), (3, 7, 4)))
    label = (torch.rand(3, 7, generator=draw) < 0.4).double()
    direction = torch.randn(7, 4, generator=draw, dtype=torch.double)
    return user, local, label, direction


def test_skew_is_the_first_order_change_of_the_gradient(clients):
    """Eq. 17: the gradient against q + δ minus that against q, to first order in δ."""
    user, local, label, direction = clients
    step = 1e-6
    for u in range(3):
        shared = local[u] + step * direction
        found = skew(user[u : u + 1], local[u : u + 1], shared, label[u : u + 1])[0]
        expected = gradient(user[u], shared, label[u]) - gradient(user[u], local[u], label[u])
        torch.testing.assert_close(found / step, expected / step, atol=1e-4, rtol=1e-4)


def test_calibration_is_the_skew_of_one_step_of_the_buffer(clients):
    """Eq. 31 to 33: the buffer after one step is w_i = −η L_1 p; its skew is the calibration."""
    user, local, label, _ = clients
    rate = 0.01
    for u in range(3):
        slope = torch.sigmoid(local[u] @ user[u]) - label[u]
        buffer = -rate * slope[:, None] * user[u]
        found = calibration(user[u : u + 1], local[u : u + 1], label[u : u + 1], rate)
        expected = skew(user[u : u + 1], local[u : u + 1], local[u] + buffer, label[u : u + 1])
        torch.testing.assert_close(found, expected)


def test_one_item_by_hand():
    """d = 1, one item: q = 1, p = 2, r = 1, δ = 0.1."""
    one = torch.ones(1, 1)
    s = torch.sigmoid(torch.tensor(2.0))
    first, second = s - 1, s * (1 - s)
    expected = second * 2 * 0.1 * 1 + first * 0.1
    torch.testing.assert_close(skew(2 * one, one[None], 1.1 * one, one)[0, 0], expected)
    expected = -0.5 * (first * second * 4 * 1 + first**2 * 2)
    torch.testing.assert_close(calibration(2 * one, one[None], one, 0.5)[0, 0], expected)


def test_the_balance_of_equal_and_opposite_terms(clients):
    user, local, label, _ = clients
    user, local, label = user[:1], local[:1], label[:1]
    slope = torch.sigmoid(local[0] @ user[0]) - label[0]
    opposite = local[0] + 0.01 * slope[:, None] * user[0]  # a δ that the buffer's first step undoes
    found = balance(user, local, opposite, label, 0.01)
    assert found.cosine == pytest.approx(-1, abs=1e-6)
    assert found.left == pytest.approx(0, abs=1e-6)
    assert found.skew == pytest.approx(found.calibration)
