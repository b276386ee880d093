import numpy as np
import pytest
import torch

from tacit.core.aggregate import robust_mean
from tacit.core.bounds import USUAL, bounded, limits_of, made_up, made_up_upload, overweight, usual
from tacit.core.fleet import Guard, SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Shared
from tacit.core.trained import Trained
from tacit.errors import UserError
from tacit.methods.tally import Tally
from tacit.runs.folder import RunFolder
from tacit.runs.run import resume, run
from toys import few_clients

FEDMF = Trained(dim=4, epochs=1, optimizer="sgd", lr=0.5, table_lr=50.0, init=0.3)


def after(guard, chunk=64, threads=1, sums=True, rounds=3):
    """The server's state after a few rounds, as the rounds loop makes them."""
    federation = few_clients(30)
    fleet = SimulatedFleet(FEDMF, federation, chunk=chunk, threads=threads, sums=sums, guard=guard)
    server = FEDMF.init_server(federation)
    for round in range(1, rounds + 1):
        traffic = Traffic()
        uploads = fleet.train(server, torch.arange(30), round, traffic)
        server = FEDMF.aggregate(server, uploads, Moment(round, 0)) | usual(traffic.norms)
    return server


def test_a_made_up_client_has_as_many_interactions_as_asked_for():
    for asked, found in ((2, 2), (3, 3), (20, 20), (1000, 47)):
        assert made_up(50, asked).sizes.tolist() == [found]


@pytest.mark.parametrize(
    ("weighting", "weights", "fine"),
    [
        ("size", [3.0, 5.0], True),
        ("size", [3.0, 5.1], False),
        ("size", [-1.0, 5.0], False),
        ("uniform", [1.0, 1.0], True),
        ("uniform", [1.0, 5.0], False),
        ("uniform", [0.5, 1.0], False),
    ],
)
def test_nobody_weighs_more_than_it_announced(weighting, weights, fine):
    method = Trained(dim=2, weighting=weighting)
    like = made_up_upload(method, method.init_server(made_up(20)), 0, 1, made_up(20))[1]
    up = Payload(torch.arange(2), {"weight": Each(torch.tensor(weights), False)})
    assert (overweight(up, like, torch.tensor([3, 5])) == "") == fine


def test_rows_are_clipped_one_by_one_and_the_rest_is_as_it_was():
    base = torch.ones(3, 2)
    value = base.repeat(2, 1, 1)
    value[0, 1] += torch.tensor([3.0, 4.0])
    value[1, 2] += 0.1
    up = Payload(torch.arange(2), {"items": Each(value), "weight": Each(torch.ones(2), False)})
    clipped, norms = bounded(up, Payload(up.ids, {"items": Shared(base)}), {"items": 1.0})
    expected = value.clone()
    expected[0, 1] = base[1] + torch.tensor([0.6, 0.8])
    torch.testing.assert_close(clipped["items"], expected)
    torch.testing.assert_close(norms["items"].float(), torch.tensor([5.0, 0.02**0.5]))
    assert torch.equal(clipped["weight"], up["weight"])


def test_touched_rows_are_clipped_as_the_tables_they_stand_for():
    federation = few_clients(30)
    server = FEDMF.init_server(federation)
    (up,) = SimulatedFleet(FEDMF, federation, threads=1).train(server, torch.arange(30), 1, Traffic())
    down = FEDMF.downlink(server, up.ids)
    whole = Payload(up.ids, {n: Each(up[n], f.private) for n, f in up.fields.items()})
    limit = {"items": float(bounded(up, down, {})[1]["items"].median()) / 2}
    for one, other in zip(bounded(up, down, limit), bounded(whole, down, limit), strict=True):
        torch.testing.assert_close(one["items"], other["items"])
    assert not torch.allclose(bounded(up, down, limit)[0]["items"], up["items"])


@pytest.mark.parametrize("guard", [Guard(bound=0.7), Guard(robust="median"), Guard(robust="trimmed")])
def test_neither_chunks_nor_workers_show_in_what_is_guarded(guard):
    expected = after(guard)
    assert not torch.allclose(expected["items"], after(Guard())["items"], atol=1e-3)
    for chunk, threads, sums in ((1, 1, True), (7, 2, True), (7, 1, False), (64, 2, False)):
        found = after(guard, chunk, threads, sums)
        assert set(found) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-5)


def test_a_third_of_the_clients_cannot_raise_what_is_usual_beyond_the_honest():
    honest = torch.linspace(1, 2, 20)
    raised = usual([{"items": honest}, {"items": torch.full((10,), 1e9)}])
    assert 1 <= float(raised[f"{USUAL}items"]) <= 2


def test_a_first_round_is_bounded_by_what_the_server_trains_itself():
    federation = few_clients(30)
    server = FEDMF.init_server(federation)
    ids = torch.arange(30)
    limits = limits_of(FEDMF, server, ids, 1, federation, 3.0)
    (up,) = SimulatedFleet(FEDMF, federation, threads=1).train(server, ids, 1, Traffic())
    median = float(bounded(up, FEDMF.downlink(server, up.ids), {})[1]["items"].median())
    assert median < limits["items"] < 10 * median
    assert limits_of(FEDMF, server | {f"{USUAL}items": torch.tensor([2.0])}, ids, 2, federation, 3.0) == {"items": 6.0}


def test_sums_of_cells_have_nothing_to_clip():
    federation = few_clients(12)
    fleet = SimulatedFleet(Tally(), federation, threads=1, guard=Guard(bound=3.0))
    with pytest.raises(UserError, match="tally uploads no table"):
        fleet.train(Tally().init_server(federation), torch.arange(12), 1, Traffic())


def test_a_bounded_run_is_resumed_as_if_it_had_not_been_stopped(tmp_path):
    options = {"data": "demo", "rounds": 4, "threads": 1, "bound": 0.7, "settings": {"dim": 4, "epochs": 1}}

    def stop(progress, plan):
        if progress.round == 2:
            raise KeyboardInterrupt

    through = run("fedmf", out=tmp_path / "through", **options)
    with pytest.raises(KeyboardInterrupt):
        run("fedmf", out=tmp_path / "stopped", watch=stop, **options)
    assert resume(tmp_path / "stopped").test == through.test
    one, other = (RunFolder.open(tmp_path / name).load("last")[0] for name in ("through", "stopped"))
    assert f"{USUAL}items" in one
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_few_liars_do_not_move_a_robust_mean():
    draw = np.random.default_rng(0)
    base = torch.zeros(4, 2)
    value = torch.from_numpy(draw.normal(1, 0.1, (21, 4, 2)).astype(np.float32))
    value[:, 3] = 0  # a row that nobody touches
    value[11:, 2] = 0  # one that half of them touch
    value[:2] = 1e6
    up = Payload(torch.arange(21), {"items": Each(value), "weight": Each(torch.ones(21), False)})
    for kind in ("median", "trimmed"):
        found = robust_mean(up, Payload(up.ids, {"items": Shared(base)}), kind)
        assert float(found["weight"]) == 21
        if kind == "median":
            assert found["items"][0, 2].tolist() == pytest.approx([11 / 21] * 2, abs=0.1)
        assert found["items"][0, :2].flatten().tolist() == pytest.approx([1.0] * 4, abs=0.1)
