"""CoFedRec's steps against values computed on their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.objective import gradient_of
from tacit.core.payload import Each, Payload
from tacit.methods import cofedrec
from tacit.methods.alignment import alignment
from tacit.methods.cofedrec import CoFedRec, elbow, mean, similar
from toys import few_clients

SMALL = CoFedRec(dim=4, epochs=1, batch=32, table_lr=50.0, clusters=3, anchors=6)


@pytest.fixture(scope="module")
def federation():
    return few_clients(12)


def drawn(clients=6, items=8, dim=3, seed=0):
    return torch.randn(clients, items, dim, generator=torch.Generator().manual_seed(seed))


def aggregated(method, tables, round=3):
    """The server after these clients' tables came in."""
    before = {"tables": torch.zeros_like(tables), "labels": torch.zeros(tables.shape[1], dtype=torch.uint8)}
    return method.aggregate(before, [Payload(torch.arange(len(tables)), {"items": Each(tables)})], Moment(round, 0))


def test_the_elbow_is_farthest_from_the_line_between_the_ends():
    values = torch.tensor([10.0, 9.0, 8.5, 3.0, 2.0, 1.5, 1.0]).double()
    points = np.stack([np.arange(7), values.numpy()], 1)
    line = (points[-1] - points[0]) / np.linalg.norm(points[-1] - points[0])
    off = points - points[0]
    distance = np.linalg.norm(off - np.outer(off @ line, line), axis=1)
    assert elbow(values) == distance.argmax()
    assert elbow(torch.tensor([5.0, 5.0, 5.0])) == 0
    assert elbow(torch.tensor([5.0])) == 0


def test_similar_clients_are_those_before_the_elbow():
    one = drawn(1, 8, 3)[0]
    noise = drawn(6, 8, 3, seed=1)
    spread = torch.tensor([0.0, 0.02, 9.0, 0.01, 9.0, 9.0])[:, None, None]
    tables = torch.zeros(9, 8, 3)
    ids = torch.tensor([0, 2, 3, 5, 6, 8])
    tables[ids] = one + spread * noise
    items = torch.tensor([1, 4, 6])
    found = similar(tables, ids, torch.tensor(0), items)
    likeness = torch.cosine_similarity(tables[ids][:, items], one[items].expand(6, 3, 3), dim=2).sum(1)
    expected = likeness.argsort(descending=True)[: elbow(likeness.sort(descending=True).values) + 1]
    assert found.tolist() == expected.tolist()
    assert set(found.tolist()[:3]) == {0, 1, 3}


def test_items_are_clustered_by_the_mean_table():
    centre = torch.tensor([[4.0, 0, 0], [0, 4, 0], [0, 0, 4]])
    belongs = torch.tensor([0, 1, 2, 0, 1, 2, 2, 0])
    tables = centre[belongs] + 4.0 * drawn(400)  # one table alone shows nothing
    labels = aggregated(SMALL, tables)["labels"]
    assert labels.dtype == torch.uint8
    expected = KMeans(3, n_init=10, random_state=0).fit(tables.mean(0).numpy()).labels_
    same = labels[:, None] == labels
    assert np.array_equal(same.numpy(), expected[:, None] == expected)
    assert torch.equal(same, belongs[:, None] == belongs)


def test_a_group_shares_its_mean_and_the_others_keep_their_own(monkeypatch):
    monkeypatch.setattr(cofedrec, "BLOCK", 3)
    tables = drawn(20)
    after = aggregated(SMALL, tables)["tables"]
    moved = [i for i in range(20) if not torch.equal(after[i], tables[i])]
    assert 1 < len(moved) < 20
    for i in moved:
        torch.testing.assert_close(after[i], tables[moved].mean(0))
    torch.testing.assert_close(mean(tables, torch.tensor([1, 4])), tables[[1, 4]].mean(0))
    groups = {tuple((aggregated(SMALL, tables, r)["tables"] != tables).any(2).any(1).tolist()) for r in range(9)}
    assert len(groups) > 3  # another client or another kind of items every round


def test_absent_clients_keep_their_tables():
    tables = drawn(20)
    before = {"tables": drawn(25, seed=2), "labels": torch.zeros(8, dtype=torch.uint8)}
    came = torch.arange(5, 25)
    after = SMALL.aggregate(before, [Payload(came, {"items": Each(tables)})], Moment(1, 0))
    assert torch.equal(after["tables"][:5], before["tables"][:5])


def started(method, federation, round, ids=(2, 7, 9)):
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    server["labels"] = torch.arange(federation.n_items).remainder(3).to(torch.uint8)
    ids = torch.tensor(ids)
    data = federation.cohort(ids, round, 4, method.every_row)
    return data, method.receive(fleet.store.read(data), method.downlink(server, ids), data)


def test_the_contrast_joins_in_the_second_round(federation):
    data, p = started(SMALL, federation, 1)
    batch = next(data.batches(0, 0, 32))
    torch.testing.assert_close(SMALL.loss(p, batch), SMALL.bce(p, p["items"], batch))
    data, p = started(SMALL, federation, 2)
    batch = next(data.batches(0, 0, 32))
    extra = alignment(p["items"], p["labels"], 0.1, 0.5, p["anchors"])[0]
    torch.testing.assert_close(SMALL.loss(p, batch), SMALL.bce(p, p["items"], batch) + 0.005 * extra)
    every = replace(SMALL, anchors=0)
    data, p = started(every, federation, 2)
    extra = alignment(p["items"], p["labels"], 0.1, 0.5)[0]
    torch.testing.assert_close(every.loss(p, batch), SMALL.bce(p, p["items"], batch) + 0.005 * extra)


def test_anchors_are_drawn_anew_for_every_round_and_client(federation):
    _, second = started(SMALL, federation, 2)
    _, third = started(SMALL, federation, 3)
    assert second["anchors"].shape == (3, 6)
    assert not torch.equal(second["anchors"], third["anchors"])
    assert not torch.equal(second["anchors"][0], second["anchors"][1])
    _, alone = started(SMALL, federation, 2, ids=(7,))
    assert torch.equal(alone["anchors"][0], second["anchors"][1])
    assert int(second["anchors"].max()) < federation.n_items


@pytest.mark.parametrize("round", [1, 2])
@pytest.mark.parametrize("names", [["head", "bias"], ["items"]])
def test_gradients_by_hand_are_autograd_s(federation, round, names):
    method = replace(SMALL, strength=0.7)
    data, p = started(method, federation, round)
    leaves = p | {n: p[n].clone().requires_grad_() for n in names}
    batch = next(data.batches(0, 0, 32))
    loss = method.loss(leaves, batch)
    expected = torch.autograd.grad(loss.sum(), [leaves[n] for n in names])
    found, grads = gradient_of(method.loss)(p, batch, names, {})
    if "items" in names:  # a step of the head does not compute what it cannot move
        torch.testing.assert_close(found, loss.detach())
    for name, grad in zip(names, expected, strict=True):
        torch.testing.assert_close(grads[name], grad)


def test_a_client_ranks_with_the_group_s_table(federation):
    fleet = SimulatedFleet(SMALL, federation, threads=1)
    server = SMALL.init_server(federation)
    server = SMALL.aggregate(server, fleet.train(server, torch.arange(12), 1, Traffic()), Moment(1, 0))
    scores = torch.cat([block for _, block in fleet.scores(server, "test")])
    head, bias = fleet.store.leaves["head"], fleet.store.leaves["bias"]
    torch.testing.assert_close(scores, (server["tables"] @ head[:, :, None])[..., 0] + bias)
