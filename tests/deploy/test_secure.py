"""A secure sum over nodes: the server opens the sum of all of them and nothing else."""

import dataclasses
import logging

import numpy as np
import pytest
import torch

from deploy.direct import federation_of, job_of
from deploy.test_checks import body, head
from deploy.test_fleet import METHODS, distributed, same
from tacit.config import config
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import BadPayload, Each, Payload, Shared, decode
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.deploy.fleet import TooFew
from tacit.deploy.node import Node
from tacit.deploy.server import prepare
from tacit.deploy.wire import ANSWERS, VERSION, Packet, unpack
from tacit.errors import UserError
from tacit.privacy import secure_sum
from tacit.privacy.fixed_point import FixedPoint
from tacit.privacy.secure_fleet import BOUND, SecureFleet
from toys import few_users

ONE = METHODS["fedmf"] | {"epochs": 1}


def securely(folder, data, method="fedmf", settings=ONE, parts=3, **options):
    return federation_of(folder, data, job_of(data, method, settings, secure=True), parts, **options)


def in_process(method, federation, rounds, kind=SecureFleet, without=()):
    fleet, server = kind(method, federation, threads=1), method.init_server(federation)
    ids = torch.tensor([c for c in range(federation.n_clients) if c not in without])
    for round in range(1, rounds + 1):
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return server


@pytest.mark.parametrize("name", ["fedmf", "fedncf", "tally"])
def test_the_sum_over_nodes_is_that_of_the_simulation_with_and_without_masks(tmp_path, name):
    data = few_users(24)
    settings = METHODS[name] | ({"inputs": 20} if name == "tally" else {})
    fleet, _ = securely(tmp_path, data, name, settings)
    federation, rounds = Federation.of_users(split(data, "strict")), 1 if name == "tally" else 2
    found = distributed(fleet, rounds)
    same(in_process(fleet.method, federation, rounds), found)
    if name != "tally":  # exact in fixed point, and to rounding without
        same(in_process(fleet.method, federation, rounds, SimulatedFleet), found)


def test_what_a_node_sends_is_no_upload_and_never_the_same(tmp_path):
    data = few_users(24)
    sent, traffic = [], Traffic()
    for folder in "ab":
        fleet, link = securely(tmp_path / folder, data)
        link.seen.clear()
        before = traffic.bytes_up
        (up,) = fleet.train(fleet.method.init_server(fleet.federation), torch.arange(24), 1, traffic)
        assert up.ids.tolist() == [-1]
        kinds = [unpack(asked).kind for name, asked, _ in link.seen if name == "n1"]
        assert kinds == ["invite", "introduce", "train", "confirm", "reveal"]
        (blob,) = [unpack(r).body for name, asked, r in link.seen if name == "n1" and unpack(asked).kind == "train"]
        sent.append(blob)
        with pytest.raises(BadPayload):
            decode(blob)
    words = [np.frombuffer(secure_sum.decode(secure_sum.Masked, blob).words, dtype="<u8") for blob in sent]
    assert (words[0] != words[1]).all(), "the same round, the same seed, other masks"
    high = words[0] >> np.uint64(32)  # an upload would have nothing but zeros or ones up there
    assert abs(np.corrcoef(high[:-1].astype(float), high[1:].astype(float))[0, 1]) < 0.2
    assert np.unique(high).size > 0.99 * high.size
    assert traffic.clients == 48
    assert traffic.bytes_up == before + sum(len(reply) for _, _, reply in link.seen)


@pytest.mark.parametrize("stage", ["invite", "introduce", "train", "confirm", "reveal"])
def test_a_node_that_falls_silent_leaves_the_sum_of_the_others(tmp_path, stage):
    data = few_users(24)
    fleet, link = securely(tmp_path, data, parts=6)
    kind = ANSWERS[stage]
    link.spoil = {"n1": lambda reply: None if unpack(reply).kind == kind else reply}
    gone = range(4, 8) if stage not in ("confirm", "reveal") else ()  # at the end its vector is in the sum already
    federation = Federation.of_users(split(data, "strict"))
    same(in_process(fleet.method, federation, 1, without=gone), distributed(fleet, 1))
    assert fleet.count.silent == 1
    assert fleet.board.sums == {"round": 1, "asked": 6, "survived": 5 if gone else 6}


BAD = {
    "a plain upload": body(lambda blob: blob[12:]),
    "a word less": body(lambda blob: blob[:4] + b"\x08\0\0\0" + (len(blob) - 20).to_bytes(4, "little") + blob[20:]),
    "cut short": body(lambda blob: blob[:-1]),
    "another node's": body(lambda blob: b"\x03\0\0\0" + blob[4:]),
    "half words": body(lambda blob: blob[:4] + b"\x04" + blob[5:]),
    "another round": head(round=9),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_vector_is_refused_and_the_sum_is_that_of_the_others(tmp_path, name, caplog):
    data = few_users(24)
    fleet, link = securely(tmp_path, data, parts=6)
    # the first to come: what the others send is not held against it
    link.spoil = {"n0": lambda reply: BAD[name](reply) if unpack(reply).kind == "trained" else reply}
    federation = Federation.of_users(split(data, "strict"))
    with caplog.at_level(logging.WARNING, "tacit.server"):
        same(in_process(fleet.method, federation, 1, without=range(4)), distributed(fleet, 1))
    assert fleet.count.refused == 1
    assert "an upload of node 'n0' is refused" in caplog.text


def test_too_few_nodes_open_nothing(tmp_path):
    data = few_users(24)
    fleet, link = securely(tmp_path, data)
    server = fleet.method.init_server(fleet.federation)
    with pytest.raises(TooFew, match="a secure sum of 2 nodes hides nothing"):
        list(fleet.train(server, torch.arange(16), 1, Traffic()))
    link.spoil = {"n2": lambda reply: None if unpack(reply).kind == "trained" else reply}
    with pytest.raises(TooFew, match="secure sum aborted: 2 of 3 clients are left after MaskedInput"):
        list(fleet.train(server, torch.arange(24), 1, Traffic()))


def test_a_sum_that_no_honest_nodes_could_give_is_refused(tmp_path, caplog):
    data = few_users(24)
    fleet, link = securely(tmp_path, data)

    def poison(blob):
        words = np.frombuffer(blob[12:], dtype="<u8").copy()
        words[0] += np.uint64(1 << 60)
        return blob[:12] + words.tobytes()

    link.spoil = {"n1": lambda reply: body(poison)(reply) if unpack(reply).kind == "trained" else reply}
    with caplog.at_level(logging.WARNING, "tacit.server"), pytest.raises(TooFew, match="the sum of the uploads"):
        distributed(fleet, 1)
    assert "the sum of 3 nodes is refused: 'items' has a norm of" in caplog.text


def test_a_node_sends_nothing_outside_a_secure_sum(tmp_path):
    data = few_users(24)
    fleet, link = securely(tmp_path / "a", data)
    node = link.named["n0"]
    down = fleet.method.downlink(fleet.method.init_server(fleet.federation), torch.arange(8)).encode()
    asked = {"job": fleet.job.id, "place": [0, 0], "keep": [0], "round": 1}
    assert unpack(node.answer(Packet("train", asked, down).pack())).head == {"error": "UserError"}
    early = asked | {"clients": 24, "delivery": ""}
    assert unpack(node.answer(Packet("train", early, down).pack())).kind == "sorry"
    assert unpack(node.answer(Packet("reveal", asked | {"party": 0}).pack())).head == {"error": "Unknown"}
    careful = Node(data, tmp_path / "b", threads=1, secure=True)
    for job, answer in ((job_of(data, "fedmf", ONE), "sorry"), (fleet.job, "here")):
        assert unpack(careful.answer(Packet("hello", {"version": VERSION}, job.dump()).pack())).kind == answer


def test_what_cannot_be_summed_is_refused_at_the_start(tmp_path):
    from deploy.test_server import asked

    secure = config(method="fedmf", data="nodes", secure=True)
    with pytest.raises(UserError, match="a secure sum of 2 nodes hides nothing"):
        prepare(dataclasses.replace(asked(tmp_path, nodes=2), config=secure), tmp_path / "run")
    each = dataclasses.replace(asked(tmp_path), config=config(method="gpfedrec", data="nodes", secure=True))
    with pytest.raises(UserError, match="does not work with a secure sum"):
        prepare(each, tmp_path / "run")


def test_a_sum_weighs_no_more_than_its_clients_announced(tmp_path):
    """Words of a masked vector can be added to without knowing the masks; what a node adds to the weight is seen."""
    data = few_users(24)
    fleet, link = securely(tmp_path, data)
    point = FixedPoint(BOUND, 24)
    free = 24 * data.n_items - int(fleet.federation.sizes.sum())
    assert free > 100

    def heavier(by):
        more = int(point.encode(np.array([float(by)])).astype(np.uint64)[0])

        def change(blob):
            word = (int.from_bytes(blob[-8:], "little") + more) % 2**64
            return blob[:-8] + word.to_bytes(8, "little")

        return lambda reply: body(change)(reply) if unpack(reply).kind == "trained" else reply

    link.spoil = {"n1": heavier(0)}
    distributed(fleet, 1)
    link.spoil = {"n1": heavier(free / 2)}
    with pytest.raises(TooFew, match="'weight' is outside"):
        distributed(fleet, 2, first=2)


def told(**values):
    return lambda packet: Packet(packet.kind, packet.head | values, packet.body)


def model(make):
    def change(packet):
        down = decode(packet.body)
        fields = {name: make(field, len(down.ids)) for name, field in down.fields.items()}
        return Packet(packet.kind, packet.head, Payload(down.ids, fields).encode())

    return change


LIES = {
    "steps so wide that all becomes zero": told(clients=2**55),
    "another model": model(lambda field, clients: Shared(field.dense() * 0)),
    "a model each": model(lambda field, clients: Each(field.dense().repeat(clients, *[1] * field.dense().dim()))),
}


@pytest.mark.parametrize("name", LIES)
def test_a_server_cannot_make_the_others_send_nothing(tmp_path, name):
    """Told of another fixed point than the first node, the others sent zeros: the sum was that node's upload."""
    fleet, link = securely(tmp_path, few_users(24))
    honest = {name: node.answer for name, node in link.named.items()}

    def lied_to(node):
        def answer(blob):
            packet = unpack(blob)
            return honest[node]((LIES[name](packet) if packet.kind == "train" else packet).pack())

        return answer

    for node in ("n1", "n2"):
        link.named[node].answer = lied_to(node)
    with pytest.raises(TooFew, match=r"secure sum aborted: . of 3 clients are left after (Unmask|MaskedInput)"):
        list(fleet.train(fleet.method.init_server(fleet.federation), torch.arange(24), 1, Traffic()))
    assert not any(unpack(reply).kind == "revealed" for _, _, reply in link.seen)


def test_limits_of_a_fold_do_not_open_a_sum(tmp_path):
    """Limits are each node's own: with nought for all but one, the sum was that one's upload."""
    fleet, link = securely(tmp_path, few_users(24))
    for node, limit in (("n0", 1e30), ("n1", 0.0), ("n2", 0.0)):
        real = link.named[node].answer

        def answer(blob, real=real, limit=limit):
            packet = unpack(blob)
            return real((told(fold={"items": limit})(packet) if packet.kind == "train" else packet).pack())

        link.named[node].answer = answer
    with pytest.raises(TooFew, match="secure sum aborted: 0 of 3 clients"):
        list(fleet.train(fleet.method.init_server(fleet.federation), torch.arange(24), 1, Traffic()))
    asked = [unpack(reply) for _, blob, reply in link.seen if unpack(blob).kind == "train"]
    assert [packet.kind for packet in asked] == ["sorry"] * 3, "or a server with room for a fold opens the sum"


def test_nodes_of_different_runs_do_not_open_a_sum(tmp_path):
    """Settings are the server's: with a rate of zero the others would add nothing to what one node has learnt."""
    data = few_users(24)
    fleet, link = securely(tmp_path, data)
    still = job_of(data, "fedmf", ONE | {"lr": 0.0, "table_lr": 0.0}, secure=True)
    for node in ("n1", "n2"):
        real = link.named[node].answer
        assert unpack(real(Packet("hello", {"version": VERSION}, still.dump()).pack())).kind == "here"

        def answer(blob, real=real):
            packet = unpack(blob)
            return real(Packet(packet.kind, packet.head | {"job": still.id}, packet.body).pack())

        link.named[node].answer = answer
    with pytest.raises(TooFew, match="secure sum aborted: 0 of 3 clients are left after Unmask"):
        list(fleet.train(fleet.method.init_server(fleet.federation), torch.arange(24), 1, Traffic()))


def test_a_node_trains_nobody_elses_clients(tmp_path, caplog):
    fleet, link = federation_of(tmp_path, few_users(24), job_of(few_users(24), "popularity"))
    down = fleet.method.downlink(fleet.method.init_server(fleet.federation), torch.arange(1)).encode()
    asked = {"job": fleet.job.id, "place": [8, 8], "keep": [0], "round": 1}
    assert unpack(link.named["n1"].answer(Packet("train", asked, down).pack())).head == {"error": "Unknown"}


def test_a_method_that_needs_single_uploads_is_in_no_secure_sum_of_a_node(tmp_path):
    """Its models are each client's own: nobody could compare them."""
    data = few_users(24)
    fleet, _ = securely(tmp_path, data, "gpfedrec", METHODS["gpfedrec"])
    with pytest.raises(TooFew, match="0 of 3 clients are left after MaskedInput"):
        list(fleet.train(fleet.method.init_server(fleet.federation), torch.arange(24), 1, Traffic()))
