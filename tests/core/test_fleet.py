import threading
from dataclasses import dataclass

import pytest
import torch

from tacit.core import fleet as fleet_module
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.scorers import dot, pick
from tacit.core.trained import Trained
from tacit.core.workers import single_threaded_torch
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.methods import find
from toys import few_clients, random_data

QUICK = Trained(dim=4, epochs=1, init=0.3)


def everyone(federation):
    return torch.arange(federation.n_clients)


def all_scores(fleet, server, phase="valid"):
    blocks = list(fleet.scores(server, phase))
    users = torch.cat([u for u, _ in blocks])
    return users, torch.cat([s for _, s in blocks]), len(blocks)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_chunks_are_all_clients_once_by_length_and_no_larger_than_asked(chunk):
    federation = Federation.of_users(split(random_data(users=30), "strict"))
    chunks = SimulatedFleet(QUICK, federation, chunk=chunk, threads=1).chunks(everyone(federation))
    ids = torch.cat(chunks)
    assert sorted(ids.tolist()) == list(range(federation.n_clients))
    assert max(map(len, chunks)) <= chunk
    sizes = federation.sizes[ids.numpy()]
    assert (sizes[:-1] >= sizes[1:]).all()


def test_chunks_keep_to_the_rows_that_fit_the_cache(monkeypatch):
    monkeypatch.setattr(fleet_module, "ROWS", 300)
    federation = Federation.of_users(split(random_data(users=30), "strict"))
    chunks = SimulatedFleet(QUICK, federation, threads=1).chunks(torch.arange(30))
    assert sorted(torch.cat(chunks).tolist()) == list(range(30))
    for chunk in chunks:
        widest = int(federation.sizes[chunk.numpy()].max()) * 5
        assert len(chunk) == 1 or len(chunk) * widest <= 300
    assert max(map(len, chunks)) > 1


@pytest.mark.parametrize("groups", [0, 6, 1])
@pytest.mark.parametrize("limit", [1, 5000, 4_000_000])
def test_every_user_is_scored_once_whatever_the_blocks(monkeypatch, groups, limit):
    federation = few_clients(20, groups=groups)
    server = QUICK.init_server(federation)
    fleet = SimulatedFleet(QUICK, federation, threads=1)
    monkeypatch.setattr(fleet_module, "SCORES", limit)
    users, scores, blocks = all_scores(fleet, server)
    assert sorted(users.tolist()) == list(range(20))
    assert blocks == 20 if limit == 1 else blocks >= 1
    expected = fleet.store.leaves["user"][users] @ server["items"].T
    torch.testing.assert_close(scores, expected)


def test_one_users_scores_are_those_of_all(monkeypatch):
    federation = few_clients(12, groups=5)
    server = QUICK.init_server(federation)
    fleet = SimulatedFleet(QUICK, federation, threads=1)
    users, scores, _ = all_scores(fleet, server, "test")
    for user, expected in zip(users.tolist(), scores, strict=True):
        torch.testing.assert_close(fleet.scores_of(server, user, "test"), expected)


@dataclass(frozen=True)
class Sociable(Trained):
    """A user scores with its own vector and the sum over its client's users, which the table carries."""

    neighbours = True

    def view(self, p):
        return torch.cat([p["items"], p["user"] + p["user"].sum(1, keepdim=True)], 1)

    def score(self, p, table):
        items, users = table.split([p["items"].shape[1], p["user"].shape[1]], 1)
        return dot(pick(users, p["slots"]) if "slots" in p else users, items)


@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("limit", [1, 5000, 4_000_000])
def test_a_user_may_be_scored_with_all_users_of_its_client_whatever_the_blocks(monkeypatch, groups, limit):
    federation = few_clients(20, groups=groups)
    method = Sociable(dim=4, init=0.3)
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    monkeypatch.setattr(fleet_module, "SCORES", limit)
    users, scores, _ = all_scores(fleet, server)
    assert sorted(users.tolist()) == list(range(20))
    own = fleet.store.leaves["user"]
    for user, found in zip(users.tolist(), scores, strict=True):
        together = own[torch.from_numpy(federation.members[federation.client_of(user)])].sum(0)
        expected = server["items"] @ (own[user] + together)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(fleet.scores_of(server, user, "valid"), expected)


def test_traffic_counts_every_client_and_byte():
    federation = few_clients(10)
    fleet = SimulatedFleet(QUICK, federation, chunk=4, threads=1)
    server = QUICK.init_server(federation)
    traffic = Traffic()
    ups = list(fleet.train(server, torch.arange(7), 1, traffic))
    table = federation.n_items * 4 * 4
    assert traffic.clients == 7
    assert traffic.bytes_down == 7 * table
    assert traffic.bytes_up == 7 * (table + 4)
    assert sum(len(up.ids) for up in ups) == 7


def test_the_loss_is_the_mean_over_clients_in_any_chunks():
    losses = []
    for chunk in (1, 4, 64):
        federation = few_clients(10)
        traffic = Traffic()
        fleet = SimulatedFleet(QUICK, federation, chunk=chunk, threads=1)
        list(fleet.train(QUICK.init_server(federation), everyone(federation), 1, traffic))
        losses.append(traffic.loss)
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)
    assert 0.5 < losses[0] < 0.8


def test_clients_left_out_of_a_round_keep_their_state():
    federation = few_clients(10)
    fleet = SimulatedFleet(QUICK, federation, threads=1)
    before = fleet.store.leaves["user"].clone()
    list(fleet.train(QUICK.init_server(federation), torch.tensor([2, 5]), 1, Traffic()))
    changed = (fleet.store.leaves["user"] != before).any(1).nonzero().flatten()
    assert changed.tolist() == [2, 5]


def test_uploads_come_in_the_order_of_the_chunks_from_any_threads():
    federation = few_clients(20)
    fleets = [SimulatedFleet(QUICK, federation, chunk=2, threads=threads) for threads in (1, 3)]
    orders = []
    for fleet in fleets:
        server = QUICK.init_server(federation)
        orders.append([up.ids.tolist() for up in fleet.train(server, everyone(federation), 1, Traffic())])
        assert orders[-1] == [chunk.tolist() for chunk in fleet.chunks(everyone(federation))]
    assert orders[0] == orders[1]


class Bad(Trained):
    def uplink(self, p, down, data):
        raise ArithmeticError("on a device")


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_on_a_client_reaches_the_server_and_leaves_no_thread(threads):
    federation = few_clients(20)
    fleet = SimulatedFleet(Bad(dim=4, epochs=1), federation, chunk=2, threads=threads)
    before = threading.active_count()
    with pytest.raises(ArithmeticError, match="on a device"):
        list(fleet.train(QUICK.init_server(federation), everyone(federation), 1, Traffic()))
    assert threading.active_count() == before


def test_torchs_own_threads_are_given_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with single_threaded_torch():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("groups", [0, 6, 1])
@pytest.mark.parametrize("name", ["fedmf", "lightgcn", "tally"])
def test_some_users_are_scored_as_among_all(name, groups):
    federation = few_clients(20, groups=groups)
    method = find(name)()
    fleet = SimulatedFleet(method, federation, threads=1)
    uploads = fleet.train(before := method.init_server(federation), everyone(federation), 1, Traffic())
    server = method.aggregate(before, uploads, Moment(1, 0))
    users, scores, _ = all_scores(fleet, server)
    some = torch.tensor([1, 2, 3, 11, 19])
    blocks = list(fleet.scores(server, "valid", some))
    order = torch.cat([u for u, _ in blocks])
    assert sorted(order.tolist()) == some.tolist()
    place = {user: row for row, user in enumerate(users.tolist())}
    expected = scores[[place[user] for user in order.tolist()]]
    torch.testing.assert_close(torch.cat([s for _, s in blocks]), expected)


def test_workers_start_without_a_look_at_every_client(monkeypatch):
    fleet = SimulatedFleet(QUICK, few_clients(40), chunk=8, threads=2)
    made = []
    monkeypatch.setattr(fleet_module, "can_fork", lambda: True)
    monkeypatch.setattr(fleet_module, "Crew", lambda work, workers: made.append(workers))
    monkeypatch.setattr(fleet, "chunks", lambda ids: pytest.fail("all clients are cut into chunks to count them"))
    fleet.muster()
    assert made == [2]
