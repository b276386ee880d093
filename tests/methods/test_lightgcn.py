import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet
from tacit.core.store import ClientStore
from tacit.data.cohort import Batch
from tacit.methods.lightgcn import FedLightGCN, LightGCN, graph, propagate, squares
from tacit.testing import mixed_clients
from toys import few_clients


def adjacency(federation, users, items, elsewhere=0.0):
    """D^(−½) A D^(−½) over these users and items of one client, users first, in plain NumPy."""
    A = np.zeros((len(users) + len(items),) * 2)
    place = {item: len(users) + n for n, item in enumerate(items)}
    for n, user in enumerate(users):
        for item in federation.split.train[user]:
            A[n, place[item]] = A[place[item], n] = 1
    degree = A.sum(0)
    degree[len(users) :] += elsewhere
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
    return A * scale * scale[:, None]


def layers_mean(A, e, layers):
    """(1 / (K + 1)) Σ_k Aᵏ e."""
    return sum(np.linalg.matrix_power(A, k) @ e for k in range(layers + 1)) / (layers + 1)


def by_client(federation, data, c, elsewhere=0.0):
    users = [u for u in data.users[c].tolist() if u >= 0]
    items = data.rows[c][data.real[c]].tolist()
    return users, items, adjacency(federation, users, items, elsewhere)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("elsewhere", [0.0, 7.5])
@pytest.mark.parametrize("make", [mixed_clients, lambda: few_clients(9), lambda: few_clients(9, groups=1)])
def test_every_client_propagates_over_its_own_graph(make, elsewhere, layers, sampled):
    federation = make()
    ids = torch.arange(federation.n_clients)
    data = federation.cohort(ids, 1, 2) if sampled else federation.people(ids)
    draw = torch.Generator().manual_seed(0)
    users = torch.randn(*data.users.shape, 3, generator=draw)
    items = torch.randn(*data.rows.shape, 3, generator=draw)
    found_users, found_items = propagate(users, items, **graph(data, elsewhere), layers=layers)
    for c in range(federation.n_clients):
        mine, rows, A = by_client(federation, data, c, elsewhere)
        expected = layers_mean(A, torch.cat([users[c, : len(mine)], items[c, : len(rows)]]).double().numpy(), layers)
        np.testing.assert_allclose(found_users[c, : len(mine)].numpy(), expected[: len(mine)], atol=1e-5)
        np.testing.assert_allclose(found_items[c, : len(rows)].numpy(), expected[len(mine) :], atol=1e-5)


def test_a_star_by_hand():
    """User u with n items: the layers of the user are u, s, u and those of an item e, u/√n, s/√n, with s = Σ e / √n."""
    federation = few_clients(3)
    data = federation.people(torch.tensor([1]))
    touched = torch.from_numpy(federation.split.train[1])
    n = len(touched)
    user, items = torch.randn(1, 1, 5), torch.randn(1, federation.n_items, 5)
    s = items[0, touched].sum(0) / n**0.5
    found_user, found_items = propagate(user, items, **graph(data), layers=2)
    torch.testing.assert_close(found_user[0, 0], (2 * user[0, 0] + s) / 3)
    torch.testing.assert_close(found_items[0, touched], (items[0, touched] + (user[0, 0] + s) / n**0.5) / 3)
    other = torch.ones(federation.n_items, dtype=torch.bool)
    other[touched] = False
    torch.testing.assert_close(found_items[0, other], items[0, other] / 3)


def test_gradients_run_back_over_the_graph():
    federation = mixed_clients()
    data = federation.cohort(torch.arange(federation.n_clients), 1, 1)
    made = graph(data)
    draw = torch.Generator().manual_seed(1)
    users = torch.randn(*data.users.shape, 3, generator=draw).requires_grad_()
    items = torch.randn(*data.rows.shape, 3, generator=draw).requires_grad_()
    up_users, up_items = torch.randn(users.shape, generator=draw), torch.randn(items.shape, generator=draw)
    found = torch.autograd.grad(propagate(users, items, **made, layers=3), [users, items], [up_users, up_items])
    A, At = made["to_users"].to_dense(), made["to_items"].to_dense()
    assert torch.equal(A.T, At)
    u, i = users.flatten(0, 1), items.flatten(0, 1)
    total_u, total_i = u, i
    for _ in range(3):
        u, i = A @ i, A.T @ u
        total_u, total_i = total_u + u, total_i + i
    expected = torch.autograd.grad(
        [total_u.view(users.shape) / 4, total_i.view(items.shape) / 4], [users, items], [up_users, up_items]
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("objective", ["bpr", "bce"])
@pytest.mark.parametrize("groups", [0, 3])
def test_the_loss_is_the_written_one(objective, groups):
    federation = few_clients(8, groups=groups)
    method = FedLightGCN(dim=4, layers=2, objective=objective, l2=0.3, negatives=2, init=0.5)
    data = federation.cohort(torch.arange(federation.n_clients), 1, method.negatives)
    down = method.downlink(method.init_server(federation), data.ids)
    p = method.receive(ClientStore(method, federation).read(data), down, data)
    (batch, *_) = data.batches(0, 0, 12, ranked=objective == "bpr")
    found = method.loss(p, batch)
    for c in range(federation.n_clients):
        mine, rows, A = by_client(federation, data, c, method.elsewhere)
        start = torch.cat([p["user"][c, : len(mine)], p["items"][c, : len(rows)]]).double().numpy()
        last = layers_mean(A, start, 2)
        score = last[: len(mine)] @ last[len(mine) :].T
        norm = (start**2).sum(1)
        total = 0.0
        for slot, row, other, label in explicit(batch, c):
            z = score[slot, row] - (score[slot, other] if other is not None else 0)
            total -= np.log(1 / (1 + np.exp(-z if label else z)))
            rival = 0.0 if other is None else norm[len(mine) + other]
            total += 0.15 * (norm[slot] + norm[len(mine) + row] + rival)
        assert float(found[c]) == pytest.approx(total / len(explicit(batch, c)), abs=1e-5)


def explicit(batch, c):
    """(slot, row, rival, label) of each sample of client c."""
    if batch.count is not None:
        out = []
        for row, (n, k) in enumerate(zip(batch.count[c, 0].tolist(), batch.positive[c, 0].tolist(), strict=True)):
            out += [(0, row, None, True)] * int(k) + [(0, row, None, False)] * int(n - k)
        return out
    there = batch.mask[c].nonzero().flatten().tolist()
    slot = [0 if batch.slot is None else int(batch.slot[c, n]) for n in there]
    row = batch.row[c][there].tolist()
    if batch.rival is not None:
        return [(s, r, o, True) for s, r, o in zip(slot, row, batch.rival[c][there].tolist(), strict=True)]
    return [(s, r, None, bool(y)) for s, r, y in zip(slot, row, batch.label[c][there].tolist(), strict=True)]


def test_squares_count_a_vector_as_often_as_it_occurs():
    users, items = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[3.0], [4.0]]])
    batch = Batch(
        size=torch.tensor([2.0]),
        active=torch.tensor([True]),
        runs=[],
        slot=torch.tensor([[0, 1, 1]]),
        row=torch.tensor([[0, 0, 1]]),
        rival=torch.tensor([[1, 1, 1]]),
        mask=torch.tensor([[True, True, False]]),
    )
    assert squares(users, items, batch).item() == ((1 + 9 + 16) + (4 + 9 + 16)) / 2


def test_a_user_is_ranked_over_the_whole_graph_of_its_client():
    federation = few_clients(12, groups=1)
    method = LightGCN(dim=4, layers=2)
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    users, items = list(range(12)), list(range(federation.n_items))
    start = torch.cat([fleet.store.leaves["user"], server["items"]]).double().numpy()
    last = layers_mean(adjacency(federation, users, items), start, 2)
    expected = last[:12] @ last[12:].T
    for user in (0, 7):
        np.testing.assert_allclose(fleet.scores_of(server, user, "test").numpy(), expected[user], atol=1e-5)


def test_the_graph_is_as_large_as_the_interactions():
    federation = few_clients(40, groups=1)
    made = graph(federation.people(torch.tensor([0])))
    assert made["to_users"].values().numel() == int(federation.sizes.sum())
