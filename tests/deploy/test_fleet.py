import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from deploy.direct import cut, federation_of, job_of
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, decode
from tacit.data.cohort import Federation
from tacit.data.interactions import from_columns
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from tacit.deploy.fleet import Grown, TooFew
from tacit.deploy.lists import recommend
from tacit.deploy.node import Node
from tacit.deploy.wire import Packet, unpack
from tacit.evaluation.metrics import by_hits
from tacit.evaluation.protocol import Evaluator
from tacit.methods import known
from toys import few_users, random_data

METHODS = {
    "fedmf": {"dim": 4, "epochs": 2, "init": 0.1},
    "fedncf": {"epochs": 1},
    "pfedclr": {"dim": 4, "epochs": 1, "fraction": 1.0},
    "cgfedrec": {"dim": 4, "epochs": 1},
    "fedcia": {"dim": 4, "epochs": 1},
    "fedcia/gfcf": {"backbone": "gfcf"},
    "fedcia/factors": {"dim": 4, "epochs": 1, "rank": 3},
    "hetefedrec": {"epochs": 1},
    "pfedgraph": {"dim": 4, "epochs": 1},
    "plgc+fedmf": {"dim": 4, "epochs": 1},
    "gpfedrec": {"dim": 4, "epochs": 1},
    "perfedrec": {"dim": 4, "epochs": 1},
    "cofedrec": {"dim": 4, "epochs": 1},
    "fedca": {"dim": 4, "epochs": 1},
    "fedrap": {"dim": 4, "epochs": 1},
    "pfedrec": {"dim": 4, "epochs": 1},
    "tally": {"windows": [1, 5], "decays": [1.0, 0.8], "ridge": [1.0], "blend": [0.3, 0.5]},
}


def simulated(method, federation, rounds=2, without=()):
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    ids = torch.tensor([c for c in range(federation.n_clients) if c not in without])
    for round in range(1, rounds + 1):
        asked = ids if method.asks(round) else ids[:0]
        server = method.aggregate(server, fleet.train(server, asked, round, Traffic()), Moment(round, 0))
    return server, fleet


def distributed(fleet, rounds=2, first=1, server=None):
    method = fleet.method
    server = method.init_server(fleet.federation) if server is None else server
    ids = torch.arange(fleet.federation.n_clients)
    for round in range(first, rounds + 1):
        asked = ids if method.asks(round) else ids[:0]
        server = method.aggregate(server, fleet.train(server, asked, round, Traffic()), Moment(round, 0))
    return server


def same(one, other):
    assert set(one) == set(other)
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", [n for n in METHODS if n.split("/")[0].split("+")[-1] in known()])
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_three_nodes_give_the_server_state_and_metrics_of_the_simulation(tmp_path, name, protocol):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, name.split("/")[0], METHODS[name], protocol=protocol))
    server = distributed(fleet)
    divided = split(data, protocol)
    expected, local = simulated(fleet.method, Federation.of_users(divided))
    same(expected, server)
    for phase in ("valid", "test"):
        found = fleet.evaluate(server, phase, 2)
        result = Evaluator(divided, by_hits())(local.scores(expected, phase), phase)
        assert found.users == result.users
        assert found.main == pytest.approx(result.main, abs=1e-6)
        assert (found.sampled99 or {}) == pytest.approx(result.sampled99 or {}, abs=1e-6)
    if protocol == "strict":
        serves_a_newcomer(tmp_path / "n1", link.named["n1"].data)


def serves_a_newcomer(folder, data):
    """A user who was not there when the node joined gets a list of its own, and another one with other tastes."""
    user, item = data.user_ids[data.user], data.item_ids[data.item]
    lists = []
    for likes in (item[data.user == 0], item[data.user == 3]):
        users, items = np.append(user, np.full(len(likes), "newcomer")), np.append(item, likes)
        more = from_columns("own", users, items, np.arange(float(len(users))))
        found = recommend(folder, more, "newcomer", 5)
        lists.append({line.item: line.score for line in found})
        assert len(found) == 5
        assert not set(likes.tolist()) & set(lists[-1])
        assert np.isfinite(list(lists[-1].values())).all()
    assert lists[0] != lists[1]


def test_nodes_say_what_devices_their_clients_have(tmp_path):
    plain = few_users(24)
    names = np.array(["large", "small", ""])[np.arange(24) % 3]
    names[20:] = ""
    data = replace(plain, groups=names)
    settings = {"widths": [2, 3, 5], "distillation": False}
    fleet, _ = federation_of(tmp_path, data, job_of(data, "hetefedrec", settings))
    expected, own = simulated(fleet.method, Federation.of_users(split(data, "strict", 0)), rounds=1)
    found = distributed(fleet, rounds=1)
    assert expected["group"].tolist() == fleet.method.group(own.federation).tolist()
    assert [int(g) for g, name in zip(expected["group"], names, strict=True) if name == "large"] == [2] * 7
    assert all(torch.allclose(found[n].float(), x.float(), atol=1e-5, rtol=1e-5) for n, x in expected.items())


def test_a_node_may_be_one_client(tmp_path):
    data = few_users(24)
    fleet, _ = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"], together=True))
    groups = Federation(split(data, "strict"), Ragged(torch.tensor([0, 8, 16, 24]).numpy(), torch.arange(24).numpy()))
    assert fleet.federation.n_clients == 3
    assert fleet.federation.sizes.tolist() == groups.sizes.tolist()
    same(simulated(fleet.method, groups)[0], distributed(fleet))


def test_data_without_times_and_with_ties_are_split_as_in_the_simulation(tmp_path):
    for number, options in enumerate(({"times": False}, {"ties": True})):
        data = random_data(users=9, items=60, **options)
        fleet, _ = federation_of(tmp_path / str(number), data, job_of(data, "fedmf", METHODS["fedmf"]))
        same(simulated(fleet.method, Federation.of_users(split(data, "strict")))[0], distributed(fleet))


def test_one_message_goes_to_a_node_in_a_round_and_says_nothing_of_its_users(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]))
    link.seen.clear()
    traffic = Traffic()
    server = fleet.method.init_server(fleet.federation)
    list(fleet.train(server, torch.arange(24), 1, traffic))
    assert sorted(name for name, _, _ in link.seen) == ["n0", "n1", "n2"]
    assert traffic.clients == 24
    assert traffic.bytes_down == sum(len(down) for _, down, _ in link.seen)
    assert traffic.bytes_up == sum(len(up) for _, _, up in link.seen)
    for name, _, reply in link.seen:
        packet = unpack(reply)
        assert set(packet.head) == {"round", "loss", "seconds"}
        up = decode(packet.body)
        assert set(up.fields) == {"items", "weight"}
        users = link.named[name].work.fleet.store.leaves["user"]
        table = up["items"].reshape(-1, users.shape[1])
        assert not any((table - user).abs().sum(1).min() < 1e-6 for user in users)


def test_clients_that_were_not_chosen_are_not_asked_and_keep_their_state(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]))
    chosen = torch.tensor([0, 3, 9])
    server = fleet.method.init_server(fleet.federation)
    link.seen.clear()
    traffic = Traffic()
    list(fleet.train(server, chosen, 1, traffic))
    assert traffic.clients == 3
    assert sorted(i for _, down, _ in link.seen for i in decode(unpack(down).body).ids.tolist()) == [0, 3, 9]
    assert {name for name, _, _ in link.seen} == {"n0", "n1"}
    start = fleet.method.init_users(fleet.federation, torch.arange(24))["user"]
    moved = (link.named["n0"].work.fleet.store.leaves["user"] != start[:8]).any(1)
    assert moved.nonzero()[:, 0].tolist() == [0, 3]


def test_a_round_goes_on_without_a_node_and_fails_with_too_few(tmp_path, caplog):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]), least=0.5)
    link.gone = {"n1"}
    with caplog.at_level(logging.WARNING, "tacit.server"):
        server = distributed(fleet)
    assert "node 'n1' is not there" in caplog.text
    assert fleet.count.silent == 2
    federation = Federation.of_users(split(data, "strict"))
    same(simulated(fleet.method, federation, without=range(8, 16))[0], server)
    link.spoil = {"n0": lambda reply: None}
    with pytest.raises(TooFew, match="8 of 24 clients"):
        distributed(fleet)


def test_two_of_five_nodes_go_and_one_comes_back(tmp_path):
    """Everyone in round 1; n1 and n3 are gone in round 2; n1, started anew, is back in round 3 with what it had."""
    data = few_users(30)
    fleet, link = federation_of(tmp_path, data, job_of(data, "pfedclr", METHODS["pfedclr"]), parts=5)
    twin = SimulatedFleet(fleet.method, Federation.of_users(split(data, "strict")), threads=1)
    server = expected = fleet.method.init_server(twin.federation)
    everyone = torch.arange(30)
    there = [everyone, everyone[(everyone // 6 != 1) & (everyone // 6 != 3)], everyone[everyone // 6 != 3]]
    for round, (gone, ids) in enumerate(zip((set(), {"n1", "n3"}, {"n3"}), there, strict=True), 1):
        if "n1" in link.gone - gone:
            link.named["n1"] = Node(link.named["n1"].data, link.named["n1"].vault.path, threads=1)
        link.gone = gone
        server = distributed(fleet, rounds=round, first=round, server=server)
        expected = fleet.method.aggregate(expected, twin.train(expected, ids, round, Traffic()), Moment(round, 0))
        same(expected, server)
    for name, leaf in link.named["n1"].work.fleet.store.leaves.items():
        torch.testing.assert_close(leaf, twin.store.leaves[name][6:12], atol=1e-5, rtol=1e-5)


def test_a_round_that_is_asked_for_again_starts_from_the_state_before_it(tmp_path):
    data = few_users(24)
    job = job_of(data, "pfedclr", METHODS["pfedclr"])
    fleet, link = federation_of(tmp_path, data, job)
    first = distributed(fleet, rounds=1)
    once = distributed(fleet, rounds=3, first=2, server=first)
    for name in list(link.named):  # the nodes are restarted and the server has lost round 3
        old = link.named[name]
        link.named[name] = Node(old.data, old.vault.path, threads=1)
    second = distributed(fleet, rounds=2, first=2, server=first)
    same(once, distributed(fleet, rounds=3, first=3, server=second))


def test_the_state_of_the_best_round_is_kept(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "pfedclr", METHODS["pfedclr"]))
    best = distributed(fleet, rounds=1)
    expected = fleet.evaluate(best, "test", 1)
    fleet.best_round = lambda: 1
    distributed(fleet, rounds=5, first=2, server=best)
    assert fleet.evaluate(best, "test", 1) == expected
    vault = link.named["n0"].vault
    assert vault.rounds(vault.current) == [1, 4, 5]


def test_a_new_node_joins_where_the_method_keeps_no_row_for_each_client(tmp_path):
    data = few_users(30)
    for name, grows in (("fedmf", True), ("pfedgraph", False)):
        job = job_of(data, name, METHODS[name])
        fleet, link = federation_of(tmp_path / name, cut(data, torch.arange(20).numpy()), job, parts=2)
        link.named["late"] = Node(cut(data, torch.arange(20, 30).numpy()), tmp_path / name / "late", "late", threads=1)
        if grows:
            with pytest.raises(Grown):
                distributed(fleet, rounds=1)
        distributed(fleet, rounds=1)
        assert fleet.federation.n_clients == (30 if grows else 20)
        if grows:
            same(simulated(fleet.method, Federation.of_users(split(data, "strict")), 1)[0], distributed(fleet, 1))


def test_a_round_that_chose_clients_of_a_removed_node_alone_has_no_uploads(tmp_path):
    data = few_users(24)
    fleet, _ = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]), least=1.0)
    fleet.members[1] = replace(fleet.members[1], removed=True)
    server = fleet.method.init_server(fleet.federation)
    assert list(fleet.train(server, torch.arange(8, 16), 1, Traffic())) == []
    traffic = Traffic()
    list(fleet.train(server, torch.arange(24), 1, traffic))
    assert traffic.clients == 16


def test_two_nodes_of_one_name_are_one_too_many(tmp_path, caplog):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]))
    link.named["n3"] = Node(data, tmp_path / "n3", "n0", threads=1)
    distributed(fleet, rounds=1)
    assert "there is already a node 'n0'" in caplog.text
    assert len(fleet.members) == 3


def test_noise_is_added_on_the_node_and_not_from_the_seed(tmp_path):
    data = few_users(24)
    noise = {"kind": "laplace", "scale": 0.01, "clip": 0.5, "delta": 1e-5, "source": "seed"}
    job = job_of(data, "fedmf", METHODS["fedmf"] | {"init": 0.01}, ldp=noise)
    fleet, link = federation_of(tmp_path, data, job)
    sent = []
    for _ in range(2):
        link.seen.clear()
        distributed(fleet, rounds=1)
        ups = [decode(unpack(reply).body) for _, _, reply in link.seen]
        assert [up["weight"].tolist() for up in ups] == [[8]] * 3, "the weight would tell how much a user has"
        sent.append(torch.cat([up["items"] for up in ups]))
    change = sent[0] - fleet.method.init_server(fleet.federation)["items"]
    assert (change != 0).all(), "noise on every row"
    assert change.std() == pytest.approx(0.01 * (2 / 8) ** 0.5, rel=0.3), "on each of a node's eight clients"
    assert not torch.equal(*sent), "whoever knows the seed could take the noise off"
    assert fleet.count.refused == 0


def test_an_evaluation_singles_out_nobody(tmp_path):
    """With a table of its own for one user, and zeros for all others, mean metrics named that user's held-out item."""
    data = few_users(8)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", METHODS["fedmf"]), 1)
    server, ids = fleet.method.init_server(fleet.federation), torch.arange(8)
    down = fleet.method.downlink(server, ids)
    each = {name: Each(field.dense().expand(8, *field.one_shape).clone()) for name, field in down.fields.items()}
    head = {"job": fleet.job.id, "place": [0, 0], "keep": [0], "round": 1, "phase": "valid"}
    for fields, kind in ((down.fields, "evaluated"), (down.fields | each, "sorry")):
        asked = Packet("evaluate", head, Payload(ids, fields).encode()).pack()
        assert unpack(link.named["n0"].answer(asked)).kind == kind
