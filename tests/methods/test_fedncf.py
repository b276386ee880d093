import pytest
import torch
from torch import nn

from tacit.core.leaves import named
from tacit.core.method import spread
from tacit.core.payload import Shared
from tacit.methods.fedncf import FedNCF
from toys import few_clients

CLIENTS, USERS, ROWS = 3, 2, 7


def leaves(method, seed=0, users=USERS):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(CLIENTS, *shape, generator=draw)

    p = {"user": normal(users, method.dim), "items": normal(ROWS, method.dim)}
    widths = (2 * method.dim, *method.layers, 1)
    for n in range(len(widths) - 1):
        p |= {f"w{n}": normal(widths[n], widths[n + 1]), f"b{n}": normal(widths[n + 1])}
    return p


def perceptron(method, p, client):
    """The client's network as plain torch modules."""
    widths = (2 * method.dim, *method.layers, 1)
    parts = []
    for n in range(len(widths) - 1):
        linear = nn.Linear(widths[n], widths[n + 1])
        linear.weight.data, linear.bias.data = p[f"w{n}"][client].T.clone(), p[f"b{n}"][client].clone()
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


@pytest.mark.parametrize("layers", [(6, 5, 4), (6,), ()])
def test_the_score_is_a_perceptron_over_each_pair(layers):
    method = FedNCF(dim=4, layers=layers)
    p = leaves(method)
    scores = method.score(p, p["items"])
    assert scores.shape == (CLIENTS, USERS, ROWS)
    for c in range(CLIENTS):
        network = perceptron(method, p, c)
        for u in range(USERS):
            for row in range(ROWS):
                expected = network(torch.cat([p["user"][c, u], p["items"][c, row]])).item()
                assert scores[c, u, row].item() == pytest.approx(expected, abs=1e-4, rel=1e-4)


@pytest.mark.parametrize("layers", [(6, 5), ()])
def test_score_and_pairs_agree_with_their_gradients(layers):
    method = FedNCF(dim=4, layers=layers)
    p = {n: x.requires_grad_() for n, x in leaves(method).items()}
    draw = torch.Generator().manual_seed(1)
    slot, row = torch.randint(USERS, (CLIENTS, 9), generator=draw), torch.randint(ROWS, (CLIENTS, 9), generator=draw)
    pairs = method.pairs(p, p["items"], slot, row)
    picked = method.score(p, p["items"])[torch.arange(CLIENTS)[:, None], slot, row]
    torch.testing.assert_close(pairs, picked, atol=1e-5, rtol=1e-4)
    upstream = torch.randn(CLIENTS, 9, generator=draw)
    for one, other in zip(
        torch.autograd.grad(pairs, list(p.values()), upstream),
        torch.autograd.grad(picked, list(p.values()), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_table_and_perceptron_are_shared_and_the_user_is_not():
    method = FedNCF(layers=(8, 4))
    assert named(method.leaves(), "shared") == ("items", "w0", "b0", "w1", "b1", "w2", "b2")
    assert named(method.leaves(), "private") == ("user",)


def test_weights_start_with_the_variance_of_he_and_biases_at_zero():
    federation = few_clients(5)
    server = FedNCF(dim=64, layers=(256, 128), init=0.05).init_server(federation)
    assert set(server) == set(named(FedNCF(layers=(256, 128)).leaves(), "shared"))
    assert server["w0"].shape == (128, 256)
    assert server["w2"].shape == (128, 1)
    assert server["w0"].std().item() == pytest.approx((2 / 128) ** 0.5, rel=0.02)
    assert server["w1"].std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.02)
    assert not any(server[f"b{n}"].any() for n in range(3))
    assert server["items"].std().item() == pytest.approx(0.05, rel=0.05)


def test_every_client_starts_from_the_servers_network():
    federation = few_clients(5)
    method = FedNCF(dim=4, layers=(6,))
    server = method.init_server(federation)
    data = federation.cohort(torch.tensor([2, 4]), 1, 4)
    p = method.receive({}, method.downlink(server, data.ids), data)
    assert torch.equal(p["w0"], spread(Shared(server["w0"]), data, table=False))
    for c in range(2):
        assert torch.equal(p["w0"][c], server["w0"])
        assert torch.equal(p["items"][c], server["items"][data.rows[c]])
