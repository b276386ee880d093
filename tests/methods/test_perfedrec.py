import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import decode
from tacit.methods.lightgcn import FedLightGCN, graph, propagate
from tacit.methods.perfedrec import PerFedRec
from tacit.testing import mixed_clients
from toys import few_clients

SMALL = {"dim": 4, "init": 0.3, "clusters": 3, "lr": 0.5, "table_lr": 5.0}


def rounds(method, federation, count, ids=None, over_wire=False):
    """The server's states and the uploads' dense tables, round by round."""
    fleet, server = SimulatedFleet(method, federation, threads=1, chunk=5), method.init_server(federation)
    states, sent = [server], []
    for round in range(1, count + 1):
        ups = list(fleet.train(server, torch.arange(federation.n_clients) if ids is None else ids, round, Traffic()))
        if over_wire:
            ups = [decode(up.encode()) for up in ups]
        server = method.aggregate(server, iter(ups), Moment(round, 0))
        states.append(server)
        sent.append(
            {int(i): (up["items"][n], up["taste"][n], up["weight"][n]) for up in ups for n, i in enumerate(up.ids)}
        )
    return fleet, states, sent


@pytest.mark.parametrize("start", ["cluster", "global"])
@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("over_wire", [False, True])
def test_tables_are_means_over_all_and_over_the_clusters_of_the_round(start, weighting, over_wire):
    federation = few_clients(24)
    method = PerFedRec(**SMALL, start=start, weighting=weighting)
    _, states, sent = rounds(method, federation, 3, over_wire=over_wire)
    for number, (before, after, up) in enumerate(zip(states, states[1:], sent, strict=False)):
        weight = {i: float(federation.sizes[i]) if weighting == "size" else 1.0 for i in up}
        assert weight == {i: float(w) for i, (_, _, w) in up.items()}

        def mean(ids, up=up, weight=weight):
            return sum(weight[i] * up[i][0].double() for i in ids) / sum(weight[i] for i in ids)

        torch.testing.assert_close(after["items"].double(), mean(up), atol=1e-5, rtol=1e-5)
        for k in range(3):
            members = [i for i in up if int(before["label"][i]) == k]
            expected = mean(members) if members else after["items"].double()
            assert bool(members) == (number > 0)
            torch.testing.assert_close(after["near"][k].double(), expected, atol=1e-5, rtol=1e-5)


def test_clients_are_grouped_by_the_vectors_they_sent():
    federation = few_clients(24)
    _, states, sent = rounds(PerFedRec(**SMALL), federation, 3)
    for server, up in zip(states[1:], sent, strict=True):
        for i, (_, taste, _) in up.items():
            assert torch.equal(server["tastes"][i], taste)
        assert torch.equal(server["label"], torch.cdist(server["tastes"], server["centres"]).argmin(1))
        for k in range(3):
            middle = server["tastes"][server["label"] == k].mean(0)
            torch.testing.assert_close(server["centres"][k], middle, atol=1e-5, rtol=1e-4)


def test_a_client_of_many_users_is_grouped_by_their_mean():
    federation = mixed_clients()
    fleet, _, sent = rounds(PerFedRec(**SMALL), federation, 1)
    for client, (_, taste, _) in sent[0].items():
        users = torch.from_numpy(federation.members[client])
        torch.testing.assert_close(taste, fleet.store.leaves["user"][users].mean(0))


def test_who_has_not_taken_part_has_no_cluster_and_gets_everybodys_table():
    federation = few_clients(12)
    method = PerFedRec(**SMALL, start="cluster")
    _, states, _ = rounds(method, federation, 2, ids=torch.tensor([0, 2, 3, 7, 9]))
    server = states[-1]
    there = torch.zeros(12, dtype=torch.bool)
    there[[0, 2, 3, 7, 9]] = True
    assert torch.equal(server["label"] >= 0, there)
    down = method.downlink(server, torch.tensor([1, 3]))
    assert torch.equal(down["items"][0], server["items"])
    assert torch.equal(down["items"][1], server["near"][server["label"][3]])
    assert torch.equal(down["second"], server["items"])
    swapped = PerFedRec(**SMALL, start="global").downlink(server, torch.tensor([1, 3]))
    assert torch.equal(swapped["items"], down["second"])
    assert torch.equal(swapped["second"], down["items"])


def test_a_cluster_without_a_member_in_a_round_keeps_its_table():
    federation = few_clients(12)
    method = PerFedRec(**SMALL)
    fleet, states, _ = rounds(method, federation, 2)
    server = states[-1]
    absent = 1
    ids = (server["label"] != absent).nonzero().flatten()
    after = method.aggregate(server, fleet.train(server, ids, 3, Traffic()), Moment(3, 0))
    assert torch.equal(after["near"][absent], server["near"][absent])
    assert not torch.equal(after["near"][0], server["near"][0])


@pytest.mark.parametrize("start", ["cluster", "global"])
def test_a_client_ranks_with_the_mixture_of_three_tables(start):
    federation = few_clients(12)
    method = PerFedRec(**SMALL, own=0.5, near=0.3, wide=0.2, start=start)
    ids = torch.arange(11)  # client 11 never trains
    fleet, states, sent = rounds(method, federation, 2, ids=ids)
    server = states[-1]
    for user in (0, 5, 11):
        known = user < 11
        near = server["near"][server["label"][user]] if known else server["items"]
        own = sent[-1][user][0] if known else server["items"]
        mixed = 0.5 * own + 0.3 * near + 0.2 * server["items"]
        data = federation.people(torch.tensor([user]))
        vector = fleet.store.leaves["user"][user].view(1, 1, -1)
        users, items = propagate(vector, mixed[None], **graph(data, method.elsewhere), layers=method.layers)
        torch.testing.assert_close(fleet.scores_of(server, user, "test"), items[0] @ users[0, 0], atol=1e-5, rtol=1e-5)


def test_one_cluster_and_the_servers_table_are_federated_lightgcn():
    federation = few_clients(12)
    settings = {k: v for k, v in SMALL.items() if k != "clusters"}
    fleet, states, _ = rounds(
        PerFedRec(**settings, clusters=1, weighting="size", scored_with="server", own=0, near=0, wide=1), federation, 3
    )
    plain = FedLightGCN(**settings)
    other, server = SimulatedFleet(plain, federation, threads=1), plain.init_server(federation)
    for round in (1, 2, 3):
        server = plain.aggregate(server, other.train(server, torch.arange(12), round, Traffic()), Moment(round, 0))
    torch.testing.assert_close(states[-1]["items"], server["items"], atol=1e-5, rtol=1e-5)
    for user in (0, 7):
        found, expected = fleet.scores_of(states[-1], user, "valid"), other.scores_of(server, user, "valid")
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-5)
