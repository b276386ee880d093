"""Real processes on this machine. They take a minute or two each, most of it spent on importing torch."""

import json
import socket
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from deploy.processes import Place, csv, free_port
from tacit.data.interactions import from_columns
from tacit.methods import known
from tacit.runs.folder import RunFolder
from tacit.runs.run import run as simulate
from toys import few_users

pytestmark = pytest.mark.slow

METHODS = {
    "fedmf": ("fedmf", {"dim": 4, "epochs": 2}),
    "pfedclr": ("pfedclr", {"dim": 4, "epochs": 1}),
    "cgfedrec": ("cgfedrec", {"dim": 4, "epochs": 1}),
    "fedcia-gfcf": ("fedcia", {"backbone": "gfcf"}),
    "hetefedrec": ("hetefedrec", {"epochs": 1}),
}
LONG = {"dim": 4, "epochs": 1500}  # rounds of seconds, to be killed in


def settings(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def state(folder, which="last"):
    return RunFolder.open(folder).load(which)[0]


def simulated(monkeypatch, data, path, method, values, rounds):
    monkeypatch.setattr("tacit.runs.run.load", lambda *_: data)
    return simulate(method, data="items", rounds=rounds, settings=values, threads=1, out=path / "simulated")


def same(path, summary):
    for which in ("last", "best"):
        one, other = state(path / "run", which), state(path / "simulated", which)
        assert set(one) == set(other)
        assert all(torch.allclose(one[n], other[n], atol=1e-5, rtol=1e-5) for n in other)
    found = RunFolder.open(path / "run").summary
    assert found["test"] == pytest.approx(summary.test, abs=1e-6)
    assert found["valid"] == pytest.approx(summary.valid, abs=1e-6)


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n][0] in known()])
def test_three_processes_give_the_state_and_the_metrics_of_the_simulation(tmp_path, monkeypatch, name):
    data, (method, values) = few_users(24), METHODS[name]
    with Place(tmp_path, data, 3, secure=True) as place:
        for node in place.names:
            place.node(node)
        place.server(method, "--rounds", 2, *settings(values))
        place.finished()
        user = str(data.user_ids[9])
        found = place.tacit("recommend", tmp_path / "n1.node", "--user", user, "-k", 3, "--json")
        assert len(json.loads(found.stdout)) == 3, found.stderr
    same(tmp_path, simulated(monkeypatch, data, tmp_path, method, values, 2))


def test_two_of_five_nodes_are_killed_and_one_comes_back(tmp_path):
    data = few_users(25)
    with Place(tmp_path, data, 5) as place:
        for node in place.names:
            place.node(node)
        place.server("fedmf", "--rounds", 8, "--deadline", 90, *settings(LONG))
        place.wait_for("n1", "asked: train, round 2")
        place.kill("n1")
        place.kill("n3")
        kept = next((tmp_path / "n1.node").rglob("000001.safetensors")).read_bytes()
        place.wait_for("server", "round 2: 15 clients")
        place.node("n1")
        place.wait_for("n1", "private state of round 1 is back from disk")
        assert kept
        place.finished()
        clients = [r["clients"] for r in RunFolder.open(tmp_path / "run").rounds()]
        assert clients[0] == 25
        assert clients[1] == 15
        assert clients[-1] == 20, "the one that came back takes part, the other one does not"


def test_a_server_that_is_killed_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    data, values = few_users(24), LONG | {"fraction": 0.5}
    with Place(tmp_path, data, 3, secure=True) as place:
        for node in place.names:
            place.node(node)
        place.server("pfedclr", "--rounds", 3, *settings(values))
        place.wait_for("n1", "asked: train, round 2")
        place.kill("server")
        place.server("pfedclr", "--rounds", 3, *settings(values))
        place.finished()
        assert "going on after round 1" in place.said("server")
    same(tmp_path, simulated(monkeypatch, data, tmp_path, "pfedclr", values, 3))


def test_an_unregistered_key_and_plain_text_are_refused(tmp_path):
    data = few_users(8)
    with Place(tmp_path, data, 1, secure=True) as place:
        place.tacit("keys", tmp_path / "other", "--host", "127.0.0.1", "--node", "n0")
        (tmp_path / "other" / "nodes" / "n0" / "ca.crt").write_bytes((tmp_path / "keys" / "ca.crt").read_bytes())
        place.server("fedmf", "--rounds", 1)
        place.wait_for("server", "listening")
        address = f"127.0.0.1:{place.port}"
        own = ["--server", address, "--folder", tmp_path / "x"]
        stranger = place.tacit("node", tmp_path / "n0.csv", *own, "--keys", tmp_path / "other" / "nodes" / "n0")
        assert stranger.returncode == 2
        assert "does not know this node's key" in stranger.stderr
        plain = place.start("plain", "node", tmp_path / "n0.csv", *own, "--insecure")
        place.wait_for("plain", "waiting for it")
        assert "node 'n0' joins" not in place.said("server")
        plain.kill()
        bare = place.tacit("node", tmp_path / "n0.csv", *own)
        assert bare.returncode == 2
        assert "--insecure on this machine alone" in bare.stderr


class Tap:
    """A wire that remembers what passes: every connection is handed on, both ways."""

    def __init__(self, to):
        self.up, self.down = bytearray(), bytearray()
        self.to, self.listening = to, socket.create_server(("127.0.0.1", free_port()))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            inside, _ = self.listening.accept()
            try:
                outside = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                inside.close()
                continue
            for one, other, kept in ((inside, outside, self.up), (outside, inside, self.down)):
                threading.Thread(target=self.hand_on, args=(one, other, kept), daemon=True).start()

    def hand_on(self, one, other, kept):
        try:
            while some := one.recv(1 << 16):
                kept.extend(some)
                other.sendall(some)
        except OSError:
            pass
        finally:
            other.close()


def test_nothing_of_a_user_is_on_the_wire_and_the_bytes_are_those_of_the_record(tmp_path):
    few = few_users(24)
    names = np.array([f"person-{n:03d}-at-home" for n in range(24)])
    things = np.array([f"thing-{n:04d}-of-theirs" for n in range(few.n_items)])
    data = from_columns("few", names[few.user], things[few.item], few.time)
    with Place(tmp_path, data, 1) as place:
        csv(tmp_path / "n0.csv", data)
        tap = Tap(place.port)
        where = ["--server", f"127.0.0.1:{tap.port}", "--folder", tmp_path / "node", "--threads", 1]
        place.start("n0", "node", tmp_path / "n0.csv", *where, "--insecure", "--name", "n0")
        place.server("fedmf", "--rounds", 3, *settings({"dim": 16, "epochs": 1}))
        place.finished()
    up, down = bytes(tap.up), bytes(tap.down)
    for word in (b"person-", b"at-home"):
        assert word not in up
        assert word not in down
    assert b"thing-0003-of-theirs" in down, "the catalogue is published"
    assert b"thing-" not in up, "which of the items, nobody says"
    for file in (tmp_path / "node").rglob("*.safetensors"):
        for vector in load_file(file)["user"].numpy():
            assert vector.tobytes() not in up
    summary = RunFolder.open(tmp_path / "run").summary
    (line, *_) = (json.loads(text) for text in (tmp_path / "run" / "wire.jsonl").read_text().splitlines())
    framing = {"up": len(up) - summary["bytes_up"], "down": len(down) - summary["bytes_down"]}
    print("captured", len(up), len(down), "recorded", summary["bytes_up"], summary["bytes_down"], "framing", framing)
    assert line["bytes_up"] > 0
    # heartbeats, polls and headers of Flower's requests: a few hundred bytes each
    assert 0 < framing["up"] < 0.05 * summary["bytes_up"] + 250_000
    assert 0 < framing["down"] < 0.05 * summary["bytes_down"] + 250_000
