"""docs/deploy.md on one machine, with real processes: a federation comes up, is watched, and loses a node."""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from datetime import timedelta

import pytest

pytest.importorskip("flwr")

from deploy.direct import shards
from deploy.processes import ENVIRONMENT, Place, free_port
from tacit.deploy import keys
from tacit.deploy.server import members
from tacit.runs.folder import RunFolder
from toys import few_users

SETTINGS = ["--set", "dim=4", "--set", "epochs=1", "--set", "init=0.1"]


@pytest.fixture
def place(tmp_path):
    data = few_users(24)
    with Place(tmp_path, data, dict(zip(("a", "b", "c"), shards(data, 3), strict=True))) as found:
        yield found


def tacit(place, *words):
    command = [sys.executable, "-m", "tacit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=place.path, check=False)


def until(condition, seconds):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.2)


@pytest.mark.slow
def test_a_federation_is_watched_through_the_loss_of_a_node(place):
    began, pages = time.monotonic(), free_port()
    for name in ("a", "b", "c"):
        place.node(name)
    place.server("fedmf", "run", 3, "--rounds", 100000, "--deadline", 60, "--status-port", pages, *SETTINGS)
    path = place.path / "run" / "status.json"

    def up():
        return {n for n, one in json.loads(path.read_text())["nodes"].items() if one["up"]} if path.exists() else set()

    until(lambda: up() == {"a", "b", "c"}, 120)
    place.wait_for("server", "round 1:")
    assert time.monotonic() - began < 120
    said = tacit(place, "status", "run").stdout
    assert "3 of 3 nodes up, quorum" in said
    assert said.count("up ") >= 3

    place.kill("b")
    until(lambda: up() == {"a", "c"}, 30)
    shown = json.loads(tacit(place, "status", f"127.0.0.1:{pages}", "--json").stdout)
    assert not shown["nodes"]["b"]["up"]
    assert shown["nodes"]["a"]["users"] == 8
    assert shown["nodes"]["a"]["bytes_up"] > 0
    assert "down" in tacit(place, "status", "run").stdout
    with urllib.request.urlopen(f"http://127.0.0.1:{pages}/health") as answer:
        assert json.load(answer)["ok"]
    with urllib.request.urlopen(f"http://127.0.0.1:{pages}/metrics") as answer:
        text = answer.read().decode()
    assert 'tacit_node_up{node="b"} 0' in text
    assert 'tacit_node_up{node="a"} 1' in text

    place.node("b")
    until(lambda: up() == {"a", "b", "c"}, 60)
    reached = place.said("b").count("asked: train")
    place.wait_for("b", "asked: train", reached + 1)
    place.processes["server"].send_signal(signal.SIGTERM)
    assert place.processes["server"].wait(30) == 130
    assert "Traceback" not in place.said("server")
    assert "stopped" in tacit(place, "status", "run").stdout
    assert tacit(place, "remove", "run", "c").returncode == 0
    assert [m.removed for m in members(RunFolder.open(place.path / "run"))] == [False, False, True]


@pytest.mark.slow
def test_a_full_disk_on_the_server_ends_with_a_sentence(place):
    """First the log has no room, which stops nothing; then no file may grow."""
    for name in ("a", "b", "c"):
        place.node(name)
    where = ["--catalogue", "items.csv", "--out", "run", "--port", str(place.port), "--nodes", "3"]
    words = ["server", "fedmf", *where, "--keys", "keys/server", "--rounds", "100000", *SETTINGS]
    command = [sys.executable, "-m", "tacit", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=place.path) as server:
        place.processes["full"] = server
        said = ""
        for round, most in ((1, 100_000), (3, 0)):
            while f"round {round}:" not in said:
                said += server.stderr.readline()
            with (place.path / "run" / "server.log").open("a") as log:
                log.write("-" * 200_000 + "\n")
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        said += server.stderr.read()
    assert server.returncode == 2, said
    assert "Traceback" not in said
    assert "Logging error" not in said
    assert re.search(r"tacit: cannot write .*; fix that and try again; what was saved before is intact", said)


def test_hosts_are_kept_and_the_end_of_a_certificate_is_warned_of(place, monkeypatch, caplog):
    folder = place.path / "keys"
    keys.make(folder, ["shop.example.org", "10.0.0.7"], [])
    assert keys._hosts(folder / "server" / "server.crt") == ["127.0.0.1", "shop.example.org", "10.0.0.7"]
    keys.make(folder, ["127.0.0.1"], [])
    assert len(keys._hosts(folder / "server" / "server.crt")) == 3
    monkeypatch.setattr(keys, "_DAY", timedelta(hours=0.2))  # five years end in two weeks
    shutil.rmtree(folder)
    keys.make(folder, ["127.0.0.1"], ["a", "b", "c"])
    place.node("a")
    place.wait_for("a", "ends in ")
    place.server("fedmf", "run", 1, "--status-port", 0, "--rounds", 1, *SETTINGS)
    place.finished()
    assert "server.crt ends in 1" in place.said("server")
    assert json.loads((place.path / "run" / "status.json").read_text())["certificate_days"] < 30
