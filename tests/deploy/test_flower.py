"""Real processes on this machine, over TLS. The nodes are started once: most of the time goes into importing torch."""

import json
import time

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from deploy.direct import cut, shards
from deploy.processes import Place
from tacit.config import config
from tacit.core.bounds import BOUND
from tacit.deploy import commands, keys
from tacit.deploy.engine import Engine
from tacit.deploy.server import Asked, prepare, run
from tacit.methods import known
from tacit.privacy.mechanisms import Gaussian
from tacit.runs.folder import RunFolder
from tacit.runs.run import run as simulate
from toys import few_users

pytestmark = pytest.mark.slow

METHODS = {
    "fedmf": ("fedmf", {"dim": 4, "epochs": 2}, False),
    "fedmf, summed securely": ("fedmf", {"dim": 4, "epochs": 1, "fraction": 0.6}, True),
    "pfedclr": ("pfedclr", {"dim": 4, "epochs": 1}, False),
    "cgfedrec": ("cgfedrec", {"dim": 4, "epochs": 1}, False),
    "fedcia-gfcf": ("fedcia", {"backbone": "gfcf"}, False),
    "hetefedrec": ("hetefedrec", {"epochs": 1}, False),
}
HELD, SETTINGS = "deploy.held:Held", {"dim": 4, "epochs": 1, "fraction": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three nodes with eight users each, and two with four others that a test may start."""
    data = few_users(24)
    own = dict(zip(("n0", "n1", "n2"), shards(data, 3), strict=True))
    more = few_users(32)
    own |= {"n3": cut(more, np.arange(24, 28)), "n4": cut(more, np.arange(28, 32))}
    with Place(tmp_path_factory.mktemp("federation"), data, own) as found:
        for name in ("n0", "n1", "n2"):
            found.node(name)
        yield found


def same(monkeypatch, path, method, values, rounds):
    """The last and the best state, and the metrics, are those of the simulation."""
    monkeypatch.setattr("tacit.runs.assembly.load", lambda *_: few_users(24))
    beside = path.with_name(f"{path.name}-simulated")
    bound = RunFolder.open(path).run["config"]["bound"]
    expected = simulate(method, data="items", rounds=rounds, settings=values, threads=1, bound=bound, out=beside)
    for which in ("last", "best"):
        one, other = (RunFolder.open(folder).load(which)[0] for folder in (path, beside))
        assert set(one) == set(other)
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, atol=1e-5, rtol=1e-5)
    found = RunFolder.open(path).summary
    assert found["test"] == pytest.approx({name: expected.test[name] for name in expected.valid}, abs=1e-6)
    assert found["valid"] == pytest.approx(expected.valid, abs=1e-6)


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n][0] in known()])
def test_three_processes_give_the_state_and_the_metrics_of_the_simulation(place, monkeypatch, name):
    method, values, secure = METHODS[name]
    made = config(method=method, data="items", rounds=2, settings=values, secure=secure)
    asked = Asked(made, place.path / "items.csv", nodes=3)
    folder, job = prepare(asked, place.path / name)
    own = place.path / "keys" / "server"
    with Engine("127.0.0.1", place.port, own / "server.crt", own / "server.key", keys.allowed(own)) as engine:
        summary = run(asked, folder, job, engine)
    same(monkeypatch, place.path / name, method, values, 2)
    assert summary.clients == 24
    if name == "fedmf":  # a node's sum and what it says of metrics, not eight tables
        table = 4 * values["dim"] * few_users(24).n_items
        assert all(3 * table < line["bytes_up"] < 3 * (table + 4000) < 24 * table for line in folder.rounds())
    user = str(few_users(24).user_ids[9])  # the server is gone
    assert len(commands.recommend(place.path / "n1.node", user, 3)[1]) == 3


def test_a_server_that_is_killed_goes_on_and_ends_the_same(place, monkeypatch):
    rounds = ["--rounds", 3, *(word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}"))]
    before = place.said("n1").count("asked: train, round 2")
    (place.hold / "2").touch()
    place.server(HELD, "killed", 3, *rounds)
    place.wait_for("n1", "asked: train, round 2", before + 1)
    place.kill("server")
    (place.hold / "2").unlink()
    place.server(HELD, "killed", 3, *rounds)
    place.finished()
    assert "continuing after round 1" in place.said("server")
    assert RunFolder.open(place.path / "killed").run["config"]["bound"] == BOUND
    same(monkeypatch, place.path / "killed", HELD, SETTINGS, 3)


def test_a_round_that_a_killed_server_asks_for_again_is_in_its_epsilon_and_in_the_nodes_ledgers(place):
    noise = ["--ldp", "kind=gaussian,clip=1,epsilon=8", "--set", "dim=4", "--set", "epochs=1", "--set", "fraction=1"]
    started = {name: place.said(name).count("asked: train") for name in ("n0", "n1", "n2")}

    def held():
        """Nodes that still train what a server that is gone has asked for."""
        return [
            name
            for name, before in started.items()
            if place.said(name).count("asked: train") - before > place.said(name).count("users leaves, number")
        ]

    for _ in range(3):
        before = place.said("n1").count("asked: train, round 2")
        (place.hold / "2").touch()
        place.server(HELD, "noisy", 3, "--rounds", 2, *noise)
        place.wait_for("n1", "asked: train, round 2", before + 1)
        place.kill("server")
        (place.hold / "2").unlink()
        while held():
            time.sleep(0.05)
    place.server(HELD, "noisy", 3, "--rounds", 2, *noise)
    place.finished()
    summary = RunFolder.open(place.path / "noisy").summary
    mechanism = Gaussian(summary["ldp"]["scale"], 1.0)
    assert mechanism.epsilon(2) == pytest.approx(8, rel=0.01)
    assert summary["epsilon"] == pytest.approx(mechanism.epsilon(5))
    for name in ("n0", "n1", "n2"):
        (run,) = json.loads((place.path / f"{name}.node" / "ledger.json").read_text()).values()
        assert 2 <= max(run["releases"].values()) <= 5  # a killed server may not have reached every node
    assert f"number {max(run['releases'].values())} of one of them in this run" in place.said("n2")


def test_two_of_five_nodes_are_killed_and_one_comes_back(place):
    place.node("n3")
    place.node("n4")
    before = place.said("n1").count("asked: train, round 2")
    for round in (2, 3):
        (place.hold / str(round)).touch()
    place.server(HELD, "five", 5, "--rounds", 4, "--set", "dim=4", "--set", "epochs=1", "--set", "fraction=1")
    place.wait_for("n1", "asked: train, round 2", before + 1)
    place.wait_for("n3", "asked: train, round 2")
    place.kill("n1", "n3")
    (place.hold / "2").unlink()
    place.wait_for("server", "round 2: 20 clients")
    connected = place.said("n1").count("connected")
    place.node("n1")
    place.wait_for("n1", "connected", connected + 1)
    (place.hold / "3").unlink()
    place.finished()
    assert "private state of round 1 is back from disk" in place.said("n1")
    assert [r["clients"] for r in RunFolder.open(place.path / "five").rounds()] == [32, 20, 20, 28]
