import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.objective import gradient_of
from tacit.core.payload import Each, Payload
from tacit.core.store import ClientStore
from tacit.methods.alignment import alignment
from tacit.methods.cgfedrec import CGFedRec
from toys import few_clients

SMALL = {"dim": 4, "init": 0.5, "lr": 0.5, "table_lr": 2.0, "epochs": 1, "clusters": 3}


def written(table, labels, temperature, base):
    """Eq. 7 to 11 for one client as they stand, by autograd."""
    z = table / table.norm(dim=-1, keepdim=True)
    m = len(z)
    logit = z @ z.T / temperature
    rest = logit.masked_fill(torch.eye(m, dtype=torch.bool), -torch.inf)
    log = logit - torch.logsumexp(rest, 1, keepdim=True)
    same = (labels[:, None] == labels).double().fill_diagonal_(0)  # M, Eq. 9
    omega = (same * log).sum(1) / same.sum(1).clamp(min=1)
    return -(temperature / base) * omega.sum() / m


@pytest.fixture
def tables():
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (40,), generator=draw)
    labels[7] = 5  # alone in its cluster
    return torch.randn(3, 40, 6, generator=draw, dtype=torch.double), labels


@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("tile", [8, 512])
def test_value_and_gradient_are_those_of_the_formula(tables, temperature, tile, monkeypatch):
    monkeypatch.setattr("tacit.methods.alignment.TILE", tile)
    table, labels = tables
    value, slope = alignment(table, labels, temperature, 0.5)
    for c in range(3):
        own = table[c].clone().requires_grad_()
        expected = written(own, labels, temperature, 0.5)
        torch.testing.assert_close(value[c], expected.detach())
        torch.testing.assert_close(slope[c], torch.autograd.grad(expected, own)[0])


@pytest.mark.parametrize("temperature", [0.005, 0.05, 0.5])
def test_single_precision_is_close_enough(tables, temperature):
    table, labels = tables
    value, slope = alignment(table.float(), labels, temperature, 0.5)
    expected, gradient = alignment(table, labels, temperature, 0.5)
    assert value.dtype == slope.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(slope.double(), gradient, atol=1e-5, rtol=1e-4)


def test_anchors_estimate_without_bias(tables):
    """The mean over every choice of two anchors among six items is the exact loss and gradient."""
    table, labels = tables[0][:1, :6], torch.tensor([0, 1, 0, 1, 2, 1])
    expected, gradient = alignment(table, labels, 0.3, 0.5)
    pairs = [(i, j) for i in range(6) for j in range(i)]
    found = [alignment(table, labels, 0.3, 0.5, torch.tensor([pair])) for pair in pairs]
    torch.testing.assert_close(torch.stack([v for v, _ in found]).mean(0), expected)
    torch.testing.assert_close(torch.stack([g for _, g in found]).mean(0), gradient)
    everyone, whole = alignment(table, labels, 0.3, 0.5, torch.arange(6)[None])
    torch.testing.assert_close(everyone, expected)
    torch.testing.assert_close(whole, gradient)


def test_smooth_estimates_throw_no_row_far(tables):
    """All items as anchors give the exact gradient; with few, no row is as far off as without smoothing."""
    table, labels = tables[0][:1], tables[1]
    expected, gradient = alignment(table, labels, 0.3, 0.5)
    value, whole = alignment(table, labels, 0.3, 0.5, torch.arange(40)[None], smooth=True)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(whole, gradient)

    draw = torch.Generator().manual_seed(0)
    table, labels = torch.randn(1, 300, 6, generator=draw), torch.arange(300) % 5
    gradient = alignment(table, labels, 0.3, 0.5)[1]
    worst = {True: 0.0, False: 0.0}
    for _ in range(50):
        some = torch.randperm(300, generator=draw)[None, :8]
        for smooth in worst:
            wrong = alignment(table, labels, 0.3, 0.5, some, smooth)[1] - gradient
            worst[smooth] += float(wrong.norm(dim=-1).max())
    assert worst[True] < 0.6 * worst[False]


def test_a_smooth_gradient_is_the_written_one(tables):
    """Of three anchors: what their denominators say of every item, and every item's own mean over the anchors."""
    table, labels, some, τ = tables[0][0, :6], torch.tensor([0, 1, 0, 1, 2, 1]), [0, 2, 5], 0.3
    z = table / table.norm(dim=1, keepdim=True)
    x = (z @ z.T / τ).exp().fill_diagonal_(0)
    size = torch.tensor([2, 3, 2, 3, 1, 3]).double()
    slope = torch.zeros_like(z)
    for j in range(6):
        for i in some:
            if size[i] > 1:
                slope[j] += 6 / 3 * x[i, j] / x[i].sum() * z[i] / τ
            if size[j] > 1:
                slope[j] += x[i, j] / x[some, j].sum() * z[i] / τ
        for i in range(6):
            if i != j and labels[i] == labels[j]:
                slope[j] -= 2 / τ * z[i] / (size[j] - 1)
    slope -= (slope * z).sum(1, keepdim=True) * z
    expected = slope / table.norm(dim=1, keepdim=True) * τ / (0.5 * 6)
    found = alignment(table[None], labels, τ, 0.5, torch.tensor([some]), smooth=True)[1][0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("anchors", "smooth"), [(0, True), (7, True), (7, False)])
def test_a_step_by_hand_is_that_of_autograd(anchors, smooth):
    method, federation = CGFedRec(**SMALL, anchors=anchors, smooth=smooth), few_clients(6)
    ids = torch.arange(6)
    data = federation.cohort(ids, 2, 4, every_row=True)
    server = method.init_server(federation)
    server["labels"] = (torch.arange(federation.n_items) % 3).to(torch.uint8)
    p = method.receive(ClientStore(method, federation).read(data), method.downlink(server, ids), data)
    names = ("head", "bias", "items")
    p |= {n: (p[n] + 0.1).clone().requires_grad_() for n in names}
    batch = next(iter(data.batches(0, 0, 0)))
    loss = method.loss(p, batch)
    expected = torch.autograd.grad(loss.sum(), [p[n] for n in names])
    with torch.no_grad():
        value, grads = gradient_of(method.loss)(p, batch, names, {})
    torch.testing.assert_close(value, loss.detach())
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(grads[name], gradient, atol=1e-6, rtol=1e-4)
    plain = method.bce(p, p["items"], batch).detach()
    written_down = torch.stack(
        [written(p["items"][c].detach().double(), p["labels"], method.temperature, 0.5) for c in range(6)]
    )
    if not anchors:
        torch.testing.assert_close(value, plain + method.strength * written_down.float())


@pytest.mark.parametrize("anchors", [0, 7])
def test_who_has_no_samples_left_is_not_aligned(anchors):
    """Clients in any order: those that still take steps have autograd's gradients, the others none of the alignment."""
    method, federation = CGFedRec(**SMALL, anchors=anchors), few_clients(6)
    ids = torch.from_numpy(np.argsort(federation.sizes, kind="stable"))  # the short ones first
    data = federation.cohort(ids, 2, 4, every_row=True)
    server = method.init_server(federation)
    server["labels"] = (torch.arange(federation.n_items) % 3).to(torch.uint8)
    p = method.receive(ClientStore(method, federation).read(data), method.downlink(server, ids), data)
    p["items"] = torch.randn(p["items"].shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    stopped = 0
    for batch in data.batches(0, 0, 16):
        (expected,) = torch.autograd.grad(method.loss(p, batch).sum(), p["items"])
        with torch.no_grad():
            grads = gradient_of(method.loss)(p, batch, ("items",), {})[1]
        torch.testing.assert_close(grads["items"][batch.active], expected[batch.active], atol=1e-6, rtol=1e-4)
        assert not grads["items"][~batch.active].any()
        stopped += int((~batch.active).sum())
    assert stopped


def test_a_byte_an_item_comes_down_and_a_table_goes_up():
    method, federation = CGFedRec(**SMALL), few_clients(6)
    fleet, traffic = SimulatedFleet(method, federation, threads=1), Traffic()
    list(fleet.train(method.init_server(federation), torch.arange(6), 1, traffic))
    assert traffic.bytes_down == 6 * federation.n_items
    assert traffic.bytes_up == 6 * (federation.n_items * method.dim * 4 + 4)


def test_the_server_groups_the_mean_table():
    """Two planted groups of items in every client's upload get two labels, whatever the clients' own noise."""
    method, federation = CGFedRec(**SMALL | {"clusters": 2, "dim": 2}), few_clients(6)
    server = method.init_server(federation)
    half = federation.n_items // 2
    centre = torch.zeros(federation.n_items, 2)
    centre[:half, 0], centre[half:, 1] = 3.0, 3.0
    noise = 0.2 * torch.randn(4, federation.n_items, 2, generator=torch.Generator().manual_seed(0))
    up = Payload(torch.arange(4), {"items": Each(centre + noise), "weight": Each(torch.ones(4))})
    after = method.aggregate(server, iter([up]), Moment(1, 0))
    torch.testing.assert_close(after["items"], (centre + noise).mean(0))
    labels = after["labels"]
    assert labels.dtype == torch.uint8
    assert len(labels[:half].unique()) == len(labels[half:].unique()) == 1
    assert labels[0] != labels[-1]


def test_items_are_clustered_afresh_every_round():
    """Algorithm 1, line 14: the clusters of a round depend on its mean table alone, not on those of rounds before."""
    method, federation = CGFedRec(**SMALL | {"clusters": 8}), few_clients(6)
    draw = torch.Generator().manual_seed(0)

    def up():
        return Payload(
            torch.arange(1),
            {"items": Each(torch.randn(1, federation.n_items, 4, generator=draw)), "weight": Each(torch.ones(1))},
        )

    first, second = up(), up()
    fresh = method.init_server(federation)
    after = method.aggregate(fresh, iter([first]), Moment(1, 0))
    found = method.aggregate(after, iter([second]), Moment(2, 0))
    assert torch.equal(found["labels"], method.aggregate(fresh, iter([second]), Moment(2, 0))["labels"])
    assert not torch.equal(found["labels"], after["labels"])


def test_the_first_round_has_no_alignment():
    method, federation = CGFedRec(**SMALL), few_clients(6)
    down = method.downlink(method.init_server(federation), torch.arange(2))
    for round, aligned in ((1, False), (2, True)):
        data = method.data(federation, down.ids, round)
        p = method.receive(ClientStore(method, federation).read(data), down, data)
        batch = next(iter(data.batches(0, 0, 0)))
        assert torch.equal(method.loss(p, batch), method.bce(p, p["items"], batch)) != aligned


@pytest.mark.parametrize(("variant", "down"), [("c", {"labels"}), ("e", {"items"}), ("ec", {"labels", "items"})])
def test_variants_send_what_table_3_says(variant, down):
    method, federation = CGFedRec(**SMALL, variant=variant), few_clients(6)
    server = method.init_server(federation) | {"items": torch.ones(federation.n_items, 4)}
    sent = method.downlink(server, torch.arange(2))
    assert set(sent.fields) == down
    data = federation.cohort(torch.arange(2), 2, 4, every_row=True)
    p = method.receive(ClientStore(method, federation).read(data), sent, data)
    assert torch.equal(p["items"], torch.ones_like(p["items"])) == (variant != "c")


def test_random_labels_are_random_and_repeatable():
    method, federation = CGFedRec(**SMALL, variant="erc"), few_clients(6)
    up = Payload(torch.arange(1), {"items": Each(torch.randn(1, federation.n_items, 4)), "weight": Each(torch.ones(1))})
    server = method.init_server(federation)
    one, same, other = (method.aggregate(server, iter([up]), Moment(round, 0))["labels"].numpy() for round in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
