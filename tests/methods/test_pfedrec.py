import math

import numpy as np
import pytest
import torch

from tacit.core.local import local_round
from tacit.core.method import Moment
from tacit.core.store import ClientStore
from tacit.methods.pfedrec import PFedRec
from toys import few_clients

SMALL = {"dim": 4, "init": 0.3, "lr": 0.5, "table_lr": 20.0}


def one_round(method, federation, ids):
    data = federation.cohort(ids, 1, method.negatives)
    down = method.downlink(method.init_server(federation), ids)
    own = ClientStore(method, federation).read(data, training=True)
    kept, up, loss = local_round(method, own, down, data)
    return data, down, own, kept, up, loss


def test_a_batch_moves_the_head_and_then_the_table_by_hand():
    """Algorithm 1 for one client and one batch of everything, with the sums written out in NumPy."""
    method, federation = PFedRec(**SMALL, batch=0), few_clients(12)
    data, down, own, kept, up, loss = one_round(method, federation, torch.tensor([2]))
    w, b = own["head"][0, 0].double().numpy(), own["bias"][0, 0, 0].item()
    Q = down["items"].double().numpy()
    samples = [(int(data.rows[0, r]), float(y)) for r, y in zip(data.row[0], data.label[0], strict=True)]

    def slope(i, y):
        return (1 / (1 + math.exp(-(w @ Q[i] + b))) - y) / len(samples)

    dw, db = sum(slope(i, y) * Q[i] for i, y in samples), sum(slope(i, y) for i, y in samples)
    w, b = w - 0.5 * dw, b - 0.5 * db
    np.testing.assert_allclose(kept["head"][0, 0].numpy(), w, atol=1e-6)
    np.testing.assert_allclose(kept["bias"][0, 0].numpy(), [b], atol=1e-6)

    chances = [(1 / (1 + math.exp(-(w @ Q[i] + b))), y) for i, y in samples]
    expected = -sum(math.log(s if y else 1 - s) for s, y in chances) / len(samples)
    assert loss.item() == pytest.approx(expected, rel=1e-5)  # as the table's step finds it

    dQ = np.zeros_like(Q)
    for i, y in samples:
        dQ[i] += slope(i, y) * w  # with the head that has just moved
    np.testing.assert_allclose(up["items"][0].numpy(), Q - 20.0 * dQ, atol=1e-5)


def test_everyone_starts_with_the_same_head_and_counts_the_same():
    method, federation = PFedRec(**SMALL), few_clients(12)
    store = ClientStore(method, federation)
    assert (store.leaves["head"] == store.leaves["head"][0]).all()
    assert (store.leaves["bias"] == store.leaves["bias"][0]).all()
    assert store.leaves["head"][0].abs().max() <= 1 / math.sqrt(4)
    assert len(store.leaves["head"][0].unique()) == 4
    *_, up, _ = one_round(method, federation, torch.arange(12))
    after = method.aggregate(method.init_server(federation), iter([up]), Moment(1, 0))
    torch.testing.assert_close(after["items"], up["items"].mean(0))
    assert set(up.fields) == {"items", "weight"}


def test_a_client_ranks_with_its_own_head_and_table():
    method, federation = PFedRec(**SMALL), few_clients(12)
    ids = torch.arange(12)
    data, down, _, kept, up, _ = one_round(method, federation, ids)
    store = ClientStore(method, federation)
    store.write(data, kept)
    people = federation.people(ids)
    p = method.serve(store.read(people), method.downlink({"items": 0 * down["items"]}, ids), people, "test")
    expected = torch.einsum("cmd,cd->cm", up["items"], kept["head"][:, 0]) + kept["bias"][:, 0]
    torch.testing.assert_close(method.score(p, method.view(p))[:, 0], expected)
