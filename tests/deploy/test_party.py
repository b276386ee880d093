"""What a node does in a secure sum whose server lies, or asks twice."""

import dataclasses

import pytest
import torch

from deploy.direct import Direct
from deploy.test_fleet import distributed
from deploy.test_secure import securely
from deploy.test_server import SETTINGS, asked, go, nodes, states
from tacit.config import config
from tacit.core.fleet import Traffic
from tacit.deploy import keys
from tacit.deploy.node import Node
from tacit.deploy.wire import Packet, unpack
from tacit.errors import UserError
from tacit.privacy import secure_sum
from tacit.runs.folder import RunFolder
from toys import few_users


def stages(link, job, round, change=lambda stage, word: word):
    """A server of its own, which may lie to node n0: what that node answers, stage by stage, up to a refusal."""
    nodes = dict(enumerate(link.named.values()))
    server = secure_sum.Server(list(nodes))
    heard = {}

    def ask(stage, words, answer, take):
        for i, word in words.items():
            word = change(stage, word) if i == 0 else word
            head = {"job": job.id, "place": [8 * i, 8 * i], "keep": [0], "round": round, "party": i}
            reply = unpack(nodes[i].answer(Packet(stage, head, secure_sum.encode(word)).pack()))
            if i == 0:
                heard[stage] = reply
            if reply.kind != "sorry":
                take(secure_sum.decode(answer, reply.body))

    ask("invite", server.invite(), secure_sum.Keys, server.keys)
    ask("introduce", server.introduce(), secure_sum.Shares, server.shares)
    return heard


def test_a_node_refuses_a_threshold_at_which_a_lying_server_could_open_it(tmp_path, caplog):
    fleet, link = securely(tmp_path, few_users(24))
    assert stages(link, fleet.job, 1)["introduce"].kind == "shared"
    for threshold in (0, 1):

        def lie(stage, word, threshold=threshold):
            return dataclasses.replace(word, threshold=threshold) if stage == "introduce" else word

        heard = stages(link, fleet.job, 1, lie)
        assert heard["introduce"].head == {"error": "UserError"}
        assert f"the server wants {threshold} of 2 other parties to open a secret of client 0" in caplog.text


def keyed(folder, data):
    """Three nodes with keys of one authority."""
    keys.make(folder / "keys", [], ["n0", "n1", "n2"])
    fleet, link = securely(folder, data)
    for name, node in link.named.items():
        node.keys = folder / "keys" / "nodes" / name
    return fleet, link


def test_nodes_with_keys_take_part_with_nodes_that_prove_theirs_alone(tmp_path, caplog):
    data = few_users(24)
    fleet, link = keyed(tmp_path, data)
    distributed(fleet, 1)
    assert fleet.count.failed == 0

    def posing(stage, word):
        return dataclasses.replace(word, mask=word.mask | {1: bytes(range(32))}) if stage == "introduce" else word

    for lie in (posing, lambda stage, word: dataclasses.replace(word, proof={}) if stage == "introduce" else word):
        heard = stages(link, fleet.job, 2, lie)
        assert heard["introduce"].head == {"error": "UserError"}
    assert "the keys of client 1 are not its own" in caplog.text
    (tmp_path / "keys" / "nodes" / "n0" / "node.crt").unlink()
    with pytest.raises(UserError, match="2 of 3 clients are left after AdvertiseKeys"):
        stages(link, fleet.job, 2)
    assert "a secure sum needs" in caplog.text


def test_without_keys_a_node_says_what_is_not_protected(tmp_path, caplog):
    securely(tmp_path, few_users(24))
    assert "without keys a server that poses as the other nodes can open this node's uploads" in caplog.text


def test_a_node_helps_to_open_the_sum_of_a_round_once(tmp_path, caplog):
    """Two sums of a round, one of them without n1, would tell its upload."""
    data = few_users(24)
    fleet, link = securely(tmp_path, data, parts=6, least=0.1)
    server = fleet.method.init_server(fleet.federation)
    assert len(list(fleet.train(server, torch.arange(24), 1, Traffic()))) == 1
    link.gone = {"n1"}
    assert list(fleet.train(server, torch.arange(24), 1, Traffic())) == []
    assert "round 1 is left out: nodes help to open the sum of a round only once" in caplog.text
    assert "two sums of a round would tell uploads apart" in caplog.text
    for name, node in link.named.items():
        link.named[name] = Node(node.data, node.vault.path, threads=1)  # started again
    fleet._ids.clear()
    assert list(fleet.train(server, torch.arange(24), 1, Traffic())) == []
    link.gone = set()
    assert len(list(fleet.train(server, torch.arange(24), 2, Traffic()))) == 1


def test_a_sum_that_was_opened_halfway_is_left_out_and_the_run_goes_on(tmp_path, caplog):
    secure = config(method="fedmf", data="nodes", rounds=3, settings=SETTINGS, secure=True)
    what, link = dataclasses.replace(asked(tmp_path), config=secure), Direct(nodes(tmp_path))
    lost = []

    def once(reply):
        packet = unpack(reply)
        if packet.kind == "revealed" and packet.head["round"] == 2 and not lost:
            lost.append(reply)
            return None
        return reply

    link.spoil = {"n1": once}
    go(tmp_path, link, what)
    assert [line["clients"] for line in RunFolder.open(tmp_path / "run").rounds()] == [24, 0, 24]
    assert "round 2 is left out" in caplog.text
    late = dataclasses.replace(
        what, config=config(**secure.model_dump() | {"method": "tally", "settings": {"inputs": 20}})
    )
    lost.clear()
    link = Direct(nodes(tmp_path / "late"))
    link.spoil = {"n1": lambda reply: None if unpack(reply).kind == "revealed" else reply}
    with pytest.raises(UserError, match="nodes help to open the sum of a round only once; start a new run"):
        go(tmp_path, link, late, out="late-run")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("secure", [False, True])
def test_a_trained_round_is_not_asked_for_again_when_the_server_dies_before_it_is_evaluated(tmp_path, secure):
    made = config(method="fedmf", data="nodes", rounds=3, settings=SETTINGS, secure=secure)
    what = dataclasses.replace(asked(tmp_path), config=made)
    expected = go(tmp_path, Direct(nodes(tmp_path / "a")), what, out="through")
    link = Direct(nodes(tmp_path / "b"))

    def ask_and_die(messages, seconds):
        packet = unpack(next(iter(messages.values())))
        if packet.kind == "evaluate" and packet.head["round"] == 2:
            raise Killed
        return Direct.ask(link, messages, seconds)

    link.ask = ask_and_die
    with pytest.raises(Killed):
        go(tmp_path, link, what)
    link.ask = lambda messages, seconds: Direct.ask(link, messages, seconds)
    found = go(tmp_path, link, what)
    heard = [unpack(blob) for who, blob, _ in link.seen if who == "n1"]
    assert [packet.head["round"] for packet in heard if packet.kind == "train"] == [1, 2, 3]
    assert found.test == expected.test
    assert found.client_rounds == expected.client_rounds == 72
    for one, other in zip(states(tmp_path / "run"), states(tmp_path / "through"), strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)
