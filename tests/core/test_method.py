"""The hooks that every method inherits: what a client receives, keeps and ranks with."""

from dataclasses import dataclass, replace

import pytest
import torch

from tacit import testing
from tacit.core.aggregate import weighted_mean
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.local import local_round
from tacit.core.method import Moment, spread
from tacit.core.payload import Each, Payload, Rows, Shared, decode
from tacit.core.store import ClientStore
from tacit.core.trained import Trained
from tacit.data.cohort import Federation
from tacit.data.splits import split
from toys import few_users

SMALL = {"dim": 4, "epochs": 1, "optimizer": "sgd", "lr": 0.5, "init": 0.3}


@dataclass(frozen=True)
class Personal(Trained):
    """The server keeps a table for every client: the mean of its own last one and everybody's."""

    def init_server(self, federation):
        one = super().init_server(federation)["items"]
        return {"tables": one.expand(federation.n_clients, *one.shape)}

    def downlink(self, server, ids):
        return Payload(ids, {"items": Each(server["tables"][ids])})

    def aggregate(self, server, uplinks, now):
        tables = server["tables"].clone()
        for up in uplinks:
            tables[up.ids] = up["items"]
        return {"tables": 0.5 * tables + 0.5 * tables.mean(0)}


@pytest.fixture
def federation():
    return Federation.of_users(split(few_users(12), "strict"))


def test_a_table_for_every_client_passes_the_conformance_suite():
    testing.check_all(Personal(**SMALL))
    testing.check_all(Personal(**SMALL, scored_with="own"))


def test_a_method_scored_with_its_own_table_passes_the_conformance_suite():
    testing.check_all(Trained(**SMALL, scored_with="own"))


def test_a_personal_table_is_the_shared_one_when_all_are_equal(federation):
    ids = torch.tensor([3, 5])
    data = federation.cohort(ids, 1, 4)
    table = torch.randn(federation.n_items, 4)
    shared, each = Shared(table), Each(table.expand(2, *table.shape))
    assert torch.equal(spread(shared, data, table=True), spread(each, data, table=True))
    value = torch.randn(*data.rows.shape, 4)
    rows = [Rows(value, data.rows, data.real, base) for base in (table, each.value)]
    assert torch.equal(rows[0].dense(), rows[1].dense())
    assert torch.equal(rows[0].change(), rows[1].change())
    assert rows[0].nbytes(2) == rows[1].nbytes(2) == 2 * table.nbytes
    sent = [Payload(ids, {"items": r, "weight": Each(torch.tensor([1.0, 3.0]))}) for r in rows]
    means = [weighted_mean([x], "items")["items"] for x in (*sent, decode(sent[1].encode()))]
    torch.testing.assert_close(means[0], means[1])
    torch.testing.assert_close(means[0], means[2])
    expected = table.clone()
    for c, w in ((0, 0.25), (1, 0.75)):
        real = data.real[c]
        expected[data.rows[c][real]] += w * (value[c] - table[data.rows[c]])[real]
    torch.testing.assert_close(means[0], expected)


def test_a_client_ranks_with_the_table_its_training_left(federation):
    """Touched rows as trained, the others as the server had sent them; the server's new table plays no part."""
    method = Trained(**SMALL, scored_with="own")
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    ids = torch.arange(federation.n_clients)
    data = federation.cohort(ids, 1, 4)
    _, up, _ = local_round(method, ClientStore(method, federation).read(data), method.downlink(server, ids), data)
    after = method.aggregate(server, fleet.train(server, ids, 1, Traffic()), Moment(1, 0))
    scores = dict(_pairs(fleet.scores(after, "test")))
    tables = up["items"]
    for c in range(federation.n_clients):
        torch.testing.assert_close(scores[c], tables[c] @ fleet.store.leaves["user"][c])
    plain = SimulatedFleet(replace(method, scored_with="server"), federation, threads=1)
    list(plain.train(server, ids, 1, Traffic()))
    of_server = dict(_pairs(plain.scores(after, "test")))
    torch.testing.assert_close(of_server[0], after["items"] @ plain.store.leaves["user"][0])
    assert not torch.allclose(of_server[0], scores[0])


def test_a_client_that_never_took_part_ranks_with_what_the_server_sends(federation):
    method = Trained(**SMALL, scored_with="own")
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    after = method.aggregate(server, fleet.train(server, torch.tensor([1, 4]), 1, Traffic()), Moment(1, 0))
    scores = dict(_pairs(fleet.scores(after, "test")))
    torch.testing.assert_close(scores[0], after["items"] @ fleet.store.leaves["user"][0])
    assert not torch.allclose(scores[1], after["items"] @ fleet.store.leaves["user"][1])


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_clients_weigh_by_their_interactions_or_all_the_same(federation, weighting):
    method = Trained(**SMALL, weighting=weighting)
    ids = torch.tensor([0, 3, 5])
    data = federation.cohort(ids, 1, 4)
    server = method.init_server(federation)
    _, up, _ = local_round(method, ClientStore(method, federation).read(data), method.downlink(server, ids), data)
    sizes = torch.tensor([float(len(federation.split.train[c])) for c in ids.tolist()])
    weight = sizes if weighting == "size" else torch.ones(3)
    expected = (weight.view(-1, 1, 1) * up["items"]).sum(0) / weight.sum()
    torch.testing.assert_close(method.aggregate(server, iter([up]), Moment(1, 0))["items"], expected)


def _pairs(blocks):
    for users, logits in blocks:
        yield from zip(users.tolist(), logits, strict=True)
