import math

import numpy as np
import pytest
import torch

from tacit.core.leaves import named
from tacit.core.local import local_round
from tacit.core.objective import gradient_of
from tacit.core.store import ClientStore
from tacit.methods.fedmf import FedMF
from tacit.methods.pfedclr import PFedCLR
from toys import few_clients

SMALL = {"dim": 4, "init": 0.3, "lr": 0.05, "buffer_lr": 0.02, "epochs": 1, "batch": 0, "optimizer": "sgd"}


def one_round(method, federation, ids):
    data = method.data(federation, ids, 1)
    down = method.downlink(method.init_server(federation), ids)
    store = ClientStore(method, federation)
    if "A" in store.leaves:  # a buffer that has seen a round already
        store.leaves["A"].copy_(0.1 * torch.randn(store.leaves["A"].shape, generator=torch.Generator().manual_seed(1)))
    own = store.read(data, training=True)
    kept, up, _ = local_round(method, own, down, data)
    return data, down, own, kept, up


def test_both_steps_by_hand():
    """One SGD step of Eq. 6 and one of Eq. 10 for one client, with the sums written out in NumPy."""
    method, federation = PFedCLR(**SMALL), few_clients(12)
    ids = torch.tensor([2])
    data, down, own, kept, up = one_round(method, federation, ids)
    p, A, B = (own[n][0].double().numpy() for n in ("user", "A", "B"))
    p = p[0]
    Q = down["items"].double().numpy().copy()
    samples = [(int(data.rows[0, r]), float(y)) for r, y in zip(data.row[0], data.label[0], strict=True)]
    n = len(samples)
    place = {int(i): k for k, i in enumerate(data.rows[0])}

    def sigma(x):
        return 1 / (1 + math.exp(-x))

    step = np.zeros_like(Q)
    for i, y in samples:
        step[i] += (sigma(p @ Q[i]) - y) * p / n
    Q -= 0.05 * step
    np.testing.assert_allclose(up["items"][0].numpy(), Q, atol=1e-6)

    dp, dA, dB = np.zeros_like(p), np.zeros_like(A), np.zeros_like(B)
    for i, y in samples:
        k = place[i]
        slope = (sigma(p @ (Q[i] + A[k] @ B)) - y) / n
        dp += slope * (Q[i] + A[k] @ B)
        dA[k] += slope * (B @ p)
        dB += slope * np.outer(A[k], p)
    np.testing.assert_allclose(kept["user"][0, 0].numpy(), p - 0.05 * dp, atol=1e-6)
    np.testing.assert_allclose(kept["A"][0].numpy(), A - 0.02 * dA, atol=1e-6)
    np.testing.assert_allclose(kept["B"][0].numpy(), B - 0.02 * dB, atol=1e-6)


@pytest.mark.parametrize("variant", ["clr", "cf", "af"])
def test_gradients_by_hand_are_those_of_autograd(variant):
    method, federation = PFedCLR(**SMALL | {"variant": variant}), few_clients(12)
    ids = torch.arange(5)
    data = federation.cohort(ids, 1, 4)
    p = method.receive(
        ClientStore(method, federation).read(data), method.downlink(method.init_server(federation), ids), data
    )
    noise = torch.Generator().manual_seed(0)
    p = {n: (x + 0.3 * torch.randn(x.shape, generator=noise)).requires_grad_() for n, x in p.items() if x.dim() > 1}
    names = [n for n in named(method.leaves(), "private") if variant != "af" or n != "user"]
    batch = next(iter(data.batches(1, 0, 0)))
    loss = method.loss(p, batch)
    expected = torch.autograd.grad(loss.sum(), [p[n] for n in names])
    with torch.no_grad():
        found = gradient_of(method.loss)(p, batch, names, {})
    torch.testing.assert_close(found[0], loss.detach())
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(found[1][name], gradient)


def test_the_upload_is_what_it_was_before_personalisation():
    """Whatever the buffer holds, and however it is trained, the upload does not change (Sec. 4.4)."""
    federation, ids = few_clients(12), torch.arange(6)
    ups = [one_round(PFedCLR(**SMALL | change), federation, ids)[4] for change in ({}, {"buffer_lr": 3.0}, {"rank": 1})]
    for other in ups[1:]:
        assert torch.equal(ups[0]["items"], other["items"])
    assert set(ups[0].fields) == {"items", "weight"}


def test_bytes_are_those_of_fedmf_and_the_buffer_is_small():
    federation, ids = few_clients(12), torch.arange(6)
    method = PFedCLR(**SMALL, rank=3)
    plain = FedMF(dim=4, epochs=1)
    _, down, _, _, up = one_round(method, federation, ids)
    _, plain_down, _, _, plain_up = one_round(plain, federation, ids)
    assert (down.nbytes(), up.nbytes()) == (plain_down.nbytes(), plain_up.nbytes())
    leaves, plain_leaves = ClientStore(method, federation).leaves, ClientStore(plain, federation).leaves
    extra = sum(leaves[n][0].numel() for n in named(method.leaves(), "private")) - sum(
        x[0].numel() for x in plain_leaves.values()
    )
    assert extra == (federation.n_items + method.dim) * method.rank


def test_without_a_buffer_rate_the_buffer_stays_and_the_user_moves():
    """β = 0 leaves A at zero: the table ranked with is Q_u (App. D.6)."""
    method, federation = PFedCLR(**SMALL | {"buffer_lr": 0.0}), few_clients(12)
    data = federation.cohort(torch.arange(6), 1, 4)
    down = method.downlink(method.init_server(federation), data.ids)
    own = ClientStore(method, federation).read(data, training=True)
    kept, _, _ = local_round(method, own, down, data)
    assert not kept["A"].any()
    assert torch.equal(kept["B"], own["B"])
    assert not torch.equal(kept["user"], own["user"])


def test_adaptation_trains_user_and_table_together_and_then_only_the_matrix():
    method, federation = PFedCLR(**SMALL | {"variant": "af"}), few_clients(12)
    plain = FedMF(dim=4, init=0.3, lr=0.05, table_lr=0.0, epochs=1, batch=0)
    ids = torch.arange(6)
    _, _, _, kept, up = one_round(method, federation, ids)
    _, _, _, plain_kept, plain_up = one_round(plain, federation, ids)
    torch.testing.assert_close(up["items"], plain_up["items"])
    torch.testing.assert_close(kept["user"], plain_kept["user"])
    assert kept["W"].any()
    assert not method.own_leaves(), "it ranks with the server's table, adapted"


def test_step_two_may_calibrate_on_what_the_server_sent():
    """One step of the user vector against Q_g + A_u B_u, whatever Step 1 has made of Q_u."""
    method, federation = PFedCLR(**SMALL | {"calibrated_on": "server", "table_lr": 3.0}), few_clients(12)
    data, down, own, kept, _ = one_round(method, federation, torch.tensor([2]))
    p, A, B = (own[n][0].double() for n in ("user", "A", "B"))
    table = down["items"].double()[data.rows[0]] + A @ B  # (L, d)
    rows = table[data.row[0]]
    slope = torch.sigmoid(rows @ p[0]) - data.label[0].double()
    torch.testing.assert_close(kept["user"][0, 0].double(), p[0] - 0.05 * (slope @ rows) / len(rows), atol=1e-6, rtol=0)
    plain = one_round(PFedCLR(**SMALL | {"table_lr": 3.0}), federation, torch.tensor([2]))
    assert not torch.allclose(plain[3]["user"], kept["user"], atol=1e-5)
