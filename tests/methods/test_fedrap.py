import math

import numpy as np
import pytest
import torch

from tacit.core.local import local_round
from tacit.core.method import Moment
from tacit.core.objective import gradient_of
from tacit.core.store import ClientStore
from tacit.methods.fedrap import FedRAP
from toys import few_clients

SMALL = {"dim": 4, "init": 0.3, "lr": 0.5, "table_lr": 20.0, "independence": 0.2, "sparsity": 0.1, "epochs": 1}


def prepared(method, federation, ids, round=4):
    data = federation.cohort(ids, round, method.negatives)
    down = method.downlink(method.init_server(federation), ids)
    return data, down, ClientStore(method, federation).read(data, training=True)


def test_one_step_by_hand():
    """BCE − λ_a·MSE(D, C) + μ_a·mean|C| over the samples of a batch, written out in NumPy, in the fourth round."""
    method, federation = FedRAP(**SMALL, batch=0), few_clients(12)
    data, down, own = prepared(method, federation, torch.tensor([2]))
    kept, up, loss = local_round(method, own, down, data)
    w, b = own["head"][0, 0].double().numpy(), own["bias"][0, 0, 0].item()
    C, D = down["items"].double().numpy(), np.zeros((federation.n_items, 4))
    D[data.rows[0].numpy()] = own["personal"][0].double().numpy()
    samples = [(int(data.rows[0, r]), float(y)) for r, y in zip(data.row[0], data.label[0], strict=True)]
    n, in_force = len(samples), math.tanh(3 / 10)
    lam, mu = 0.2 * in_force, 0.1 * in_force
    total, db, dw = 0.0, 0.0, np.zeros(4)
    dC, dD = np.zeros_like(C), np.zeros_like(C)
    for i, y in samples:
        chance = 1 / (1 + math.exp(-(w @ (C[i] + D[i]) + b)))
        total -= math.log(chance if y else 1 - chance)
        total += mu * np.abs(C[i]).mean() - lam * ((D[i] - C[i]) ** 2).mean()
        dw += (chance - y) / n * (C[i] + D[i])
        db += (chance - y) / n
        dC[i] += ((chance - y) * w + lam * 2 * (D[i] - C[i]) / 4 + mu * np.sign(C[i]) / 4) / n
        dD[i] += ((chance - y) * w - lam * 2 * (D[i] - C[i]) / 4) / n
    fall = 0.97**3
    assert loss.item() == pytest.approx(total / n, rel=1e-5)
    np.testing.assert_allclose(kept["head"][0, 0].numpy(), w - fall * 0.5 * dw, atol=1e-6)
    np.testing.assert_allclose(kept["bias"][0, 0].numpy(), [b - fall * 0.5 * db], atol=1e-6)
    np.testing.assert_allclose(up["items"][0].numpy(), C - fall * 20 * dC, atol=1e-5)
    rows = data.rows[0].numpy()
    np.testing.assert_allclose(kept["personal"][0].numpy(), (D - fall * 20 * dD)[rows], atol=1e-5)


def test_gradients_by_hand_are_those_of_autograd():
    method, federation = FedRAP(**SMALL), few_clients(12)
    data, down, own = prepared(method, federation, torch.arange(5))
    noise = torch.Generator().manual_seed(0)
    p = method.receive(own, down, data)
    names = ("head", "bias", "items", "personal")
    p |= {n: (p[n] + 0.3 * torch.randn(p[n].shape, generator=noise)).requires_grad_() for n in names}
    scratch = {}
    for batch in data.batches(0, 0, 40):
        loss = method.loss(p, batch)
        expected = torch.autograd.grad(loss.sum(), [p[n] for n in names])
        with torch.no_grad():
            found, grads = gradient_of(method.loss)(p, batch, names, scratch)
        torch.testing.assert_close(found, loss.detach())
        for name, gradient in zip(names, expected, strict=True):
            torch.testing.assert_close(grads[name], gradient)


def test_pairs_have_the_loss_of_the_rows():
    """A client of many users names its pairs: the same samples, the same terms."""
    method, federation = FedRAP(**SMALL), few_clients(12, groups=3)
    data, down, own = prepared(method, federation, torch.arange(3))
    p = method.receive(own, down, data)
    (batch,) = data.batches(0, 0, 0)
    for c in range(3):
        n = int(data.samples[c])
        rows = data.row[c, :n]
        C, D = p["items"][c, rows], p["personal"][c, rows]
        expected = math.tanh(0.3) * (0.1 * C.abs().mean() - 0.2 * (D - C).square().mean())
        torch.testing.assert_close(method.terms(p, batch)[c], expected)


@pytest.mark.parametrize(("anneal", "expected"), [(True, [0.0, math.tanh(0.1), math.tanh(0.9)]), (False, [1.0] * 3)])
def test_the_terms_are_let_in_by_and_by_or_at_once(anneal, expected):
    method, federation = FedRAP(**SMALL, anneal=anneal), few_clients(12)
    for round, value in zip((1, 2, 10), expected, strict=True):
        data, down, own = prepared(method, federation, torch.arange(2), round)
        torch.testing.assert_close(method.receive(own, down, data)["progress"], torch.full((2,), value))


def test_rates_fall_with_steps_and_rounds():
    (first,), (third,) = FedRAP().phases(1), FedRAP().phases(3)
    assert first.decay == third.decay == 0.95
    assert first.turns[0] == {"head": 1e-4, "bias": 1e-4, "items": 1000.0, "personal": 1000.0}
    assert third.turns[0]["items"] == pytest.approx(1000 * 0.97**2)
    assert third.turns[0]["head"] == pytest.approx(1e-4 * 0.97**2)
    assert FedRAP(personal_lr=5.0).phases(1)[0].turns[0] == first.turns[0] | {"personal": 5.0}


def test_a_client_ranks_with_the_servers_table_and_its_own():
    method, federation = FedRAP(**SMALL), few_clients(12)
    ids = torch.arange(12)
    data, down, own = prepared(method, federation, ids)
    kept, up, _ = local_round(method, own, down, data)
    assert set(up.fields) == {"items", "weight"}
    server = method.aggregate(method.init_server(federation), iter([up]), Moment(1, 0))
    torch.testing.assert_close(server["items"], up["items"].mean(0))
    store = ClientStore(method, federation)
    store.write(data, kept)
    people = federation.people(ids)
    p = method.serve(store.read(people), method.downlink(server, ids), people, "test")
    table = server["items"] + store.leaves["personal"]
    expected = torch.einsum("cmd,cd->cm", table, kept["head"][:, 0]) + kept["bias"][:, 0]
    torch.testing.assert_close(method.score(p, method.view(p))[:, 0], expected)
