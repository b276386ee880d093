import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Payload, stacked
from tacit.core.rounds import Plan, Progress, federate, participation, queue, round_up, sample
from tacit.core.trained import Trained, used
from toys import few_clients

QUICK = Trained(dim=4, epochs=1, init=0.3)


def federated(plan, scores, method=QUICK, progress=None, fleet=None):
    """Run with a validation that says the given values one after another: (progress, what was recorded)."""
    federation = few_clients(10)
    fleet = fleet or SimulatedFleet(method, federation, threads=1)
    values = iter(scores)
    told = []

    def record(progress, improved):
        told.append((progress.round, improved, progress.history[-1].valid))

    progress = progress or Progress(method.init_server(federation))
    return federate(method, fleet, lambda server: {"NDCG@10": next(values)}, plan, record, progress), told


def test_the_best_round_is_the_first_with_the_highest_validation():
    progress, told = federated(Plan(rounds=5, seed=0), [0.1, 0.3, 0.2, 0.3, 0.25])
    assert (progress.best_round, progress.best) == (2, 0.3)
    assert [improved for _, improved, _ in told] == [True, True, False, False, False]
    assert [r.round for r in progress.history] == [1, 2, 3, 4, 5]


def test_validation_comes_every_so_many_rounds_and_at_the_end():
    progress, told = federated(Plan(rounds=5, seed=0, evaluate_every=2), [0.1, 0.2, 0.3])
    assert [valid is not None for _, _, valid in told] == [False, True, False, True, True]
    assert progress.best_round == 5


def test_patience_counts_validations_without_a_better_one():
    progress, _ = federated(Plan(rounds=50, seed=0, patience=3), itertools.chain([0.1, 0.5], itertools.repeat(0.2)))
    assert progress.round == 5
    progress, _ = federated(
        Plan(rounds=50, seed=0, patience=2, evaluate_every=3), itertools.chain([0.5], itertools.repeat(0.2))
    )
    assert progress.round == 9


def test_a_zero_on_validation_counts_as_a_best_round_too():
    progress, _ = federated(Plan(rounds=2, seed=0), [0.0, 0.0])
    assert (progress.best_round, progress.best) == (1, 0.0)


def test_going_on_from_the_middle_is_the_same_as_going_through():
    federation = few_clients(10)
    fleet = SimulatedFleet(QUICK, federation, threads=1)
    through, _ = federated(Plan(rounds=4, seed=0), [0.1] * 4, fleet=fleet)
    halves = SimulatedFleet(QUICK, federation, threads=1)
    middle, _ = federated(Plan(rounds=2, seed=0), [0.1] * 2, fleet=halves)
    end, _ = federated(Plan(rounds=4, seed=0), [0.1] * 2, progress=middle, fleet=halves)
    assert end.round == 4
    assert torch.equal(end.server["items"], through.server["items"])
    assert torch.equal(halves.store.leaves["user"], fleet.store.leaves["user"])


def test_a_fraction_of_the_clients_takes_part():
    progress, _ = federated(Plan(rounds=3, seed=0, fraction=0.3), [0.1] * 3)
    assert [r.clients for r in progress.history] == [3, 3, 3]
    per_client = progress.history[0].bytes_up // 3
    assert [r.bytes_up for r in progress.history] == [3 * per_client] * 3
    assert all(r.loss > 0 and math.isfinite(r.loss) for r in progress.history)
    assert all(r.seconds > 0 and r.epsilon is None for r in progress.history)


@dataclass(frozen=True)
class OnceOnly(Trained):
    """Asks its clients in the first round and works alone afterwards."""

    def asks(self, round):
        return round == 1

    def aggregate(self, server, uplinks, now):
        arrived = sum(len(up.ids) for up in uplinks)
        return server | {"items": server["items"] + 1, "arrived": server.get("arrived", torch.zeros(1)) + arrived}


def test_clients_take_part_only_in_rounds_that_ask_for_them():
    progress, _ = federated(Plan(rounds=3, seed=0), [0.1] * 3, method=OnceOnly(dim=4, epochs=1))
    assert [r.clients for r in progress.history] == [10, 0, 0]
    assert [r.bytes_up > 0 for r in progress.history] == [True, False, False]
    assert [r.loss is None for r in progress.history] == [False, True, True]
    assert progress.server["arrived"].item() == 10


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"),
    [(1.0, 10, 10), (0.07, 100, 7), (0.1, 10, 1), (0.01, 10, 1), (0.25, 10, 3), (4, 10, 4), (40, 10, 10)],
)
def test_how_many_clients_a_round_has(fraction, clients, expected):
    ids = sample(clients, fraction, seed=0, round=1)
    assert len(ids) == expected
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert set(ids.tolist()) <= set(range(clients))


def test_who_takes_part_is_drawn_anew_each_round_and_evenly():
    counts = torch.zeros(20)
    rounds = 2000
    draws = set()
    for round in range(rounds):
        ids = sample(20, 0.25, seed=3, round=round)
        draws.add(tuple(ids.tolist()))
        counts[ids] += 1
    assert len(draws) > 1500
    assert (counts / rounds - 0.25).abs().max() < 0.04
    assert torch.equal(sample(20, 0.25, seed=3, round=7), sample(20, 0.25, seed=3, round=7))
    assert any(not torch.equal(sample(20, 0.25, 3, r), sample(20, 0.25, 4, r)) for r in range(3))


@pytest.mark.parametrize(("clients", "fraction", "sizes"), [(10, 4, [4, 4, 2]), (10, 0.5, [5, 5]), (3, 256, [3])])
def test_a_queue_takes_everybody_once_before_anyone_again(clients, fraction, sizes):
    epochs = []
    for epoch in range(4):
        parts = [queue(clients, fraction, 3, epoch * len(sizes) + n).tolist() for n in range(1, len(sizes) + 1)]
        assert [len(part) for part in parts] == sizes
        assert all(part == sorted(part) for part in parts)
        assert sorted(itertools.chain(*parts)) == list(range(clients))
        epochs.append(parts)
    assert clients == 3 or any(parts != epochs[0] for parts in epochs[1:]), "the queue is shuffled anew"
    assert queue(10, 4, 3, 2).tolist() == queue(10, 4, 3, 2).tolist()


def test_rounds_that_traverse_ask_everybody_equally_often():
    plan = Plan(rounds=6, seed=0, fraction=4, traverse=True)
    progress, _ = federated(plan, [0.1] * 6)
    assert [r.clients for r in progress.history] == [4, 4, 2, 4, 4, 2]
    assert participation(QUICK, plan, 10, range(1, 7)).tolist() == [2] * 10


def test_rounding_up_forgives_rounding_errors():
    assert 0.07 * 100 > 7
    assert [round_up(x) for x in (0.07 * 100, 3.0000001, 2.5, 0.0)] == [7, 4, 3, 1]


@dataclass(frozen=True)
class Silent(Trained):
    """Uploads something in even rounds alone."""

    def uplink(self, p, down, data):
        return super().uplink(p, down, data) if data.round % 2 == 0 else Payload(data.ids, {})

    def aggregate(self, server, uplinks, now):
        for _ in uplinks:
            pass
        return server


@pytest.mark.parametrize("method", [QUICK, Silent(dim=4, epochs=1)])
def test_the_budget_is_that_of_the_client_that_took_part_most_often(method):
    plan = Plan(rounds=8, seed=0, fraction=0.3)
    federation = few_clients(10)
    counts, expected = [0] * 10, []
    for round in range(1, 9):
        if method is QUICK or round % 2 == 0:
            for client in sample(10, 0.3, 0, round).tolist():
                counts[client] += 1
        expected.append(10.0 * max(counts))

    def spent(plan, progress):
        fleet = SimulatedFleet(method, federation, threads=1)
        validate, record = lambda server: {"NDCG@10": 0.1}, lambda progress, improved: None
        return federate(method, fleet, validate, plan, record, progress, lambda rounds: 10.0 * rounds)

    through = spent(plan, Progress(method.init_server(federation)))
    assert [r.epsilon for r in through.history] == expected
    assert expected[-1] < 80
    halfway = spent(Plan(rounds=5, seed=0, fraction=0.3), Progress(method.init_server(federation)))
    assert [r.epsilon for r in spent(plan, halfway).history] == expected  # a resumed run has not forgotten
    if method is QUICK:
        assert int(participation(method, plan, 10, range(1, 9)).max()) * 10.0 == expected[-1]


def test_of_those_who_train_only_some_are_averaged():
    """Everybody trains and uploads; the server's mean is over those that were drawn, with their own weights."""
    federation, seed = few_clients(10), 3
    method = Trained(dim=4, epochs=1, init=0.3, aggregated=0.6)
    fleet = SimulatedFleet(method, federation, threads=1, chunk=3, sums=True)
    progress, _ = federated(Plan(rounds=1, seed=seed), [0.1], method, fleet=fleet)
    assert progress.history[0].clients == 10
    start = method.init_server(federation)
    again = SimulatedFleet(method, federation, threads=1)
    everybody = stacked(list(again.train(start, torch.arange(10), 1, Traffic())))
    assert progress.history[0].bytes_up == everybody.nbytes()
    drawn = torch.cat([up.ids for up in used(method, [everybody], Moment(1, seed))])
    assert 0 < len(drawn) < 10
    places = torch.tensor([everybody.ids.tolist().index(i) for i in drawn.tolist()])
    weights = torch.from_numpy(federation.sizes)[drawn].double()
    expected = torch.tensordot(weights / weights.sum(), everybody["items"][places].double(), dims=1)
    torch.testing.assert_close(progress.server["items"].double(), expected, atol=1e-6, rtol=1e-6)
    untrained = SimulatedFleet(method, federation, threads=1).store.leaves["user"]
    assert (fleet.store.leaves["user"] != untrained).any(1).all()


def test_the_share_that_is_averaged_is_about_what_was_asked_for_and_differs_by_round():
    many = Payload(torch.arange(1000), {})
    drawn = [next(used(Trained(aggregated=0.6), [many], Moment(round, 0))).ids for round in (1, 2)]
    assert all(abs(len(ids) - 600) < 60 for ids in drawn)
    assert drawn[0].tolist() != drawn[1].tolist()
    assert next(used(Trained(), [many], Moment(1, 0))) is many
    with pytest.raises(TypeError, match="stands for many"):
        next(used(Trained(aggregated=0.6), [Payload(torch.tensor([-1]), {})], Moment(1, 0)))
