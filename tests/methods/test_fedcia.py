from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit import testing
from tacit.config import build
from tacit.core.capabilities import refined
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.leaves import named
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Product
from tacit.core.store import ClientStore
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.methods.fedcia import FedCIA
from tacit.methods.gfcf import graph_filter, leading
from tacit.methods.similarity import aligned, descended, leading_factor, local_filter, truncated, truncated_product
from toys import few_clients, few_users

SMALL = {"dim": 8, "epochs": 1, "batch": 64, "lr": 0.005, "init": 0.1}


def made(**settings):
    fields = refined(FedCIA, settings).__dataclass_fields__
    return build(FedCIA, {n: x for n, x in SMALL.items() if n in fields} | settings)


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.double)


@pytest.mark.parametrize(
    "settings",
    [
        {"backbone": "lightgcn"},
        {"backbone": "mlp", "layers": (8, 4), "optimizer": "sgd"},
        {"backbone": "gfcf"},
        {"backbone": "gfcf", "rank": 3},
        {"rank": 4},
        {"align_steps": 2, "align_lr": 0.01},
        {"aggregation": "mean"},
        {"aggregation": "mean", "backbone": "mlp", "layers": (8, 4), "widths": (4, 8), "optimizer": "sgd"},
        {"aggregation": "graph"},
        {"aggregation": "alone"},
        {"widths": (2, 4, 8)},
        {"models": ("mf", "lightgcn", "mlp"), "layers": (8, 4), "optimizer": "sgd"},
    ],
)
def test_every_backbone_and_aggregation_conforms(settings):
    testing.check_all(made(**settings))


def test_theorem_1_the_mean_of_local_filters_is_the_global_one_when_items_are_equally_popular():
    """Up to the one number by which popularity differs from the number of users, which no ranking sees."""
    users, popularity = 12, 4
    history = torch.zeros(users, 9)
    for item in range(9):  # every item has `popularity` users, users have different numbers of items
        for step in range(popularity):
            history[(item * 5 + step * (1 + item % 2)) % users, item] = 1
    assert (history.sum(0) == popularity).all()
    each = [local_filter(history[u].view(1, 1, -1), 0, 0.0) for u in range(users)]
    mean = sum((left @ right.mT)[0] for left, right in each) / users
    whole = local_filter(history[None], 0, 0.0)
    together = (whole[0] @ whole[1].mT)[0]
    torch.testing.assert_close(mean, together * popularity / users)


def test_the_local_filter_is_gfcf_on_the_clients_own_users():
    history = (torch.rand(2, 5, 9, generator=torch.Generator().manual_seed(1)) < 0.4).float()
    left, right = local_filter(history, 3, 0.3)
    for c in range(2):
        each = history[c] / history[c].sum(1, keepdim=True).clamp(min=1).sqrt()
        gram = each.T @ each
        expected = graph_filter(gram, leading(gram, 3), 0.3)
        torch.testing.assert_close(left[c] @ right[c].T, expected, atol=1e-5, rtol=1e-4)


def test_alignment_solves_equation_6_in_the_nearest_rotation():
    """No descent from the solution finds a better fit, and no other rotation of it is nearer."""
    target = draw(9, 9)
    similarity = target @ target.T
    factor = leading_factor(similarity, 9).double()
    table, everything = draw(1, 9, 3), torch.ones(1, 3)
    found = aligned(table.float(), factor.float(), everything, 1.0).double()[0]
    values, vectors = torch.linalg.eigh(similarity)
    best = vectors[:, -3:] * values[-3:] @ vectors[:, -3:].T  # Eckart and Young
    torch.testing.assert_close(found @ found.T, best, atol=1e-3, rtol=1e-3)
    near = (found - table[0]).norm()
    noise = torch.Generator().manual_seed(0)
    for _ in range(50):
        other = torch.linalg.qr(torch.randn(3, 3, generator=noise, dtype=torch.double))[0]
        assert (found @ other - table[0]).norm() >= near - 1e-6
    half = aligned(table.float(), factor.float(), everything, 0.5)[0].double()
    torch.testing.assert_close(half, 0.5 * table[0] + 0.5 * found, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rank", [4, 9])
def test_the_descent_is_that_of_autograd_on_the_norm(rank):
    """The public code's: plain gradient steps on ‖Q Qᵀ − C‖_F, towards all of C or a part of it."""
    target = draw(9, 9)
    factor = leading_factor(target @ target.T, rank).double()
    table = draw(2, 9, 3)
    found = descended(table, factor, 5, 0.1)
    for c in range(2):
        own = table[c]
        for _ in range(5):
            own = own.detach().requires_grad_()
            torch.linalg.norm(own @ own.T - factor @ factor.T).backward()
            own = own - 0.1 * own.grad
        torch.testing.assert_close(found[c], own.detach(), atol=1e-5, rtol=1e-5)


def trained(method, federation, rounds=2):
    """The fleet and the server's state after some rounds of everybody."""
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    everyone = torch.arange(federation.n_clients)
    for round in range(1, rounds + 1):
        server = method.aggregate(server, fleet.train(server, everyone, round, Traffic()), Moment(round, 0))
    return fleet, server


def scores_of(fleet, server):
    """Everybody's scores by user."""
    blocks = list(fleet.scores(server, "test"))
    return dict(zip(torch.cat([u for u, _ in blocks]).tolist(), torch.cat([s for _, s in blocks]), strict=True))


@pytest.mark.parametrize("aggregation", ["mean", "graph"])
def test_who_averages_tables_ranks_with_the_one_it_downloads(aggregation):
    """The paper evaluates after the download; `scored_with=own` ranks with what training left."""
    federation = Federation.of_groups(split(few_users(12), "strict"), 3)
    for scored_with in ("server", "own"):
        fleet, server = trained(made(aggregation=aggregation, scored_with=scored_with), federation)
        server = {"items": server["items"] + draw(*server["items"].shape).float()}  # the newest
        tables = server["items"].expand(3, -1, -1) if scored_with == "server" else fleet.store.leaves["items"]
        scores = scores_of(fleet, server)
        for client in range(3):
            for user in federation.members[client].tolist():
                torch.testing.assert_close(scores[user], tables[client] @ fleet.store.leaves["user"][user])


@pytest.mark.parametrize("steps", [0, 30])
def test_clients_rank_after_their_alignment(steps):
    """Solved or descended to: the scores are those of items fitted to the newest C_s (Algorithm 1, line 17)."""
    federation = Federation.of_groups(split(few_users(12), "strict"), 3)
    method = made(align_steps=steps, align_lr=0.01)
    fleet, server = trained(method, federation)
    scores = scores_of(fleet, server)
    own, whole = fleet.store.leaves["items"], leading_factor(server["similarity"], federation.n_items)
    fitted = descended(own, whole, steps, 0.01) if steps else aligned(own, whole, torch.ones(3, 8), 1.0)
    assert all(
        (x @ x.T - whole @ whole.T).norm() < (q @ q.T - whole @ whole.T).norm()
        for x, q in zip(fitted, own, strict=True)
    )
    for client in range(3):
        for user in federation.members[client].tolist():
            expected = fitted[client] @ fleet.store.leaves["user"][user]
            torch.testing.assert_close(scores[user], expected, atol=1e-4, rtol=1e-3)


def test_truncated_factors_are_the_best_of_their_rank():
    table = draw(2, 9, 5)
    short = truncated(table, 2)
    for c in range(2):
        u, s, v = torch.linalg.svd(table[c] @ table[c].T)
        torch.testing.assert_close(short[c] @ short[c].T, u[:, :2] * s[:2] @ v[:2])
    assert truncated(table, 7).shape == (2, 9, 7)
    torch.testing.assert_close(truncated(table, 7) @ truncated(table, 7).mT, table @ table.mT)
    left, right = draw(2, 9, 4), draw(2, 9, 4).flip(1)
    one, other = truncated_product(left, right, 2)
    for c in range(2):
        u, s, v = torch.linalg.svd(left[c] @ right[c].T)
        torch.testing.assert_close(one[c] @ other[c].T, u[:, :2] * s[:2] @ v[:2])


def test_the_server_averages_similarities():
    method, tables = made(), draw(3, 60, 8).float()
    federation = few_clients(6)
    tables = draw(3, federation.n_items, 8).float()
    server = method.init_server(federation)
    weight = Each(torch.ones(3))
    up = Payload(torch.arange(3), {"similarity": Product(tables, tables), "weight": weight})
    mean = method.aggregate(server, iter([up]), Moment(1, 0))["similarity"]
    torch.testing.assert_close(mean, (tables @ tables.mT).mean(0), atol=1e-5, rtol=1e-5)
    factor = leading_factor(mean, 24)  # three tables of width 8 have no more directions
    torch.testing.assert_close(factor @ factor.T, mean, atol=1e-4, rtol=1e-4)
    short = replace(method, rank=8)
    up = Payload(torch.arange(3), {"similarity": Each(truncated(tables, 8)), "weight": weight})
    torch.testing.assert_close(short.aggregate(server, iter([up]), Moment(1, 0))["similarity"], mean)
    sent = short.downlink({"similarity": mean}, torch.arange(3))
    assert sent["factor"].shape == (federation.n_items, 8)


def test_bytes_of_whole_matrices_and_of_factors():
    federation = few_clients(6)
    for rank, up, down in ((0, federation.n_items, federation.n_items), (3, 3, 3)):
        method, traffic = made(rank=rank), Traffic()
        fleet = SimulatedFleet(method, federation, threads=1)
        list(fleet.train(method.init_server(federation), torch.arange(6), 1, traffic))
        assert traffic.bytes_up == 6 * (4 * federation.n_items * up + 4)
        assert traffic.bytes_down == 6 * 4 * federation.n_items * down


def test_items_never_leave_and_widths_are_kept():
    """Of different widths the columns a client does not have stay zero, through training and alignment."""
    method = made(widths=(2, 5, 8))
    federation = Federation.of_groups(split(few_users(30), "strict"), 6)
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    for round in (1, 2, 3):
        server = method.aggregate(server, fleet.train(server, torch.arange(6), round, Traffic()), Moment(round, 0))
    items = fleet.store.leaves["items"]
    for client, width in enumerate((2, 5, 8, 2, 5, 8)):
        assert not items[client, :, width:].any()
        assert items[client, :, :width].any(0).all()
        for user in federation.members[client].tolist():
            assert not fleet.store.leaves["user"][user, width:].any()


def test_filters_score_with_the_clients_own_and_the_mean():
    """x F_k + β x F̄ for every user, with the filters written out."""
    method = made(backbone="gfcf", beta=7.0)
    federation = Federation.of_groups(split(few_users(12), "strict"), 3)
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    server = method.aggregate(server, fleet.train(server, torch.arange(3), 1, Traffic()), Moment(1, 0))
    whole = federation.people(torch.arange(3))
    filters = [local_filter(federation.people(torch.tensor([c])).history(), 32, 0.3) for c in range(3)]
    local = [(left @ right.mT)[0] for left, right in filters]
    torch.testing.assert_close(server["filter"], sum(local) / 3, atol=1e-6, rtol=1e-4)
    blocks = list(fleet.scores(server, "test"))
    scores = dict(zip(torch.cat([u for u, _ in blocks]).tolist(), torch.cat([s for _, s in blocks]), strict=True))
    history = whole.history()
    for c in range(3):
        for slot, user in enumerate(federation.members[c].tolist()):
            expected = history[c, slot] @ local[c] + 7.0 * history[c, slot] @ server["filter"]
            torch.testing.assert_close(scores[user], expected, atol=1e-5, rtol=1e-4)


def test_alone_nothing_travels():
    method, federation, traffic = made(aggregation="alone"), few_clients(6), Traffic()
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    after = method.aggregate(server, fleet.train(server, torch.arange(6), 1, traffic), Moment(1, 0))
    assert traffic.bytes_down == 0
    assert traffic.bytes_up == 6 * 4  # the weight
    assert torch.equal(after["similarity"], server["similarity"])


def test_the_mean_is_fedavg_of_whole_tables():
    method, federation = made(aggregation="mean", weighting="size"), few_clients(6)
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    after = method.aggregate(server, fleet.train(server, torch.arange(6), 1, Traffic()), Moment(1, 0))
    weight = torch.from_numpy(federation.sizes / federation.sizes.sum()).float()
    torch.testing.assert_close(after["items"][0], torch.tensordot(weight, fleet.store.leaves["items"], dims=1))


def test_only_clients_of_a_kind_are_averaged():
    method, federation = made(aggregation="mean", backbone="mlp", layers=(8, 4), widths=(3, 8)), few_clients(7)
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    ids = torch.tensor([0, 2, 4, 6])  # nobody of the second kind
    after = method.aggregate(server, fleet.train(server, ids, 1, Traffic()), Moment(1, 0))
    for name in ("items", "w0", "b1"):
        torch.testing.assert_close(after[name][0], fleet.store.leaves[name][ids].mean(0))
        assert torch.equal(after[name][1], server[name][1])
    assert not after["items"][0, :, 3:].any()
    after = method.aggregate(after, fleet.train(after, torch.arange(7), 2, Traffic()), Moment(2, 0))
    for kind in range(2):
        torch.testing.assert_close(after["w0"][kind], fleet.store.leaves["w0"][kind::2].mean(0))
    sent = method.downlink(after, torch.tensor([3, 4]))
    assert torch.equal(sent["items"], after["items"][[1, 0]])


def test_graph_guided_means_are_over_clients_that_are_near():
    method, federation = made(aggregation="graph"), few_clients(4)
    tables = draw(2, federation.n_items, 8).float()[[0, 0, 1, 1]]  # two pairs of the same taste, far from each other
    tables = tables + 0.01 * draw(4, federation.n_items, 8).float()
    up = Payload(torch.arange(4), {"items": Each(tables), "weight": Each(torch.ones(4))})
    after = method.aggregate(method.init_server(federation), iter([up]), Moment(1, 0))["items"]
    for pair in ([0, 1], [2, 3]):
        for client in pair:
            torch.testing.assert_close(after[client], tables[pair].mean(0))


def test_every_client_of_a_mixed_federation_scores_with_its_own_model():
    """Scores and losses are those of the three models alone, for the clients that have them."""
    layers = {"layers": (8, 4)}
    mixed = made(models=("mf", "lightgcn", "mlp"), propagations=3, **layers)
    federation = Federation.of_groups(split(few_users(30), "strict"), 6)
    alone = [made(), made(backbone="lightgcn", layers=3), made(backbone="mlp", **layers)]
    clients, data = ClientStore(mixed, federation), federation.cohort(torch.arange(6), 1, 2)
    own = clients.read(data, training=True)
    assert set(named(mixed.leaves(), "private")) == {"user", "w0", "b0", "w1", "b1", "w2", "b2"}
    found = mixed.receive(own, Payload(data.ids, {}), data)
    slot, row = torch.zeros(6, 4, dtype=torch.long), torch.arange(4).expand(6, -1)
    for place, method in enumerate(alone):
        p = method.receive(own, Payload(data.ids, {}), data)
        chosen = torch.arange(6) % 3 == place
        every, pairs = (m.score(q, m.view(q)) for m, q in ((mixed, found), (method, p))), None
        one, other = every
        torch.testing.assert_close(one[chosen], other[chosen])
        pairs = [m.pairs(q, m.view(q), slot, row) for m, q in ((mixed, found), (method, p))]
        torch.testing.assert_close(pairs[0][chosen], pairs[1][chosen])
        assert not torch.allclose(one[~chosen], other[~chosen])


def test_the_first_vectors_are_the_same_for_all_clients():
    method, federation = made(), few_clients(6)
    leaves = ClientStore(method, federation).leaves
    assert torch.equal(leaves["items"][0], leaves["items"][5])
    assert np.isclose(float(leaves["items"].std()), method.init, rtol=0.2)
