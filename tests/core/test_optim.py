import pytest
import torch

from tacit.core.optim import Stacked

STEPS = [5, 5, 2, 2, 2, 0, 1]  # of each client; neighbours with the same number run together
RUNS = [(slice(0, 2), 5), (slice(2, 5), 2), (slice(5, 6), 0), (slice(6, 7), 1)]
SHAPES = {"table": (4, 3), "user": (1, 3), "scale": ()}
RATES = {"table": 0.05, "user": 0.01, "scale": 0.05}


def gradients(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [{n: torch.randn(len(STEPS), *s, generator=draw) for n, s in SHAPES.items()} for _ in range(max(STEPS))]


def start():
    draw = torch.Generator().manual_seed(42)
    return {n: torch.randn(len(STEPS), *s, generator=draw) for n, s in SHAPES.items()}


def one_at_a_time(kind, decay, grads):
    """torch's own optimiser, a client alone, only for the steps it takes."""
    out = start()
    for client, steps in enumerate(STEPS):
        leaves = {n: torch.nn.Parameter(x[client].clone()) for n, x in start().items()}
        groups = [{"params": [x], "lr": RATES[n]} for n, x in leaves.items()]
        optimiser = torch.optim.Adam(groups) if kind == "adam" else torch.optim.SGD(groups)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, decay)
        for step in range(steps):
            for n, x in leaves.items():
                x.grad = grads[step][n][client].clone()
            optimiser.step()
            schedule.step()
        for n, x in leaves.items():
            out[n][client] = x.detach()
    return out


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_stacked_steps_are_torchs_steps_of_each_client_alone(kind, decay):
    grads = gradients()
    leaves = start()
    optimiser = Stacked(leaves, kind, decay)
    for step in range(max(STEPS)):
        optimiser.step(grads[step], RATES, [run for run, steps in RUNS if step < steps])
    for name, expected in one_at_a_time(kind, decay, grads).items():
        torch.testing.assert_close(leaves[name], expected, atol=1e-6, rtol=1e-6)


def test_an_inactive_client_does_not_move_in_value_or_moments():
    leaves = start()
    optimiser = Stacked(leaves, "adam")
    grads = gradients()
    optimiser.step(grads[0], RATES, [slice(0, 5)])
    kept = {
        what: {n: x.clone() for n, x in state.items()}
        for what, state in (("leaves", leaves), ("first", optimiser.first), ("second", optimiser.second))
    }
    optimiser.step(grads[1], RATES, [slice(0, 2)])
    for what, state in (("leaves", leaves), ("first", optimiser.first), ("second", optimiser.second)):
        for name, value in state.items():
            assert torch.equal(value[2:], kept[what][name][2:])
            assert not torch.equal(value[:2], kept[what][name][:2])
    for name in SHAPES:
        assert torch.equal(leaves[name][5:], start()[name][5:])
        assert not optimiser.first[name][5:].any()
        assert not optimiser.second[name][5:].any()
        assert optimiser.taken[name] == [2, 2, 1, 1, 1, 0, 0]


def test_every_client_has_a_step_count_of_its_own():
    """A client that starts late is corrected for its own first step, not for the others'."""
    late, alone = start(), start()
    optimiser = Stacked(late, "adam")
    grads = gradients()
    optimiser.step(grads[0], RATES, [slice(0, 2)])
    optimiser.step(grads[1], RATES, [slice(0, 2), slice(2, 7)])
    Stacked(alone, "adam").step(grads[1], RATES, [slice(0, 7)])
    for name in SHAPES:
        torch.testing.assert_close(late[name][2:], alone[name][2:])


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_leaf_without_a_gradient_stays(kind):
    leaves = start()
    optimiser = Stacked(leaves, kind)
    optimiser.step({"user": gradients()[0]["user"]}, RATES, [slice(0, 7)])
    assert torch.equal(leaves["table"], start()["table"])
    assert not torch.equal(leaves["user"], start()["user"])
    assert not any(optimiser.taken["table"])


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("layout", ["transposed", "expanded", "strided"])
def test_the_memory_layout_of_a_gradient_does_not_matter(kind, layout):
    """Autograd hands out transposed and expanded gradients; the fused kernel reads plain memory."""
    draw = torch.Generator().manual_seed(0)
    grad = {
        "transposed": torch.randn(7, 3, 4, generator=draw).mT,
        "expanded": torch.randn(7, 1, 1, generator=draw).expand(7, 4, 3),
        "strided": torch.randn(7, 4, 6, generator=draw)[..., ::2],
    }[layout]
    assert not grad.is_contiguous()
    one, other = start(), start()
    for leaves, given in ((one, grad), (other, grad.contiguous())):
        optimiser = Stacked(leaves, kind)
        for _ in range(2):
            optimiser.step({"table": given}, RATES, [slice(0, 7)])
    torch.testing.assert_close(one["table"], other["table"])
