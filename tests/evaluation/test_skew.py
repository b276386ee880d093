import pytest
import torch

from tacit.evaluation.skew import Accumulated, balance, calibration, skew


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


def gaps(user, local, *changes):
    """Lemma 3.3 for one client whose vectors stay, and whose δ are these, one round after another."""
    added = Accumulated(0.1)
    label = torch.ones(1, len(local))
    return [added.add(user[None], local[None], local + change, label) for change in changes]


def test_the_lemma_holds_where_gaps_shrink_and_keep_their_direction():
    draw = torch.Generator().manual_seed(1)
    user, local, change = (torch.randn(*shape, generator=draw).double() for shape in ((4,), (7, 4), (7, 4)))
    *_, last = gaps(user, local, *(0.5**t * change for t in range(6)))
    assert (last.over, last.grown, last.fit) == (0, 0, 1)
    assert 0 < last.added <= last.allowed


def test_the_lemma_does_not_hold_as_stated():
    """Its premise is kept, ‖δ‖ halves, and the skew is over ten times what Eq. 5 allows: δ turns towards the user.

    p = (1, 0), q = (0, 100), δ = (0, 1) and then (1/2, 0): σ = 1/2, C_1 = 1/2, C_2 = 1/4, p·δ = 0 in the first round.
    """
    user, local = torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 100.0]])
    *_, last = gaps(user, local, torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.0]]))
    assert (last.grown, last.fit) == (0, 1)
    assert last.allowed == pytest.approx(0.1 * 2 * 0.5)
    assert pytest.approx(last.allowed) == 0.1 * 0.5 / (1 - 0.5)  # Eq. 5 with γ = 1/2
    expected = 0.1 * torch.tensor([-0.25, 12.5 - 0.5]).norm().item()
    assert last.added == pytest.approx(expected)
    assert last.over == 1


def test_gaps_that_grow_are_counted():
    user, local = torch.tensor([1.0, 0.0]), torch.zeros(2, 2)
    first = torch.tensor([[0.1, 0.0], [0.0, 0.0]])
    second = torch.tensor([[0.05, 0.0], [0.0, 0.3]])
    *_, last = gaps(user, local, first, second)
    assert (last.grown, last.fit) == (0.5, 0)
    *_, last = gaps(user, local, first, second, 0.5 * second)
    assert (last.grown, last.fit) == (0, 0)
