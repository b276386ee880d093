import dataclasses
import math

import numpy as np
import pytest
import torch

from tacit.config import build
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.local import local_round
from tacit.core.method import Moment
from tacit.core.objective import gradient_of
from tacit.core.store import ClientStore
from tacit.data.cohort import Batch
from tacit.errors import UserError
from tacit.methods import find
from tacit.methods.fedmf import FedMF
from tacit.methods.personal import Personal
from tacit.methods.plgc import (
    NETWORK,
    PLGC,
    alignment_uniformity,
    contrast,
    counted,
    decorrelation,
    err,
    err_step,
    squares,
)
from toys import few_clients

SMALL = {"dim": 4, "init": 0.3, "lr": 0.2, "table_lr": 20.0, "epochs": 1, "batch": 0, "optimizer": "sgd"}
BACKBONES = ("fedmf", "fedncf", "pfedrec", "fedrap", "perfedrec", "gpfedrec")


def plugged(backbone="fedmf", **settings):
    return build(find(f"plgc+{backbone}"), SMALL | settings)


def views(clients=3, rows=7, dim=4, seed=0):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(clients, *shape, generator=draw, dtype=torch.float64)

    count = torch.randint(0, 4, (clients, rows), generator=draw).double()
    return normal(rows, dim), normal(rows, dim), count, normal(dim, dim), normal(dim, dim)


def samples(local, frozen, count, client):
    """The rows of a batch written out, each as often as it is in it."""
    times = count[client].int()
    return (x[client].repeat_interleave(times, 0).numpy() for x in (local, frozen))


def rounds(method, federation, number, ids=None):
    """(server, fleet) after this many rounds of these clients."""
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    ids = torch.arange(federation.n_clients) if ids is None else ids
    for round in range(1, number + 1):
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return server, fleet


# The regularisers


def test_err_is_equations_18_and_19():
    local, frozen, count, projector, predictor = views()
    found = err(local, frozen, count, projector @ predictor, gamma=0.3)
    for c in range(3):
        W = (projector @ predictor)[c].numpy()
        ZC, ZG = (x @ W for x in samples(local, frozen, count, c))
        expected = 0.0
        for i in range(4):
            for j in range(4):
                H = ZC[:, i] @ ZG[:, j] / (np.linalg.norm(ZC[:, i]) * np.linalg.norm(ZG[:, j]))
                expected += (1 - H) ** 2 / 4 if i == j else 0.3 * H**2 / 4
        assert found[c].item() == pytest.approx(expected)


def test_gradients_of_err_by_hand_are_those_of_autograd():
    local, frozen, count, projector, predictor = views()
    leaves = [x.requires_grad_() for x in (local, projector, predictor)]
    loss = err(local, frozen, count, projector @ predictor, 0.3)
    expected = torch.autograd.grad(loss.sum(), leaves)
    with torch.no_grad():
        value, rows, network = err_step(local, frozen, count, projector, predictor, 0.3)
    torch.testing.assert_close(value, loss.detach())
    for one, other in zip((rows[0] @ rows[1], *network), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_err_of_a_batch_with_nothing_in_it_moves_nothing():
    local, frozen, count, projector, predictor = views()
    _, rows, network = err_step(local, frozen, 0 * count, projector, predictor, 0.3)
    assert not (rows[0] @ rows[1]).any()
    assert not any(x.any() for x in network)


def test_alignment_and_uniformity():
    local, frozen, count, *_ = views()
    found = alignment_uniformity(local, frozen, count > 0)
    for c in range(3):
        X, Y = (x[c][count[c] > 0].numpy() for x in (local, frozen))
        X, Y = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (X, Y))
        n = len(X)
        near = [math.exp(-2 * np.sum((X[i] - X[j]) ** 2)) for i in range(n) for j in range(n) if i != j]
        expected = np.mean(np.sum((X - Y) ** 2, 1)) + math.log(np.mean(near))
        assert found[c].item() == pytest.approx(expected)


def test_contrast_of_two_views():
    local, frozen, count, *_ = views()
    found = contrast(local, frozen, count > 0, temperature=0.5)
    for c in range(3):
        X, Y = (x[c][count[c] > 0].numpy() for x in (local, frozen))
        X, Y = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (X, Y))
        expected = []
        for i in range(len(X)):
            others = sum(math.exp(X[i] @ X[j] / 0.5) + math.exp(X[i] @ Y[j] / 0.5) for j in range(len(X)) if j != i)
            right = math.exp(X[i] @ Y[i] / 0.5)
            expected.append(-math.log(right / (right + others)))
        assert found[c].item() == pytest.approx(np.mean(expected))


def test_decorrelation():
    local, frozen, count, *_ = views()
    found = decorrelation(local, count)
    for c in range(3):
        X, _ = samples(local, frozen, count, c)
        assert found[c].item() == pytest.approx(np.sum(np.corrcoef(X.T) ** 2) / 16)


@pytest.mark.parametrize("groups", [0, 3])
@pytest.mark.parametrize("ranked", [False, True])
def test_counts_are_those_of_the_batch(groups, ranked):
    data = few_clients(12, groups=groups).cohort(torch.arange(3), 1, 4)
    for batch in data.batches(0, 0, 16, ranked=ranked):
        found = counted(batch, data.rows.shape[1])
        named = [x for x in (batch.row, batch.rival) if x is not None]
        if named:
            for c in range(3):
                rows = torch.cat([x[c][batch.mask[c]] for x in named])
                assert torch.equal(found[c], torch.bincount(rows, minlength=found.shape[1]).float())
        else:
            assert torch.equal(found, batch.count[:, 0])


# The mixture


def received(method, federation, ids, number=2):
    """Leaves as a third round starts, and what they are made of."""
    server, fleet = rounds(method, federation, number)
    data = federation.cohort(ids, number + 1, method.negatives, method.every_row)
    down = method.downlink(server, ids)
    return data, server, fleet, method.receive(fleet.store.read(data, training=True), down, data)


def test_the_share_is_that_of_the_traces_over_all_items():
    method, federation, ids = plugged(), few_clients(12), torch.tensor([0, 3, 5])
    data, server, fleet, p = received(method, federation, ids)
    assert not data.real.all(), "padding must not count, so there has to be some"
    G = server["items"].double()
    wide = float((G * G).sum())
    tables = fleet.store.leaves["plgc_local"][ids].double()
    for c in range(3):
        trace = float(torch.trace(tables[c] @ tables[c].T))
        assert p["plgc_share"][c].item() == pytest.approx(trace / (trace + wide), rel=1e-5)
    # a new epoch: the rows that training touched have moved
    p["items"] = torch.where(data.real[..., None], 2 * p["items"], p["items"])
    again = method.epoch_start(p)["plgc_share"]
    for c in range(3):
        tables[c, data.rows[c][data.real[c]]] *= 2
        trace = float((tables[c] ** 2).sum())
        assert again[c].item() == pytest.approx(trace / (trace + wide), rel=1e-5)


def test_a_client_ranks_with_the_mixture():
    method, federation = plugged(), few_clients(12)
    server, fleet = rounds(method, federation, 2)
    users, scores = (torch.cat(x) for x in zip(*fleet.scores(server, "test"), strict=True))
    G, tables, vectors = server["items"], fleet.store.leaves["plgc_local"], fleet.store.leaves["user"]
    for u, found in zip(users.tolist(), scores, strict=True):
        local, wide = tables[u].square().sum(), G.square().sum()
        share = local / (local + wide)
        torch.testing.assert_close(found, (share * tables[u] + (1 - share) * G) @ vectors[u], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(tables[0], G)


@pytest.mark.parametrize("size", [0, 16])
def test_a_round_by_hand(size):
    """A whole round of one client, in one batch and in several: Eq. 16, 18–19 and 22 in each, in float64."""
    settings = {"plgc_beta": 0.7, "plgc_gamma": 0.2, "plgc_lr": 0.5, "table_lr": 5.0, "batch": size}
    method, federation, ids = plugged(**settings), few_clients(12), torch.tensor([4])
    data, server, fleet, _ = received(method, federation, ids)
    batches = list(data.batches(0, 0, size))
    assert len(batches) == 1 if size == 0 else len(batches) > 2
    own = {n: x[ids].clone() for n, x in fleet.store.leaves.items()}
    own["user"] = fleet.store.leaves["user"][ids][:, None].clone()
    kept, up, _ = local_round(method, own, method.downlink(server, ids), data)
    G = server["items"].double()
    table = fleet.store.leaves["plgc_local"][4].double()
    user, P, R = (own[n][0].double() for n in ("user", *NETWORK))
    user, share = user[0], squares(table) / (squares(table) + squares(G))
    for batch in batches:  # autograd over plain, dense samples: another road to the same gradients
        positive, count = batch.positive[0, 0].int(), batch.count[0, 0].int()
        times = torch.stack([positive, count - positive])  # (2, L)
        items = torch.cat([data.rows[0].repeat_interleave(n) for n in times])
        label = torch.cat([torch.ones(int(times[0].sum())), torch.zeros(int(times[1].sum()))]).double()
        table, user, P, R = (x.detach().requires_grad_() for x in (table, user, P, R))
        Q = share * table + (1 - share) * G
        loss = torch.nn.functional.binary_cross_entropy_with_logits(Q[items] @ user, label)
        ZC, ZG = table[items] @ P @ R, G[items] @ P @ R
        H = (ZC / ZC.norm(dim=0)).T @ (ZG / ZG.norm(dim=0))
        off = H - torch.diag(H.diagonal())
        full = len(items) / min(size or len(items), int(data.samples[0]))
        loss = loss + 0.7 * full * ((1 - H.diagonal()).square().sum() + 0.2 * off.square().sum()) / 4
        slopes = torch.autograd.grad(loss, (table, user, P, R))
        rates = (5.0, 0.2, 0.5, 0.5)
        table, user, P, R = (
            x.detach() - rate * slope for x, rate, slope in zip((table, user, P, R), rates, slopes, strict=True)
        )
    torch.testing.assert_close(up["items"][0].double(), table, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kept["user"][0, 0].double(), user, atol=1e-5, rtol=1e-5)
    for name, leaf in zip(NETWORK, (P, R), strict=True):
        torch.testing.assert_close(kept[name][0].double(), leaf, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mixing", [True, False])
@pytest.mark.parametrize("regulariser", ["err", "au", "duorec", "feddecorr", "none"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_gradients_by_hand_are_those_of_autograd(backbone, regulariser, mixing):
    settings = {"plgc_regulariser": regulariser, "plgc_mixing": mixing, "plgc_beta": 0.7, "plgc_gamma": 0.2}
    method, federation = plugged(backbone, **settings), few_clients(12)
    *_, p = received(method, federation, ids := torch.arange(5), number=1)
    data = method.data(federation, ids, 2)
    (phase,) = method.phases(2)
    network = set(NETWORK) if regulariser == "err" else set()
    assert {n for turn in phase.turns for n in turn if n.startswith("plgc_")} == network
    p |= method.epoch_start(p)
    for turn in phase.turns:
        p = {n: x.detach() for n, x in p.items()}
        p |= {n: p[n].clone().requires_grad_() for n in turn}
        batch = next(iter(data.batches(0, 0, 0, ranked=phase.ranked)))
        loss = phase.loss(p, batch)
        expected = torch.autograd.grad(loss.sum(), [p[n] for n in turn], allow_unused=True)
        with torch.no_grad():
            value, found = gradient_of(phase.loss)(p, batch, turn, {})
        if "items" in turn:  # where the table stands still, the regulariser is not computed
            torch.testing.assert_close(value, loss.detach(), atol=1e-5, rtol=1e-5)
        for name, gradient in zip(turn, expected, strict=True):
            if gradient is None:
                assert name not in found
            else:
                torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("regulariser", ["au", "duorec"])
def test_pairs_are_those_of_a_batch_and_not_of_a_clients_rows(regulariser):
    local, frozen, count, *_ = views(clients=2, rows=400)
    count[:, 5:] = 0
    count[0, 300], count[1, [100, 200]] = 2, 1
    method = plugged(plgc_regulariser=regulariser, plgc_mixing=False)
    p = {"items": local.requires_grad_(), "plgc_global": frozen}
    batch = Batch(size=count.sum(1), active=torch.ones(2), runs=[slice(0, 2)], count=count[:, None])
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        found = method.regulariser(p, batch)
    assert max(sizes) <= local.numel()
    plain = alignment_uniformity(local, frozen, count > 0)
    if regulariser == "duorec":
        plain = contrast(local, frozen, count > 0, method.plgc_temperature)
    torch.testing.assert_close(found, plain)
    one, other = (torch.autograd.grad(x.sum(), local)[0] for x in (found, plain))
    torch.testing.assert_close(one, other)


def test_the_regulariser_weighs_beta_on_average():
    for epochs, every in ((10, 5), (10, 3), (1, 5), (4, 1)):
        method = plugged(epochs=epochs, plgc_every=every, plgc_beta=0.3)
        weights = [method.epoch_weight({"plgc_epoch": torch.tensor(e)}) for e in range(epochs)]
        assert sum(weights) / epochs == pytest.approx(0.3)
        assert sum(w > 0 for w in weights) == math.ceil(epochs / every)


# What stays and what goes


@pytest.mark.parametrize("backbone", ["fedmf", "fedncf", "pfedrec", "fedrap"])
def test_with_every_part_off_it_is_the_backbone(backbone):
    federation = few_clients(12)
    plain = build(find(backbone), SMALL)
    off = plugged(backbone, plgc_mixing=False, plgc_regulariser="none")
    one, other = (rounds(method, federation, 2) for method in (plain, off))
    assert all(torch.equal(x, other[0][n]) for n, x in one[0].items())
    for a, b in zip(one[1].scores(one[0], "test"), other[1].scores(other[0], "test"), strict=True):
        assert torch.equal(a[1], b[1])


def test_a_client_starts_from_the_servers_table_of_its_first_round():
    method, federation = plugged(), few_clients(12)
    early = torch.arange(6)
    server, fleet = rounds(method, federation, 2, early)
    late = torch.tensor([2, 8])  # one that has a table and one that has not
    data = federation.cohort(late, 3, method.negatives)
    down = method.downlink(server, late)
    p = method.receive(fleet.store.read(data, training=True), down, data)
    assert torch.equal(p["plgc_local"][0], fleet.store.leaves["plgc_local"][2])
    assert torch.equal(p["plgc_local"][1], server["items"])
    kept, up, _ = local_round(method, fleet.store.read(data, training=True), down, data)
    fleet.store.write(data, kept)
    assert torch.equal(fleet.store.leaves["plgc_local"][late], up["items"])
    untouched = torch.ones(federation.n_items, dtype=torch.bool)
    untouched[data.rows[1][data.real[1]]] = False
    assert torch.equal(fleet.store.leaves["plgc_local"][8][untouched], server["items"][untouched])


def test_a_client_that_never_took_part_ranks_with_the_servers_table():
    method, federation = plugged(), few_clients(12)
    server, fleet = rounds(method, federation, 1, torch.arange(6))
    torch.testing.assert_close(
        fleet.scores_of(server, 9, "test"), server["items"] @ fleet.store.leaves["user"][9], atol=1e-6, rtol=1e-5
    )


def test_the_server_averages_the_tables_that_clients_keep():
    method, federation = plugged(), few_clients(12)
    server, fleet = rounds(method, federation, 3)
    weights = torch.from_numpy(federation.sizes).double()
    tables = fleet.store.leaves["plgc_local"].double()
    expected = torch.tensordot(weights / weights.sum(), tables, dims=1)
    torch.testing.assert_close(server["items"].double(), expected, atol=1e-5, rtol=1e-5)


def test_it_costs_no_bytes():
    federation = few_clients(12)
    sent = []
    for method in (build(FedMF, SMALL), plugged()):
        traffic = Traffic()
        fleet = SimulatedFleet(method, federation, threads=1)
        list(fleet.train(method.init_server(federation), torch.arange(12), 1, traffic))
        sent.append((traffic.bytes_up, traffic.bytes_down))
    assert sent[0] == sent[1]


def test_over_fedrap_its_own_two_tables_are_mixed():
    method, federation = plugged("fedrap", epochs=2), few_clients(12)
    server, fleet = rounds(method, federation, 3)
    assert "plgc_local" not in fleet.store.leaves
    C, D = server["items"], fleet.store.leaves["personal"]
    squares = D.square().sum((1, 2))
    torch.testing.assert_close(fleet.store.leaves["plgc_squares"], squares, atol=1e-3, rtol=1e-4)
    share = (squares / (squares + C.square().sum())).view(-1, 1, 1)
    scores = {int(u): x for us, xs in fleet.scores(server, "test") for u, x in zip(us, xs, strict=True)}
    head, bias = fleet.store.leaves["head"], fleet.store.leaves["bias"]
    for u, found in scores.items():
        expected = (share[u] * D[u] + (1 - share[u]) * C) @ head[u] + bias[u]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


# How it is named


def test_a_plugged_method_has_the_settings_of_both():
    cls = find("plgc+fedmf")
    assert cls is find("plgc+fedmf")
    assert cls.name == "plgc+fedmf"
    assert issubclass(cls, FedMF)
    fields = {f.name: f.default for f in dataclasses.fields(cls)}
    assert fields["table_lr"] == FedMF().table_lr
    assert {f.name for f in dataclasses.fields(PLGC)} <= set(fields)
    shared = {f.name for f in dataclasses.fields(Personal)}
    assert all(f.name.startswith("plgc_") for f in dataclasses.fields(PLGC) if f.name not in shared)


@pytest.mark.parametrize("name", ["plgc+tally", "plgc+mf", "plgc+plgc+fedmf", "plgc+popularity", "plgc+oracle"])
def test_it_does_not_go_over_everything(name):
    with pytest.raises(UserError, match="cannot go over"):
        find(name)


def test_an_unknown_plug_in():
    with pytest.raises(UserError, match=r"unknown plug-in 'plcg'; did you mean 'plgc'\?"):
        find("plcg+fedmf")


def test_a_backbone_of_ones_own():
    assert find("plgc+tacit.methods.fedmf:FedMF")().name == "plgc+tacit.methods.fedmf:FedMF"


def test_networks_differ_between_clients_and_stay_with_them():
    method, federation = plugged(), few_clients(12)
    store = ClientStore(method, federation)
    for name in NETWORK:
        leaf = store.leaves[name]
        assert not torch.equal(leaf[0], leaf[1])
        assert leaf.var().item() == pytest.approx(1 / 4, rel=0.3)
