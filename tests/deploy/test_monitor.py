import json
import logging
import time
import urllib.error
import urllib.request

import pytest

from deploy.processes import free_port
from tacit.deploy import commands, monitor
from tacit.deploy.board import Board
from tacit.deploy.monitor import Monitor, metrics, status, table
from tacit.errors import UserError


def shown(tmp_path, **values):
    board = Board(**values)
    board.of('a"\n').users = 3
    board.look({1: 'a"\n'})
    return board


def test_metrics_are_what_prometheus_reads():
    board = shown(None, rejected={"10.0.0.1": 4}, certificate_days=12, round=3)
    lines = metrics(board.shown()).splitlines()
    assert r'tacit_node_up{node="a\"\n"} 1' in lines
    assert "tacit_rejected_total 4" in lines
    assert "tacit_certificate_days 12" in lines
    assert "tacit_round 3" in lines
    assert all(line.startswith(("# HELP tacit_", "# TYPE tacit_", "tacit_")) for line in lines)
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_the_file_and_the_pages_show_the_board_and_who_has_ended(tmp_path):
    board, port, there = shown(tmp_path, method="fedmf", state="training"), free_port(), {1: 'a"\n'}
    with Monitor(board, tmp_path, lambda: there, "127.0.0.1", port):
        while not (tmp_path / monitor.FILE).exists():
            time.sleep(0.05)
        for target in (str(tmp_path), f"127.0.0.1:{port}"):
            found = status(target)
            assert found["state"] == "training"
            assert table(found)[0][1] == "up, not in the run"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/keys")
        there.clear()
        while status(str(tmp_path))["nodes"]['a"\n']["up"]:
            time.sleep(0.05)
    assert status(str(tmp_path))["state"] == "stopped"
    killed = board.shown() | {"state": "training", "written": time.time() - 60}
    (tmp_path / monitor.FILE).write_text(json.dumps(killed))
    assert status(str(tmp_path))["state"] == "stopped"
    with pytest.raises(UserError, match="there are no status pages at"):
        status(f"127.0.0.1:{port}")
    with pytest.raises(UserError, match=r"has no status\.json: no server has run there"):
        status(str(tmp_path.parent))


def test_a_port_of_pages_that_is_taken_stops_nothing(tmp_path, caplog):
    board, port = Board(), free_port()
    with Monitor(board, tmp_path, dict, "127.0.0.1", port), Monitor(board, tmp_path, dict, "127.0.0.1", port):
        assert "no status pages" in caplog.text


def test_logs_are_put_aside_and_stay_their_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "MOST_LOG", 2000)
    log = logging.getLogger("tacit.server")
    logging.getLogger("tacit").setLevel(logging.INFO)
    with commands._logged(tmp_path / "server.log"):
        for number in range(400):
            log.info("line %d", number)
    files = sorted(tmp_path.glob("server.log*"))
    assert len(files) == 6
    assert all(file.stat().st_size <= 2000 and file.stat().st_mode & 0o077 == 0 for file in files)
    assert "line 399" in (tmp_path / "server.log").read_text()


def test_what_others_say_makes_no_line_of_its_own(tmp_path):
    log = logging.getLogger("tacit.server")
    with commands._logged(tmp_path / "server.log"):
        log.warning("node %s", "x\n2026-11-18 03:00:00,000 INFO round 7: 943 clients\x1b[2J" + "y" * 10_000)
    (line,) = (tmp_path / "server.log").read_text().splitlines()
    assert "x?2026-11-18 03:00:00,000 INFO round 7: 943 clients?[2J" in line
    assert len(line) < 3000
