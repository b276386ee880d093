"""A node's one upload: what it is, what it costs, and what a node that lies can do with it."""

import logging

import numpy as np
import pytest
import torch

from deploy.direct import federation_of, job_of
from deploy.test_checks import changed, value
from deploy.test_fleet import METHODS, distributed, same, simulated
from tacit.core.aggregate import EVERYBODY, one_for_all
from tacit.core.bounds import USUAL, bounded, usual
from tacit.core.fleet import Guard, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Shared, decode
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.deploy.checks import checked_sum, template
from tacit.deploy.wire import Packet, unpack
from tacit.privacy.mechanisms import Gaussian
from toys import few_users

FEDMF = METHODS["fedmf"]


def replies(link):
    """The uploads of the last round, by node."""
    found = {name: unpack(reply) for name, _, reply in link.seen}
    return {name: decode(packet.body) for name, packet in found.items() if packet.kind == "trained"}


def one_round(fleet, server, round=1):
    """The next state as the rounds loop makes it."""
    traffic = Traffic()
    uploads = fleet.train(server, torch.arange(fleet.federation.n_clients), round, traffic)
    return fleet.method.aggregate(server, uploads, Moment(round, 0)) | usual(traffic.norms), traffic


FOLDED = ["fedmf", "fedncf", "pfedclr", "cgfedrec", "hetefedrec", "plgc+fedmf", "fedrap", "popularity"]


@pytest.mark.parametrize("name", FOLDED)
def test_a_node_sends_one_upload_where_a_sum_is_enough(tmp_path, name):
    data = few_users(24)
    averaged = {"aggregated": 1} if name == "pfedclr" else {}  # by default it leaves some of them out
    fleet, link = federation_of(tmp_path, data, job_of(data, name, METHODS.get(name, {}) | averaged))
    server = distributed(fleet, 1)
    same(simulated(fleet.method, Federation.of_users(split(data, "strict")), 1)[0], server)
    ups = replies(link)
    assert set(ups) == {"n0", "n1", "n2"}
    for place, up in enumerate(ups.values()):
        assert up.ids.tolist() == EVERYBODY.tolist()
        if "weight" in up:
            mine = fleet.federation.sizes[8 * place : 8 * place + 8]
            assert float(up["weight"]) in (8.0, float(mine.sum()))


@pytest.mark.parametrize(
    ("name", "options", "guard"),
    [
        ("gpfedrec", {}, Guard()),
        ("perfedrec", {}, Guard()),
        ("pfedclr", {}, Guard()),
        ("tally", {}, Guard()),
        ("fedmf", {}, Guard(robust="trimmed")),
        ("fedmf", {}, Guard(robust="median")),
        ("fedmf", {"together": True}, Guard()),
    ],
)
def test_single_uploads_stay_single_where_somebody_looks_at_them(tmp_path, name, options, guard):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, name, METHODS[name], **options))
    fleet.guard = guard
    distributed(fleet, 1)
    ids = [client for up in replies(link).values() for client in up.ids.tolist()]
    assert sorted(ids) == list(range(fleet.federation.n_clients))


def test_a_round_costs_what_one_client_costs(tmp_path):
    """And four bytes a client where changes are bounded: how far each moved, in no order that tells whose."""
    sizes = {}
    for users in (8, 64):
        data = few_users(users)
        for bound in (0.0, 1.0):
            fleet, link = federation_of(tmp_path / f"{users}-{bound}", data, job_of(data, "fedmf", FEDMF), 1)
            fleet.guard = Guard(bound)
            server = fleet.method.init_server(fleet.federation)
            link.seen.clear()
            _, traffic = one_round(fleet, server)
            (up,) = replies(link).values()
            sizes[users, bound] = len(up.encode()), data.n_items
            assert traffic.bytes_up == sum(len(reply) for _, _, reply in link.seen), "what is counted is what came"
            assert traffic.clients == users
            if bound:
                said = up[USUAL + "items"][0]
                assert said.tolist() == sorted(said.tolist())
                assert len(said) == users
    for bound in (0.0, 1.0):
        (few, few_items), (many, many_items) = sizes[8, bound], sizes[64, bound]
        rows = 4 * FEDMF["dim"] * (many_items - few_items)
        assert abs(many - few - rows - 4 * 56 * bool(bound)) <= 16  # a digit more in a header


def test_the_bound_is_the_simulations_and_honest_nodes_stay_as_they_are(tmp_path):
    """Clipped on the node, nothing is left for the server to clip, whatever the weights and changes are."""
    draw = torch.Generator().manual_seed(0)
    base = torch.randn(6, 3, generator=draw)
    data = few_users(24)
    for weighting in ("size", "uniform"):
        method = job_of(data, "fedmf", FEDMF | {"dim": 3, "weighting": weighting}).build()
        like = template(method, {"items": base}, 0, 1, 6)
        for _ in range(50):
            sizes = torch.randint(0, 9, (5,), generator=draw)
            weight = sizes.float() if weighting == "size" else torch.ones(5)
            moved = torch.randn(5, 6, 3, generator=draw) * 3 ** torch.randn(5, 1, 1, generator=draw)
            up = Payload(torch.arange(5), {"items": Each(base + moved), "weight": Each(weight, False)})
            down = Payload(torch.arange(5), {"items": Shared(base)})
            clipped, norms = bounded(up, down, {"items": 1.0})
            one = one_for_all([clipped], down)
            sent = {**one.fields, USUAL + "items": Each(norms["items"].float()[None], False)}
            found, said = checked_sum(Payload(one.ids, sent).encode(), like, down, sizes, {"items": 1.0})
            torch.testing.assert_close(found["items"], one["items"], atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(said["items"], norms["items"], atol=0, rtol=1e-6)


def lies(**said):
    """A node that puts other values into its upload."""

    def spoil(reply):
        packet = unpack(reply)
        up = decode(packet.body)
        fields = {n: Each(said[n](f.dense().clone()), f.private) if n in said else f for n, f in up.fields.items()}
        return Packet(packet.kind, packet.head, Payload(up.ids, fields).encode()).pack()

    return spoil


@pytest.mark.parametrize(
    ("settings", "options", "heavier"),
    [
        ({}, {}, 1.001),
        ({}, {}, 100.0),
        ({"weighting": "uniform"}, {}, 1.25),
        ({}, {"ldp": {"kind": "laplace", "scale": 0.01, "clip": 0.5}}, 1.25),
    ],
)
def test_a_node_weighs_no_more_than_all_its_clients(tmp_path, caplog, settings, options, heavier):
    data = few_users(30)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", FEDMF | settings, **options))  # ten clients each
    link.spoil = {"n1": lies(weight=lambda x: x * heavier)}
    with caplog.at_level(logging.WARNING, "tacit.server"):
        distributed(fleet, 1)
    assert fleet.count.refused == 1
    assert "an upload of node 'n1' is refused: 'weight' is outside 0 to" in caplog.text


def test_a_node_moves_a_row_no_farther_than_its_clients_together_could(tmp_path):
    """A lie has the reach that ten clients had who all said the same: every row, as far as one may go."""
    data = few_users(30)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", FEDMF | {"weighting": "uniform"}))
    fleet.guard = Guard(bound=1.0)
    server, _ = one_round(fleet, fleet.method.init_server(fleet.federation))
    limit, base = float(server["usual/items"]), server["items"]
    far = lies(items=lambda x: x + 50, **{USUAL + "items": lambda x: torch.full_like(x, 50.0)})

    def sent(spoil):
        link.spoil = {"n1": spoil}
        uploads = fleet.train(server, torch.arange(30), 2, Traffic())
        (_, up, _) = uploads
        return (up["items"][0] - base).norm(dim=1)

    assert sent(far) == pytest.approx(torch.full((data.n_items,), limit), rel=1e-4)
    # nobody can say that its clients hardly moved, which lowers what is usual, and move the model
    quiet = lies(items=lambda x: x + 50, **{USUAL + "items": lambda x: torch.full_like(x, limit / 10)})
    assert sent(quiet) == pytest.approx(torch.full((data.n_items,), limit / 10), rel=1e-4)
    half = lies(
        items=lambda x: x + 50, **{USUAL + "items": lambda x: torch.where(torch.arange(10) < 5, 0.0, 50.0)[None]}
    )
    assert sent(half) == pytest.approx(torch.full((data.n_items,), limit / 2), rel=1e-4)
    assert fleet.count.refused == 0


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda x: x[:, 1:], "how far each of 10 clients moved"),
        (lambda x: torch.cat([x, x], 1), "how far each of 10 clients moved"),
        (torch.Tensor.half, "how far each of 10 clients moved"),
        (lambda x: -x - 1, "is no length"),
        (lambda x: x * torch.nan, "is no length"),
        (lambda x: x + torch.inf, "is no length"),
    ],
)
def test_what_is_said_of_changes_must_be_lengths(tmp_path, said, why):
    data = few_users(30)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", FEDMF))
    fleet.guard = Guard(bound=1.0)
    link.spoil = {"n1": value(USUAL + "items", said)}
    _, traffic = one_round(fleet, fleet.method.init_server(fleet.federation))
    assert traffic.clients == 20
    assert all(len(norms["items"]) == 10 for norms in traffic.norms)
    assert why in fleet.board.of("n1").reason


def test_noise_is_on_every_client_before_the_sum_and_epsilon_is_as_before(tmp_path):
    data = few_users(24)
    noise = Gaussian(0.5, 0.1)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", FEDMF, ldp=noise.stated()))
    server = fleet.method.init_server(fleet.federation)
    for round in (1, 2):
        link.seen.clear()
        list(fleet.train(server, torch.arange(24), round, Traffic()))
    assert fleet.count.refused == 0
    for up in replies(link).values():
        assert float(up["weight"]) == 8
        spread = float((up["items"][0] - server["items"]).std())
        assert spread == pytest.approx(0.5 / np.sqrt(8), rel=0.15), "the mean of eight clients' noise"
    for node in link.named.values():
        assert node.ledger.epsilon(node.work.users) == pytest.approx(noise.epsilon(2))


@pytest.mark.parametrize("fold", [[], "all", {"items": "far"}, {"items": -1.0}, {"items": True}, {"items": None}])
def test_a_node_adds_up_within_lengths_alone(tmp_path, fold):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", FEDMF))
    down = fleet.method.downlink(fleet.method.init_server(fleet.federation), torch.arange(8))
    head = {"job": fleet.job.id, "place": [0, 0], "keep": [0], "round": 1}
    for asked, kind in ((fold, "sorry"), ({"items": 0.5}, "trained")):
        reply = link.named["n0"].answer(Packet("train", head | {"fold": asked}, down.encode()).pack())
        assert unpack(reply).kind == kind


def test_clients_that_weigh_nothing_send_back_what_they_got():
    base = torch.randn(4, 2)
    down = Payload(torch.arange(2), {"items": Shared(base)})
    fields = {"items": Each(base.repeat(2, 1, 1) + 1), "b": Each(torch.ones(2, 3)), "weight": Each(torch.zeros(2))}
    one = one_for_all([Payload(torch.arange(2), fields)], down)
    assert torch.equal(one["items"][0], base)
    assert torch.equal(one["b"], torch.zeros(1, 3))
    assert one["weight"].tolist() == [0]


def test_single_uploads_in_place_of_a_sum_are_refused(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", FEDMF))

    def single(up):
        fields = {n: Each(torch.cat([f.dense()] * 8), f.private) for n, f in up.fields.items()}
        return Payload(torch.arange(8, 16), fields)

    link.spoil = {"n1": changed(single)}
    distributed(fleet, 1)
    assert fleet.count.refused == 1
