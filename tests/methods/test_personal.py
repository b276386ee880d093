"""What is personal of a client's leaves: its share in a ranking and its decay, against values written out by hand."""

import pytest
import torch

from methods.test_conformance import CASES
from tacit import testing
from tacit.config import build
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.methods import find
from tacit.methods.fedmf import FedMF
from toys import few_clients

NAMES = ("pfedclr", "plgc+fedmf", "plgc+fedrap", "fedrap", "cgfedrec", "pfedgraph", "fedca")
ON = {"own_share": 0.3, "own_decay": 0.4}


def made(name, **settings):
    return build(find(name), CASES[name].quick | settings)


def rounds(method, federation, number=2):
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    for round in range(1, number + 1):
        uploads = fleet.train(server, torch.arange(federation.n_clients), round, Traffic())
        server = method.aggregate(server, uploads, Moment(round, 0))
    return server, fleet


def ranked(server, fleet):
    """Scores of all clients, (C, M)."""
    users, scores = (torch.cat(parts) for parts in zip(*fleet.scores(server, "valid"), strict=True))
    assert users.tolist() == list(range(len(users)))
    return scores


def squares(table):
    return table.double().square().sum((-2, -1), keepdim=True)


def expected_scores(name, method, server, own, federation, share):
    """p · (x⁰ + s (x − x⁰)), with each method's own x⁰."""
    if name == "pfedclr":
        buffer = own["A"] @ own["B"]
        table = server["items"] + share * (own["own_items"] - server["items"]) + share * buffer
    elif name == "plgc+fedmf":
        local, wide = own["plgc_local"], server["items"]
        mixture = (squares(local) / (squares(local) + squares(wide))).float()
        table = wide + share * mixture * (local - wide)
    elif name == "plgc+fedrap":
        start = method.init_clients(federation, torch.arange(1))["personal"][0]
        mixture = (squares(own["personal"]) / (squares(own["personal"]) + squares(server["items"]))).float()
        mine = start + share * (own["personal"] - start)
        table = mixture * mine + (1 - mixture) * server["items"]
    elif name == "fedrap":
        start = method.init_clients(federation, torch.arange(1))["personal"][0]
        table = server["items"] + start + share * (own["personal"] - start)
    elif name == "cgfedrec":
        table = server["items"] + share * (own["items"] - server["items"])
    else:
        table = server["mean"] + share * (server["tables"] - server["mean"])
    scores = table @ (own["head"] if "head" in own else own["user"])[..., None]
    return scores[..., 0] + own.get("bias", torch.zeros(1))


@pytest.mark.parametrize("name", NAMES)
def test_a_client_ranks_with_a_share_of_what_is_personal(name):
    federation = few_clients(8)
    method = made(name, own_share=0.3)
    server, fleet = rounds(method, federation)
    scores = ranked(server, fleet)
    expected = expected_scores(name, method, server, fleet.store.leaves, federation, 0.3)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)
    other = expected_scores(name, method, server, fleet.store.leaves, federation, 0.6)
    assert not torch.allclose(scores, other, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_share_changes_no_training(name):
    federation = few_clients(8)
    (server, fleet), (plain, usual) = (rounds(made(name, own_share=share), federation) for share in (0.3, 1.0))
    for n, x in plain.items():
        assert torch.equal(server[n], x)
    for n, x in usual.store.leaves.items():
        assert torch.equal(fleet.store.leaves[n], x)


@pytest.mark.parametrize(
    ("name", "leaf"), [("pfedclr", "A"), ("fedrap", "personal"), ("plgc+fedrap", "personal"), ("cgfedrec", "items")]
)
def test_a_round_starts_with_what_the_decay_leaves(name, leaf):
    federation, ids = few_clients(8), torch.arange(8)
    method = made(name, own_decay=0.4)
    server, fleet = rounds(method, federation)
    data = method.data(federation, ids, 3)
    stored = fleet.store.read(data, training=True)
    p = method.receive(stored, method.downlink(server, ids), data)
    if name == "cgfedrec":
        start = server["items"].expand_as(stored[leaf])
    elif name == "pfedclr":
        start = torch.zeros_like(stored[leaf])
    else:
        start = method.init_clients(federation, torch.arange(1))[leaf][0][data.rows]
    torch.testing.assert_close(p[leaf], start + 0.6 * (stored[leaf] - start))
    assert not torch.allclose(p[leaf], stored[leaf], atol=1e-4)
    people = federation.people(ids)
    leaves = fleet.store.read(people)
    served = method.serve(leaves, method.downlink(server, ids), people, "valid")
    factor = served["plgc_share"] if name.startswith("plgc") else 1.0
    torch.testing.assert_close(served[leaf], factor * leaves[leaf])  # nothing decays by ranking


def test_plgc_draws_its_whole_table_towards_the_server():
    federation, ids = few_clients(8), torch.arange(8)
    method = made("plgc+fedmf", own_decay=0.4)
    server, fleet = rounds(method, federation)
    data = method.data(federation, ids, 3)
    stored = fleet.store.read(data, training=True)
    p = method.receive(stored, method.downlink(server, ids), data)
    table = 0.4 * server["items"] + 0.6 * stored["plgc_local"]
    torch.testing.assert_close(p["plgc_local"], table)
    touched = table[ids[:, None], data.rows]
    torch.testing.assert_close(p["items"][data.real], touched[data.real])
    share = squares(table) / (squares(table) + squares(server["items"]))
    torch.testing.assert_close(p["plgc_share"].double(), share, atol=1e-5, rtol=1e-4)


def test_the_trace_of_a_private_table_follows_its_decay():
    federation = few_clients(8)
    _, fleet = rounds(made("plgc+fedrap", own_decay=0.4), federation, 4)
    own = fleet.store.leaves
    torch.testing.assert_close(own["plgc_squares"].double(), squares(own["personal"]).flatten(), atol=1e-3, rtol=1e-4)


def test_fedca_draws_all_tables_towards_their_mean():
    federation = few_clients(8)
    (server, _), (plain, _) = (rounds(made("fedca", own_decay=x, own_share=0.5), federation, 1) for x in (0.4, 0.0))
    torch.testing.assert_close(server["mean"], plain["mean"])
    torch.testing.assert_close(server["tables"], 0.4 * plain["mean"] + 0.6 * plain["tables"])


@pytest.mark.parametrize("name", ["fedca", "pfedgraph"])
def test_without_anything_personal_a_mixture_is_fedmf(name):
    federation = few_clients(8)
    small = {"dim": 4, "epochs": 2, "optimizer": "sgd", "lr": 0.5, "table_lr": 20.0, "init": 0.3}
    method = build(find(name), small | {"proximity": 0.0, "own_decay": 1.0, "own_share": 0.0})
    server, fleet = rounds(method, federation, 3)
    plain, usual = rounds(FedMF(**small), federation, 3)
    torch.testing.assert_close(server["mean"], plain["items"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ranked(server, fleet), ranked(plain, usual), atol=1e-5, rtol=1e-5)


def test_cgfedrec_that_keeps_nothing_trains_as_the_variant_that_sends_its_table():
    federation = few_clients(8)
    (server, fleet), (plain, usual) = (
        rounds(made("cgfedrec", **settings), federation, 3) for settings in ({"own_decay": 1.0}, {"variant": "ec"})
    )
    torch.testing.assert_close(server["items"], plain["items"])
    torch.testing.assert_close(fleet.store.leaves["items"], usual.store.leaves["items"])


def test_a_table_is_sent_only_where_it_is_needed():
    federation, ids = few_clients(8), torch.arange(8)
    for settings, sent in (({}, False), ({"own_share": 0.5}, True), ({"own_decay": 0.5}, True)):
        method = made("cgfedrec", **settings)
        assert ("items" in method.downlink(method.init_server(federation), ids)) == sent
    for settings, sent in (({}, False), ({"own_share": 0.5}, True), ({"own_decay": 0.5}, False)):
        method = made("fedca", **settings)
        assert ("mean" in method.downlink(method.init_server(federation), ids)) == sent


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_keep_what_every_method_must(name, tmp_path):
    # pFedGraph mixes tables by angles: Adam makes steps of single digits' rounding there
    asked = CASES[name].quick | ON | ({"optimizer": "sgd", "lr": 0.3} if name == "pfedgraph" else {})
    testing.check_all(made(name, **asked))
    testing.check_resume(name, asked, tmp_path)


def test_an_adapter_of_which_nothing_ranks_is_fedmf():
    federation = few_clients(8)
    small = {"dim": 4, "epochs": 2, "optimizer": "sgd", "lr": 0.5, "table_lr": 20.0, "init": 0.3}
    method = build(find("pfedclr"), small | {"variant": "af", "own_share": 0.0})
    server, fleet = rounds(method, federation, 3)
    plain, usual = rounds(FedMF(**small), federation, 3)
    torch.testing.assert_close(server["items"], plain["items"])
    torch.testing.assert_close(ranked(server, fleet), ranked(plain, usual))
