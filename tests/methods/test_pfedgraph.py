"""pFedGraph's equations against values computed on their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.objective import gradient_of
from tacit.core.trained import Trained
from tacit.errors import UserError
from tacit.methods import pfedgraph
from tacit.methods.pfedgraph import PFedGraph, gram, mix
from toys import few_clients

SMALL = PFedGraph(dim=4, epochs=2, batch=32, init=0.3)


@pytest.fixture(scope="module")
def federation():
    return few_clients(12)


def round_of(method, federation, ids=None):
    """(server before, after, fleet) of a first round."""
    fleet = SimulatedFleet(method, federation, threads=1)
    before = method.init_server(federation)
    ids = torch.arange(federation.n_clients) if ids is None else ids
    return before, method.aggregate(before, fleet.train(before, ids, 1, Traffic()), Moment(1, 0)), fleet


def drawn(clients=6, items=5, dim=3):
    noise = torch.Generator().manual_seed(1)
    return torch.randn(clients, items, dim, generator=noise), torch.randn(items, dim, generator=noise)


def test_the_graph_solves_its_quadratic_programme():
    tables, start = drawn()
    ids, weight = torch.tensor([0, 2, 3, 5]), torch.tensor([10.0, 40.0, 5.0, 20.0])
    graph = SMALL.graph({"tables": tables, "start": start}, {"ids": ids, "weight": weight})
    change = (tables[ids] - start).flatten(1).double().numpy()
    share = weight.double().numpy() / 75
    for i, mine in enumerate(change):
        cosine = change @ mine / np.linalg.norm(change, axis=1) / np.linalg.norm(mine)
        found = minimize(
            lambda w, c=cosine: 0.8 * (w @ w) - (c + 1.6 * share) @ w,  # as the authors' code writes it
            np.full(4, 0.25),
            method="SLSQP",
            bounds=[(0, None)] * 4,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        np.testing.assert_allclose(graph[i].numpy(), found.x, atol=1e-5)


def test_a_strong_prior_is_federated_averaging(federation):
    method = replace(SMALL, share=1.0, prior=1e9, proximity=0.0)
    _, after, _ = round_of(method, federation)
    plain = Trained(dim=4, epochs=2, batch=32, init=0.3)
    _, expected, _ = round_of(plain, federation)
    for table in after["tables"]:
        torch.testing.assert_close(table, expected["items"], atol=1e-5, rtol=1e-5)


def test_blocks_of_items_do_not_show(monkeypatch):
    tables, start = drawn()
    ids = torch.tensor([1, 4])
    change = (tables[ids] - start).flatten(1).double()
    monkeypatch.setattr(pfedgraph, "BLOCK", 2)
    torch.testing.assert_close(gram(tables, ids, start), change @ change.T)
    expected = tables.clone()
    expected[1] = 0.25 * tables[1] + 0.75 * (0.9 * tables[1] + 0.1 * tables[4])
    expected[4] = 0.25 * tables[4] + 0.75 * (0.4 * tables[1] + 0.6 * tables[4])
    mix(tables, ids, torch.tensor([[0.9, 0.1], [0.4, 0.6]]), 0.25)
    torch.testing.assert_close(tables, expected)
    everyone = torch.arange(len(tables))
    flat = tables.flatten(1).double()
    torch.testing.assert_close(gram(tables, everyone), flat @ flat.T)
    graph = torch.rand(len(tables), len(tables), generator=torch.Generator().manual_seed(0))
    mix(tables, everyone, graph)
    torch.testing.assert_close(tables.flatten(1).double(), graph.double() @ flat)


def test_only_a_share_of_those_who_came_is_mixed(federation):
    ids = torch.tensor([0, 2, 3, 5, 6, 7, 9, 11])
    alone = replace(SMALL, own=1.0, share=0.5)  # everybody keeps what training left
    before, trained, _ = round_of(alone, federation, ids)
    _, after, _ = round_of(replace(alone, own=0.0), federation, ids)
    same = [torch.equal(a, b) for a, b in zip(after["tables"], trained["tables"], strict=True)]
    assert sum(not x for x in same) == 4
    absent = torch.tensor([1, 4, 8, 10])
    assert torch.equal(after["tables"][absent], before["tables"][absent])
    assert all(same[i] for i in absent)
    came = list(SimulatedFleet(alone, federation, threads=1).train(before, ids, 1, Traffic()))
    picks = {tuple(alone.chosen(came, Moment(r, 0))["ids"].tolist()) for r in range(20)}
    assert len(picks) > 10  # another sample every round
    one = alone.chosen(came, Moment(1, 0))
    assert one["weight"].tolist() == [float(federation.sizes[i]) for i in one["ids"]]


def test_the_cosine_is_that_of_whole_tables(federation):
    method = SMALL
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    ids = torch.tensor([2, 7])
    data = federation.cohort(ids, 1, 4)
    p = method.receive(fleet.store.read(data), method.downlink(server, ids), data)
    moved = p | {"items": p["items"] + 0.1 * torch.randn_like(p["items"]) * data.real[..., None]}
    for c, client in enumerate(ids):
        whole = server["tables"][client].clone()
        real = data.real[c]
        whole[data.rows[c][real]] = moved["items"][c][real]
        cosine = torch.cosine_similarity(whole.flatten(), server["tables"][client].flatten(), dim=0)
        torch.testing.assert_close(method.closeness(moved)[0][c], cosine)
    batch = next(data.batches(0, 0, 32))
    far = method.bce(moved, moved["items"], batch)
    torch.testing.assert_close(method.loss(moved, batch), far - 0.01 * method.closeness(moved)[0])


@pytest.mark.parametrize("proximity", [0.0, 0.7])
def test_gradients_by_hand_are_autograd_s(federation, proximity):
    method = replace(SMALL, proximity=proximity)
    fleet = SimulatedFleet(method, federation, threads=1)
    data = federation.cohort(torch.arange(12), 1, 4)
    p = method.receive(fleet.store.read(data), method.downlink(method.init_server(federation), data.ids), data)
    noise = torch.Generator().manual_seed(3)
    p["items"] = p["items"] + torch.randn(p["items"].shape, generator=noise) * data.real[..., None]
    names = ["user", "items"]
    leaves = p | {n: p[n].clone().requires_grad_() for n in names}
    batch = next(data.batches(0, 0, 32))
    loss = method.loss(leaves, batch)
    expected = torch.autograd.grad(loss.sum(), [leaves[n] for n in names])
    mine, grads = gradient_of(method.loss)(p, batch, names, {})
    torch.testing.assert_close(mine, loss.detach())
    for name, grad in zip(names, expected, strict=True):
        torch.testing.assert_close(grads[name], grad)


def test_a_client_ranks_with_its_mixture(federation):
    _, after, fleet = round_of(replace(SMALL, share=1.0), federation)
    scores = torch.cat([block for _, block in fleet.scores(after, "test")])
    expected = (after["tables"] @ fleet.store.leaves["user"][:, :, None])[..., 0]
    torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_tables_that_are_no_longer_numbers_end_a_run_in_a_sentence(value):
    tables = torch.ones(3, 4, 2)
    tables[1, 2] = value
    with pytest.raises(UserError, match="training has diverged"):
        gram(tables, torch.arange(3))
