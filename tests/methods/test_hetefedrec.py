import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tacit import testing
from tacit.config import build
from tacit.core.capabilities import refined
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.local import local_round
from tacit.core.method import Moment
from tacit.core.objective import gradient_of
from tacit.core.payload import Cut, Each, Payload, decode
from tacit.core.store import ClientStore
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.errors import UserError
from tacit.methods import find
from tacit.methods.hetefedrec import HeteFedRec, correlation, similarity, unlikeness
from tacit.methods.nested import divided
from tacit.runs.experiments import read
from tacit.runs.run import run
from toys import few_clients

SMALL = {"widths": (2, 3, 5), "layers": (4,), "distil_items": 15, "init": 0.5}


def made(**settings):
    fields = refined(HeteFedRec, settings).__dataclass_fields__
    return build(HeteFedRec, {n: x for n, x in (SMALL | settings).items() if n in fields})


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaves(method, federation, ids, round=1, server=None):
    """(leaves as training starts, data, downlink), with vectors large enough for gradients to show."""
    server = server or method.init_server(federation)
    data = method.data(federation, ids, round)
    down = method.downlink(server, ids)
    return method.receive(ClientStore(method, federation).read(data), down, data), data, down


def test_groups_are_in_the_ratio_asked_for_and_go_by_interactions():
    sizes = np.array([50, 3, 7, 7, 100, 1, 9, 60, 2, 30])
    assert divided(sizes, (5, 3, 2)).tolist() == [1, 0, 0, 0, 2, 0, 1, 2, 0, 1]
    assert divided(sizes, (1, 1)).tolist() == [1, 0, 0, 0, 1, 0, 1, 1, 0, 1]
    assert divided(sizes, (0, 0, 1)).tolist() == [2] * 10
    assert divided(sizes, (1, 0, 0)).tolist() == [0] * 10
    assert torch.bincount(divided(np.arange(6040), (5, 3, 2))).tolist() == [3020, 1812, 1208]
    assert torch.bincount(divided(np.arange(100), (1, 2, 3, 4))).tolist() == [10, 20, 30, 40]


def test_the_data_may_say_which_group_a_client_is_in():
    """Those of whom they say nothing are divided among themselves."""
    plain = few_clients(10).split.data
    names = np.array(["large", "", "small", "", "medium", "", "", "large", "", ""])
    federation = Federation.of_users(split(replace(plain, groups=names), "strict"))
    group = made().group(federation)
    assert group[[0, 2, 4, 7]].tolist() == [2, 0, 1, 2]
    silent = [1, 3, 5, 6, 8, 9]
    assert group[silent].tolist() == divided(federation.sizes[silent], (5, 3, 2)).tolist()
    phones = made(classes=("phone", "tablet", "desktop"))
    with pytest.raises(UserError, match="unknown group 'large'"):
        phones.group(federation)
    assert list(phones.groups(few_clients(10))) == ["phone", "tablet", "desktop"]
    together = Federation.of_groups(federation.split, 1)
    with pytest.raises(UserError, match="different groups"):
        made().group(together)


def test_a_run_says_what_each_group_gets_and_costs(tmp_path):
    summary = run("hetefedrec", data="demo", rounds=1, threads=1, out=tmp_path / "r", settings=SMALL)
    assert list(summary.group_bytes) == ["small", "medium", "large"]
    counts = [group["clients"] for group in summary.group_bytes.values()]
    assert sum(counts) == summary.clients
    weights = np.array(counts) / sum(counts)
    assert set(summary.group_bytes) < set(summary.groups)
    mean = sum(w * summary.groups[g]["HR@10"] for w, g in zip(weights, summary.group_bytes, strict=True))
    assert mean == pytest.approx(summary.test["HR@10"])
    down = [group["down"] for group in summary.group_bytes.values()]
    assert [group["up"] for group in summary.group_bytes.values()] == down
    assert summary.bytes_up == summary.bytes_down
    assert down == sorted(set(down))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"widths": "8,8,16"}, "must grow"),
        ({"widths": "8,16"}, "a share for each"),
        ({"ratio": "0,0,0"}, "a share for each"),
        ({"dim": 8}, "widths says"),
        ({"leak": -0.1}, "leak=-0.1 is invalid for hetefedrec: it must be at least 0"),
        ({"weighting": "size"}, "adds updates up"),
        ({"scored_with": "own"}, "adds updates up"),
    ],
)
def test_settings_without_an_effect_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        build(find("hetefedrec"), settings)
    assert build(find("hetefedrec"), {"widths": "4,8", "ratio": "1,1"}).dim == 8
    assert build(find("hetefedrec"), {"variant": "small"}).dim == 8


def plain_logits(method, theta, model, user, rows):
    """FFN([u, v]) of one user and its rows, layer by layer, from the stretch of one model."""
    widths = [2 * method.sizes[model], *method.layers, 1]
    place = 0
    for a in range(model):
        before = [2 * method.sizes[a], *method.layers, 1]
        place += sum(i * o + o for i, o in pairwise(before))
    hidden = torch.cat([user.expand(len(rows), -1), rows], 1)
    for n, (i, o) in enumerate(pairwise(widths)):
        weight, bias = theta[place : place + i * o].view(i, o), theta[place + i * o : place + i * o + o]
        hidden = (F.leaky_relu(hidden, method.leak) if n else hidden) @ weight + bias
        place += i * o + o
    return hidden[:, 0]


@pytest.mark.parametrize("dual", [True, False])
def test_the_loss_is_the_sum_over_the_models_that_a_client_trains(dual):
    """Eq. 11 and 14, client by client and sample by sample."""
    method, federation = made(dual=dual, decorrelation=0.7, negatives=2), few_clients(10)
    server = method.init_server(federation)
    p, data, _ = leaves(method, federation, torch.arange(10), server=server)
    (batch,) = data.batches(0, 0, 0)
    found = method.loss(p, batch)
    assert set(server["group"].tolist()) == {0, 1, 2}
    for c in range(10):
        group = int(server["group"][c])
        table = server[f"items_{group}"]
        user = p["user"][c, 0]
        assert not user[method.sizes[group] :].any()
        expected = 0.0
        n = int(data.samples[c])
        items, labels = data.rows[c][data.row[c, :n]], data.label[c, :n]
        for a in range(group + 1) if dual else [group]:
            width = method.sizes[a]
            logits = plain_logits(method, server["theta"], a, user[:width], table[items, :width])
            expected += float(F.binary_cross_entropy_with_logits(logits, labels))
        if group:
            expected += 0.7 * np.linalg.norm(np.corrcoef(table.numpy().T)) / method.sizes[group]
        assert float(found[c]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dual": False},
        {"decorrelation": 0.0},
        {"decorrelated": "all"},
        {"backbone": "lightgcn"},
        {"backbone": "lightgcn", "propagations": 2, "elsewhere": 0.0},
        {"variant": "standalone"},
        {"variant": "large", "layers": ()},
        {"leak": 0.0},
    ],
)
def test_gradients_by_hand_are_those_of_autograd(settings):
    method, federation = made(**settings), few_clients(12)
    p, data, _ = leaves(method, federation, torch.arange(12))
    names = ("user", "items", "theta")
    moved = {n: (p[n] + 0.3 * draws(*p[n].shape, seed=3)).contiguous() for n in names}
    if "columns" in p:
        moved["items"] *= p["columns"][:, None]
    p |= moved
    for batch in data.batches(0, 0, 32):
        loss, grads = gradient_of(method.loss)(p, batch, names, {})
        trained = {n: x.clone().requires_grad_() for n, x in moved.items()}
        expected = method.loss(p | trained, batch)
        torch.testing.assert_close(loss, expected.detach(), atol=1e-5, rtol=1e-5)
        slopes = torch.autograd.grad(expected.sum(), list(trained.values()))
        for name, slope in zip(names, slopes, strict=True):
            torch.testing.assert_close(grads[name], slope, atol=1e-5, rtol=1e-4)


def test_decorrelation_is_the_norm_of_the_correlation_matrix_by_the_width():
    """Eq. 13 against NumPy, and its gradient against autograd through the definition."""
    table = draws(40, 5).double() @ draws(5, 5, seed=1).double() + 3
    columns = torch.tensor([[1.0] * 5, [1.0] * 3 + [0.0] * 2])
    rows = table * columns[:, None]
    value, mean, turn = correlation(rows.sum(1), rows.mT @ rows, torch.tensor(40.0), columns.double())
    for c, n in enumerate((5, 3)):
        expected = np.linalg.norm(np.corrcoef(table[:, :n].numpy().T)) / n
        assert float(value[c]) == pytest.approx(expected, rel=1e-9)
        x = table[:, :n].clone().requires_grad_()
        z = (x - x.mean(0)) / x.std(0, correction=0)
        (slope,) = torch.autograd.grad((z.T @ z / 40).norm() / n, x)
        gradient = (rows[c] - mean[c]) @ turn[c]
        torch.testing.assert_close(gradient[:, :n], slope, atol=1e-9, rtol=1e-7)
        assert not gradient[:, n:].any()


def test_similarity_is_the_cosine_and_the_distillation_loss_has_its_gradient():
    rows = draws(6, 4).double()
    goal = similarity(draws(6, 3, seed=1).double())
    for i in range(6):
        for j in range(6):
            assert float(similarity(rows)[i, j]) == pytest.approx(float(F.cosine_similarity(rows[i], rows[j], 0)))
    x = rows.clone().requires_grad_()
    expected = (F.normalize(x) @ F.normalize(x).T - goal).square().sum()
    value, slope = unlikeness(rows, goal)
    assert float(value) == pytest.approx(expected.item())
    torch.testing.assert_close(slope, torch.autograd.grad(expected, x)[0])


def test_distillation_brings_the_similarities_of_the_drawn_items_together():
    """Eq. 16–17 on tables that disagree; rows that are not drawn stay."""
    method = made(distil_items=12, distil_steps=60, distil_lr=0.02)
    before = {f"items_{a}": draws(30, n, seed=a) for a, n in enumerate(method.sizes)}
    after = method.distilled(dict(before), Moment(3, 0))
    moved = [(after[n] != before[n]).any(1) for n in before]
    assert all(torch.equal(moved[0], other) for other in moved)
    some = moved[0].nonzero().flatten()
    assert len(some) == 12
    goal = torch.stack([similarity(x[some]) for x in before.values()]).mean(0)
    for name in before:
        was, now = (float(unlikeness(state[name][some], goal)[0]) for state in (before, after))
        assert now < was
    assert now < 0.2 * was
    again = method.distilled(dict(before), Moment(4, 0))
    assert not torch.equal((again["items_0"] != before["items_0"]).any(1), moved[0])
    once = made(distil_items=12, distil_lr=0.02).distilled(dict(before), Moment(3, 0))
    step = once["items_2"][some] - before["items_2"][some]  # Adam's first step goes by signs
    slope = unlikeness(before["items_2"][some], goal)[1]
    torch.testing.assert_close(step, -0.02 * slope.sign(), atol=1e-5, rtol=1e-4)


def uploads(method, server, ids):
    """An upload with made-up changes in the columns that these clients have."""
    model = method.model(server["group"][ids])
    M = len(server["items_0"])
    tables = torch.tensor([(0, n) for n in method.sizes])[model]
    stretches = torch.tensor([method.stretch(a) for a in range(len(method.sizes))])[model]
    fields = {}
    for name, columns, shape in (("items", tables, (M, method.dim)), ("theta", stretches, (len(server["theta"]),))):
        whole = Cut(Each(draws(len(ids), *shape, seed=7)), columns)
        fields[f"{name}_change"] = Cut(Each(whole.of.value * whole.mask()), columns)
    return Payload(ids, fields)


@pytest.mark.parametrize("settings", [{}, {"dual": False}, {"variant": "clustered"}, {"variant": "exclusive"}])
def test_updates_are_padded_and_added_up_column_by_column(settings):
    """Eq. 7–9 and 15, cell by cell."""
    method = made(distillation=False, server="sgd", server_lr=0.5, **settings)
    federation = few_clients(10)
    server = method.init_server(federation)
    up = uploads(method, server, torch.arange(10))
    halves = [up.only(torch.arange(4)), up.only(torch.arange(4, 10))]
    after = method.aggregate(server, iter(halves), Moment(1, 0))
    group = server["group"].tolist()
    change, theta = up["items_change"], up["theta_change"]
    for a, width in enumerate(method.sizes):
        for column in range(width):
            givers = [c for c in range(10) if method.sizes[int(method.model(server["group"][c]))] > column]
            if method.variant == "clustered":
                givers = [c for c in range(10) if group[c] == a]
            if method.variant == "exclusive":
                givers = [c for c in range(10) if group[c] > 0]
            expected = server[f"items_{a}"][5, column] + 0.5 * sum(change[c, 5, column] for c in givers)
            assert float(after[f"items_{a}"][5, column]) == pytest.approx(float(expected), abs=1e-5)
    for a in range(len(method.sizes)):
        place = method._starts[a]  # the first weight of the model
        givers = [c for c in range(10) if (group[c] >= a if method.several else group[c] == a)]
        if method.variant == "exclusive":
            givers = [c for c in range(10) if group[c] > 0]
        expected = server["theta"][place] + 0.5 * sum(theta[c, place] for c in givers)
        assert float(after["theta"][place]) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("variant", ["hete", "clustered"])
def test_the_server_steps_by_adam_with_the_sums_for_gradients(variant):
    """Eq. 9 and 15 with the paper's optimiser, against torch.optim.Adam over two rounds of different uploads."""
    method, federation = made(distillation=False, variant=variant, server_lr=0.1), few_clients(10)
    added = replace(method, server="sgd", server_lr=1.0)
    server = start = method.init_server(federation)
    names = ["items_0", "items_1", "items_2", "theta"]
    expected = {n: start[n].clone().requires_grad_() for n in names}
    optimiser = torch.optim.Adam(expected.values(), lr=0.1)
    for round, who in enumerate((torch.arange(7), torch.arange(3, 10)), 1):
        up = uploads(method, server, who)
        sums = added.aggregate(start, iter([up]), Moment(round, 0))
        for n in names:
            expected[n].grad = start[n] - sums[n]
        optimiser.step()
        server = method.aggregate(server, iter([up]), Moment(round, 0))
        for n in names:
            torch.testing.assert_close(server[n], expected[n].detach(), atol=1e-4, rtol=1e-4)


def test_columns_that_a_client_does_not_have_count_for_nothing():
    method, federation = made(distillation=False), few_clients(10)
    server = method.init_server(federation)
    small = int((server["group"] == 0).nonzero()[0])
    up = uploads(method, server, torch.tensor([small]))
    theta = len(server["theta"])
    lies = {
        "items_change": Cut(Each(torch.ones(1, federation.n_items, 5)), torch.tensor([[0, 5]])),
        "theta_change": Cut(Each(torch.ones(1, theta)), torch.tensor([[0, theta]])),
    }
    liar = decode(Payload(up.ids, lies).encode())
    after = method.aggregate(server, iter([liar]), Moment(1, 0))
    moved = (after["items_2"] != server["items_2"]).any(0)
    assert moved.tolist() == [True, True, False, False, False]
    assert (after["theta"] != server["theta"]).nonzero().flatten().tolist() == list(range(method.stretch(0)[1]))


def rounds(method, federation, count=3):
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    for round in range(1, count + 1):
        ids = torch.arange(federation.n_clients)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return server


def test_the_papers_rule_is_a_thousandth_of_the_sum_of_one_gradient_a_client():
    """Eq. 3, 4, 9 and 15 as the table's file asks for them, over two rounds of the same negatives."""
    rule = read(Path("hetefedrec-table2")).settings
    method = made(**rule | {"init": 0.5, "distillation": False, "decorrelation": 0.0})
    federation = few_clients(10)
    assert (rule["init"], method.leak, method.fraction, method.traverse) == (0.01, 0.0, 256, True)
    server, ids = method.init_server(federation), torch.arange(10)
    group, start = server["group"].tolist(), ClientStore(method, federation)
    samples = method.data(federation, ids, 1)  # for both rounds
    trained = {n: server[n].clone() for n in ("items_2", "theta")}
    trained |= {"user": start.read(samples)["user"].clone()}
    for _ in range(2):
        trained = {n: x.detach().requires_grad_() for n, x in trained.items()}
        total = torch.tensor(0.0)
        for c in range(10):
            n = int(samples.samples[c])
            items, labels = samples.rows[c][samples.row[c, :n]], samples.label[c, :n]
            for a in range(group[c] + 1):
                w = method.sizes[a]
                user, rows = trained["user"][c, 0, :w], trained["items_2"][items, :w]
                logits = plain_logits(method, trained["theta"], a, user, rows)
                total = total + F.binary_cross_entropy_with_logits(logits, labels)
        slopes = torch.autograd.grad(total, list(trained.values()))
        trained = {n: x - 0.001 * slope for (n, x), slope in zip(trained.items(), slopes, strict=True)}
    after = rounds(method, federation, 2)
    for name in ("items_2", "theta"):
        torch.testing.assert_close(after[name] - server[name], trained[name] - server[name], atol=2e-7, rtol=3e-3)


def test_tables_are_each_others_first_columns_until_distillation_moves_them():
    """Eq. 10. Distillation takes a table at most its rate times its steps a round from where it was."""
    federation = few_clients(20)
    plain = rounds(made(distillation=False), federation)
    assert (plain["items_2"] != made().init_server(federation)["items_2"]).any(0).all()
    for narrow, width in ((0, 2), (1, 3)):
        assert torch.equal(plain[f"items_{narrow}"], plain["items_2"][:, :width])
    method = made(distil_lr=0.01, distil_steps=2)
    taught = rounds(method, federation)
    apart = (taught["items_0"] - taught["items_2"][:, :2]).abs()
    assert 0 < float(apart.max()) <= 2 * 3 * 2 * 0.01 + 1e-6
    server = method.init_server(federation)
    up = uploads(made(distillation=False), server, torch.arange(20))
    start = server | {"items_0": server["items_0"] + 1}  # whatever had come between them stays between them
    after = made(distillation=False).aggregate(start, iter([up]), Moment(1, 0))
    torch.testing.assert_close(after["items_0"] - 1, after["items_2"][:, :2], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("variant", "columns", "models"),
    [
        ("hete", (2, 3, 5), ((0,), (0, 1), (0, 1, 2))),
        ("small", (2, 2, 2), ((0,), (0,), (0,))),
        ("large", (5, 5, 5), ((0,), (0,), (0,))),
        ("direct", (2, 3, 5), ((0,), (1,), (2,))),
        ("clustered", (2, 3, 5), ((0,), (1,), (2,))),
    ],
)
def test_bytes_are_those_of_table_iii(variant, columns, models):
    method, federation = made(variant=variant, layers=(4, 3)), few_clients(10)
    server = method.init_server(federation)
    for group in range(3):
        who = (server["group"] == group).nonzero().flatten()[:1]
        data = federation.cohort(who, 1, method.negatives)
        down = method.downlink(server, who)
        _, up, _ = local_round(method, ClientStore(method, federation).read(data), down, data)
        values = federation.n_items * columns[group]
        for a in models[group]:
            n = method.sizes[a]
            values += 2 * n * 4 + 4 + 4 * 3 + 3 + 3 * 1 + 1
        assert down.nbytes() == up.nbytes() == 4 * values
        for sent in (down, up):
            assert decode(sent.encode()).nbytes() == 4 * values


def test_those_who_train_alone_send_nothing_and_keep_everything():
    method, federation = made(variant="standalone"), few_clients(10)
    fleet, traffic = SimulatedFleet(method, federation, threads=1), Traffic()
    server = method.init_server(federation)
    before = fleet.store.leaves["items"].clone()
    after = method.aggregate(server, fleet.train(server, torch.arange(10), 1, traffic), Moment(1, 0))
    assert (traffic.bytes_up, traffic.bytes_down) == (0, 0)
    assert set(after) == {"group"}
    assert ((fleet.store.leaves["items"] != before).any(2).any(1)).all()


def test_decorrelation_evens_out_the_singular_values():
    federation = few_clients(30)
    spread = []
    for alpha in (0.0, 3.0):
        table = rounds(made(decorrelation=alpha, decorrelated="all", distillation=False), federation)["items_2"]
        spread.append(float(torch.linalg.norm(torch.corrcoef(table.T))))
    assert math.sqrt(5) <= spread[1] < spread[0]


VARIANTS = [
    {"backbone": "lightgcn"},
    {"variant": "standalone"},
    {"variant": "clustered"},
    {"variant": "exclusive"},
    {"server": "sgd", "server_lr": 1.0, "theta_lr": 0.01},
    {"decorrelated": "all"},
    {"widths": (2, 3, 4, 6), "ratio": (1, 1, 1, 1)},
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_every_variant_is_a_method_in_order(settings):
    method = made(**settings)
    federation = testing.clients(method, users=12)
    one, other = (testing.trained(method, federation, chunk=chunk) for chunk in (64, 5))
    for a, b in zip(one, other, strict=True):
        assert all(torch.allclose(a[n].float(), b[n].float(), atol=1e-5, rtol=1e-5) for n in a)
    if method.individual:
        testing.check_secure(method)
    testing.check_wire(method)
    testing.check_bytes(method)
    testing.check_nothing_private_is_sent(method)
    testing.check_scores(method, federation)
    if method.backbone == "lightgcn":
        testing.check_scores(method, testing.mixed_clients())
