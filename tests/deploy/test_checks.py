import json
import logging

import numpy as np
import pytest
import torch

from deploy.direct import federation_of, job_of
from deploy.test_fleet import METHODS, distributed, same, simulated
from tacit.core.bounds import usual
from tacit.core.fleet import Guard, SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Shared, Sparse, decode
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.deploy.checks import Refused, checked, most_bytes, template
from tacit.deploy.wire import MAGIC, Packet, unpack
from toys import few_users

CLIENTS = 8


def changed(change):
    """A spoiler that edits the payload of an upload."""

    def spoil(reply):
        packet = unpack(reply)
        up = decode(packet.body)
        edited = change(up)
        return Packet(packet.kind, packet.head, (edited or up).encode()).pack()

    return spoil


def field(name, make):
    return changed(lambda up: Payload(up.ids, {**up.fields, name: make(up.fields[name])}))


def value(name, make):
    return field(name, lambda f: Each(make(f.value.clone()), f.private))


def put(name, number, where=(0,)):
    def make(x):
        x.view(-1)[list(where)] = number
        return x

    return value(name, make)


def body(make):
    def spoil(reply):
        packet = unpack(reply)
        return Packet(packet.kind, packet.head, make(packet.body)).pack()

    return spoil


def head(**values):
    def spoil(reply):
        packet = unpack(reply)
        return Packet(packet.kind, packet.head | values, packet.body).pack()

    return spoil


def header(make):
    """Edit the JSON in front of the tensors."""

    def edit(blob):
        length = int.from_bytes(blob[:8], "little")
        written = json.loads(blob[8 : 8 + length])
        make(written)
        text = json.dumps(written).encode()
        return len(text).to_bytes(8, "little") + text + blob[8 + length :]

    return body(edit)


def without(up, name):
    return Payload(up.ids, {n: f for n, f in up.fields.items() if n != name})


def kind(name, what):
    return header(
        lambda h: h["__metadata__"].update(kinds=json.dumps(json.loads(h["__metadata__"]["kinds"]) | {name: what}))
    )


BAD = {
    # names
    "a field is missing": changed(lambda up: without(up, "items")),
    "the weight is missing": changed(lambda up: without(up, "weight")),
    "a field more": changed(lambda up: Payload(up.ids, {**up.fields, "user": Each(torch.zeros(CLIENTS, 4))})),
    "another name": changed(lambda up: Payload(up.ids, {"Items": up.fields["items"], "weight": up.fields["weight"]})),
    "no field at all": changed(lambda up: Payload(up.ids, {})),
    "a name of dots": changed(
        lambda up: Payload(up.ids, {**without(up, "items").fields, "../items": up.fields["items"]})
    ),
    # shapes
    "a row less": value("items", lambda x: x[:, 1:]),
    "a row more": value("items", lambda x: torch.cat([x, x[:, :1]], 1)),
    "wider": value("items", lambda x: torch.cat([x, x], 2)),
    "narrower": value("items", lambda x: x[..., :2]),
    "one axis less": value("items", lambda x: x.flatten(1)),
    "one axis more": value("items", lambda x: x[..., None]),
    "transposed": value("items", lambda x: x.mT.contiguous()),
    "no columns": value("items", lambda x: x[..., :0]),
    "a weight of two numbers": value("weight", lambda x: torch.stack([x, x], 1)),
    "a weight of one column": value("weight", lambda x: x[:, None]),
    # kinds
    "one table for all": field("items", lambda f: Shared(f.value[0])),
    "cells of a table": field("items", lambda f: Sparse(torch.tensor([0]), torch.tensor([0]), torch.ones(1), (2, 2))),
    "a private weight": field("weight", lambda f: Each(f.value, private=True)),
    "a public table": field("items", lambda f: Each(f.value, private=False)),
    # types
    "double": value("items", torch.Tensor.double),
    "half": value("items", torch.Tensor.half),
    "bfloat": value("items", torch.Tensor.bfloat16),
    "whole numbers": value("items", torch.Tensor.int),
    "bytes": value("items", lambda x: x.to(torch.uint8)),
    "truth values": value("items", lambda x: x > 0),
    "a whole weight": value("weight", torch.Tensor.long),
    "a double weight": value("weight", torch.Tensor.double),
    # values
    "not a number": put("items", torch.nan),
    "not a number at the end": put("items", torch.nan, (-1,)),
    "infinity": put("items", torch.inf),
    "minus infinity": put("items", -torch.inf),
    "nothing but nan": value("items", lambda x: x * torch.nan),
    "one huge value": put("items", 1e30),
    "one large value": put("items", 1e5),
    "all values large": value("items", lambda x: x + 1e3),
    "a large client": value("items", lambda x: torch.cat([x[:1] * 1e7, x[1:]])),
    "a weight that is no number": put("weight", torch.nan),
    "an endless weight": put("weight", torch.inf),
    "a negative weight": put("weight", -1.0),
    "a huge weight": put("weight", 1e9),
    # ids
    "somebody else's id": changed(lambda up: Payload(torch.cat([up.ids[:-1], torch.tensor([0])]), up.fields)),
    "an id that nobody has": changed(lambda up: Payload(up.ids + 10_000, up.fields)),
    "a client twice": changed(lambda up: Payload(up.ids[[0, *range(CLIENTS - 1)]], up.fields)),
    "a client less": changed(lambda up: up.only(torch.arange(CLIENTS - 1))),
    "a negative id": changed(lambda up: Payload(-up.ids - 1, up.fields)),
    # bytes
    "empty": body(lambda blob: b""),
    "cut short": body(lambda blob: blob[:-1]),
    "cut in half": body(lambda blob: blob[: len(blob) // 2]),
    "only the header": body(lambda blob: blob[: 8 + int.from_bytes(blob[:8], "little")]),
    "a byte more": body(lambda blob: blob + b"x"),
    "a header of 16 exabytes": body(lambda blob: b"\xff" * 8 + blob[8:]),
    "noise": body(lambda blob: np.random.default_rng(0).bytes(len(blob))),
    "a pickle": body(lambda blob: b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    "oversized": body(lambda blob: blob + bytes(2_000_000)),
    "no kinds": header(lambda h: h.pop("__metadata__")),
    "kinds that are no JSON": header(lambda h: h["__metadata__"].update(kinds="{")),
    "a kind nobody knows": kind("items", {"kind": "delta"}),
    "kinds that name no tensor": kind("ghost", {"kind": "each", "private": True}),
    "kinds of depth": header(lambda h: h["__metadata__"].update(kinds="[" * 100_000)),
    "columns beyond counting": kind("items", {"kind": "cut", "private": True, "shape": [2**62, 2**62]}),
    "eight bits a value": header(lambda h: h["field.items"].update(dtype="F8_E4M3")),
    "a tensor beside the fields": header(
        lambda h: h.update({"more": h["ids"] | {"shape": [0], "data_offsets": [0, 0]}})
    ),
    # the packet around it
    "no packet": lambda reply: b"",
    "another packet": lambda reply: Packet("evaluated", {}, unpack(reply).body).pack(),
    "a packet cut short": lambda reply: reply[:12],
    "a packet without its magic": lambda reply: b"x" + reply[1:],
    "a head that is no JSON": lambda reply: MAGIC + (3).to_bytes(4, "little") + b"{{{",
    "a head of depth": lambda reply: MAGIC + (200_000).to_bytes(4, "little") + b"[" * 200_000,
    "another round": head(round=7),
    "a round in words": head(round="one"),
}


def test_there_are_fifty_kinds():
    assert len(BAD) >= 50


# of single uploads, which a method asks for that compares clients; elsewhere there is one for all of a node
SINGLE = (
    "a client twice", "a client less", "somebody else's id", "an id that nobody has", "a row less", "double",
    "one large value", "a large client", "a negative weight", "a huge weight", "oversized",
)  # fmt: skip
TRIED = [(name, "fedmf") for name in BAD if name not in SINGLE[:2]] + [(name, "gpfedrec") for name in SINGLE]


@pytest.mark.parametrize(("name", "method"), TRIED)
def test_a_bad_upload_is_refused_counted_named_and_never_summed(tmp_path, name, method, caplog):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, method, METHODS[method] | {"epochs": 1}))
    expected, _ = simulated(fleet.method, Federation.of_users(split(data, "strict")), 1, without=range(8, 16))
    spoilt = []

    def spoil(reply):
        spoilt.append(BAD[name](reply))
        assert spoilt[-1] != reply
        return spoilt[-1]

    link.spoil = {"n1": spoil}
    with caplog.at_level(logging.WARNING, "tacit.server"):
        server = distributed(fleet, rounds=1)
    same(expected, server)
    assert len(spoilt) == fleet.count.refused == 1
    assert "round 1: an upload of node 'n1' is refused: " in caplog.text


def test_what_a_node_says_of_its_loss_may_be_anything(tmp_path):
    data = few_users(24)
    for number, loss in enumerate((None, "low", float("nan"), float("inf"), [1])):
        fleet, link = federation_of(tmp_path / str(number), data, job_of(data, "fedmf", {"dim": 2, "epochs": 1}))
        link.spoil = {"n1": head(loss=loss)}
        traffic = Traffic()
        list(fleet.train(fleet.method.init_server(fleet.federation), torch.arange(24), 1, traffic))
        assert traffic.clients == 24
        assert 0 < traffic.loss < 1


@pytest.mark.parametrize(
    "said",
    [
        {"users": -1},
        {"users": 9},
        {"users": "all"},
        {"users": True},
        {"main": {}},
        {"main": None},
        {"main": {"HR@10": 1.0}},
        {"sampled99": 3},
    ],
)
def test_bad_metrics_are_refused(tmp_path, said, caplog):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", {"dim": 2}))
    server = fleet.method.init_server(fleet.federation)
    link.gone = {"n1"}
    expected = fleet.evaluate(server, "valid", 0)
    link.gone, link.spoil = set(), {"n1": lambda reply: head(**said)(reply) if b"evaluated" in reply[:40] else reply}
    assert fleet.evaluate(server, "valid", 0) == expected
    assert "an evaluation by node 'n1' is refused" in caplog.text
    link.spoil = {"n1": lambda r: head(main=unpack(r).head["main"] | {"HR@10": 1.5})(r)}
    assert fleet.evaluate(server, "valid", 0) == expected


@pytest.mark.parametrize("select", ["NDCG@10", "F1@10"])
def test_nodes_that_know_other_metrics_are_welcome(tmp_path, select):
    """What all nodes and the server have in common is combined, the rest is left out."""
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", {"dim": 2}))
    fleet.select = select
    server = fleet.method.init_server(fleet.federation)
    expected = fleet.evaluate(server, "test", 0)

    def told(change):
        return lambda reply: head(**{p: change(unpack(reply).head[p]) for p in ("main", "sampled99")})(reply)

    kept = {"NDCG@10", "HR@5", "Precision@10", "Recall@10", "F1@10"}
    fewer = told(lambda metrics: {name: value for name, value in metrics.items() if name in kept})
    more = told(lambda metrics: metrics | {"Sparkle@10": 7.5, "Coverage@10": 0.5, "NDCG@50": "high"})
    link.spoil = {"n0": fewer, "n1": more}
    found = fleet.evaluate(server, "test", 0)
    assert fleet.count.refused == 0
    assert found.users == expected.users == 24
    assert set(found.main) == set(found.sampled99) == kept
    assert found.main == pytest.approx({name: expected.main[name] for name in kept})
    assert found.sampled99 == pytest.approx({name: expected.sampled99[name] for name in kept})
    link.spoil = dict.fromkeys(("n0", "n1", "n2"), more)
    assert fleet.evaluate(server, "test", 0) == expected


def test_f1_over_nodes_joins_the_means_over_all_their_users(tmp_path):
    data = few_users(24)
    fleet, _ = federation_of(tmp_path, data, job_of(data, "fedmf", {"dim": 2}, protocol="ratio"))
    found = fleet.evaluate(fleet.method.init_server(fleet.federation), "test", 0).main
    precision, recall = found["Precision@20"], found["Recall@20"]
    assert found["F1@20"] == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-12)


def test_a_bound_of_ones_own_and_cells_are_checked():
    data = few_users(12)
    method = job_of(data, "tally", METHODS["tally"]).build()
    federation = Federation.of_users(split(data, "strict"))
    server = method.init_server(federation)
    like = template(method, server, 0, 1, data.n_items)
    _, fleet = simulated(method, federation, 0)
    ids = torch.arange(3)
    (up,) = fleet.train(server, ids, 1, Traffic())
    down = method.downlink(server, up.ids)
    good = up.encode()
    assert set(checked(good, like, down, 1, data.n_items).fields) == set(up.fields)
    with pytest.raises(Refused, match="a norm of"):
        checked(good, like, down, 1, data.n_items, max_norm=0.1)
    name = next(iter(up.fields))
    cells = up.fields[name]
    for bad, why in (
        (Sparse(cells.client, cells.index, cells.value * torch.nan, cells.shape), "not finite"),
        (Sparse(cells.client, cells.index, cells.value, (*cells.shape, 2)), "the shape"),
        (Sparse(cells.client, cells.index, cells.value * 1e9, cells.shape), "a norm of"),
        (Each(torch.zeros(3, 2)), "is each, not sparse"),
    ):
        with pytest.raises(Refused, match=why):
            checked(Payload(up.ids, {**up.fields, name: bad}).encode(), like, down, 1, data.n_items)
    assert len(good) <= most_bytes(like, 3)


@pytest.mark.parametrize(
    ("settings", "options", "spoil", "why"),
    [
        ({"weighting": "size"}, {}, value("weight", lambda x: x * 1.5), "of a client that announced"),
        ({"weighting": "uniform"}, {}, value("weight", lambda x: x * 2), "not 1"),
        ({}, {"ldp": {"kind": "laplace", "scale": 0.01, "clip": 0.5}}, value("weight", lambda x: x * 2), "not 1"),
    ],
)
def test_a_client_weighs_no_more_than_it_announced(tmp_path, caplog, settings, options, spoil, why):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "gpfedrec", METHODS["gpfedrec"] | settings, **options))
    distributed(fleet, 1)
    assert fleet.count.refused == 0
    link.spoil = {"n1": spoil}
    with caplog.at_level(logging.WARNING, "tacit.server"):
        distributed(fleet, 2, first=2)
    assert fleet.count.refused == 1
    assert why in caplog.text


def forged(up):
    """A column for one item, as long as the client's own cells are."""
    cells = up.fields["C"]
    target = cells.index % cells.shape[1] == 3
    return Payload(up.ids, {**up.fields, "C": Sparse(cells.client, cells.index, cells.value + target, cells.shape)})


@pytest.mark.parametrize("together", [False, True])
def test_cells_that_no_history_gives_never_reach_a_sum(tmp_path, together):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "tally", {}, together=together))
    distributed(fleet, 1)
    assert fleet.count.refused == 0
    link.spoil = {"n1": changed(forged_often if together else forged)}
    distributed(fleet, 1)
    assert fleet.count.refused == 1


def forged_often(up):
    cells = up.fields["C"]
    more = torch.where(cells.value == cells.value.max(), 9.0, cells.value)
    return Payload(up.ids, {**up.fields, "C": Sparse(cells.client, cells.index, more, cells.shape)})


def test_a_server_over_nodes_bounds_changes_as_the_simulation_does(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]))
    method, guard = fleet.method, Guard(bound=0.7)
    here = SimulatedFleet(method, Federation.of_users(split(data, "strict")), threads=1, guard=guard)
    fleet.guard = guard
    states = []
    for some in (fleet, here):
        server = method.init_server(some.federation)
        for round in (1, 2):
            traffic = Traffic()
            uploads = some.train(server, torch.arange(24), round, traffic)
            server = method.aggregate(server, uploads, Moment(round, 0)) | usual(traffic.norms)
        states.append(server)
    same(*states)
    link.spoil = {"n1": value("items", lambda x: x + 5)}
    before = states[0]["items"]
    moved = distributed(fleet, 3, first=3, server=states[0])["items"]
    assert float((moved - before).norm(dim=1).max()) <= 0.7 * float(states[0]["usual/items"]) * (1 + 1e-4)


def test_a_reason_holds_nothing_that_a_terminal_would_obey(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]))
    named = json.dumps({"x\n\x1b[2Jround 7: all is well": {"kind": "each"}})
    link.spoil = {"n1": header(lambda h: h["__metadata__"].update(kinds=named))}
    list(fleet.train(fleet.method.init_server(fleet.federation), torch.arange(24), 1, Traffic()))
    assert "x??[2Jround 7" in fleet.board.of("n1").reason
    assert fleet.board.of("n1").reason.isprintable()


@pytest.mark.parametrize("name", ["pfedgraph", "fedca"])
def test_clients_that_say_they_weigh_nothing_stop_no_server(tmp_path, name):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, name, METHODS[name]))
    weightless = value("weight", torch.zeros_like)
    link.spoil = {"n1": lambda reply: weightless(reply) if unpack(reply).kind == "trained" else reply}
    server = fleet.method.init_server(fleet.federation)
    for round in (1, 2):
        uploads = fleet.train(server, torch.arange(24), round, Traffic())
        server = fleet.method.aggregate(server, uploads, Moment(round, 0))
    assert all(bool(torch.isfinite(leaf).all()) for leaf in server.values())
