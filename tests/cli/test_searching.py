"""`tacit search` as it is typed: with real processes, killed and continued, shared, and with bad words."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.runs.search import opened

COMMAND = [str(Path(sys.executable).with_name("tacit")), "search", "fedmf", "--data", "demo", "--threads", "1"]
QUICK = ("--data", "demo", "--rounds", "4", "--threads", "1")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["fedmff"], ["unknown method 'fedmff'", "did you mean 'fedmf'?"]),
        (["fedmf", "--set", "dmi=8"], ["unknown setting of fedmf 'dmi'", "did you mean 'dim'?"]),
        (["fedmf", "--set", "dim=wide"], ["dim=wide", "it must be a whole number"]),
        (["fedmf", "--range", "dim"], ["'dim' is not a range", "key=low:high"]),
        (["fedmf", "--range", "lr=2:1"], ["--range lr=2:1 is invalid", "low end"]),
        (["fedmf", "pfedrec", "--range", "plgc_beta=0:1"], ["no method here has a setting 'plgc_beta'"]),
        (["fedmf", "--range", "dim=8:16", "--set", "dim=8"], ["dim is both fixed", "leave one out"]),
        (["fedmf", "--seeds", "x"], ["--seeds x"]),
        (["fedmf", "--data", "demoo"], ["unknown data set 'demoo'"]),
        (["fedmf", "--select", "coverage"], ["computed at test time only"]),
        (["fedmf", "--protocol", "everything"], ["withholds nothing to validate on"]),
        (["fedmf", "--finals", "best"], ["--finals says what --final-seeds runs"]),
    ],
)
def test_wrong_words_get_one_sentence(tacit, words, parts, tmp_path):
    data = [] if "--data" in words else ["--data", "demo"]
    code, _, err = tacit("search", *words, *data)
    assert code == 2
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
    assert not (tmp_path / "runs").exists()


def test_it_ends_with_a_table_the_best_command_and_a_file(tacit):
    words = ("search", "fedmf", "popularity", *QUICK, "--trials", "5", "--final-seeds", "0", "--save", "rows.toml")
    code, out, err = tacit(*words, "--json")
    assert code == 0, err
    assert "the best again, with test figures: tacit run fedmf --data demo" in out
    assert "what mattered: " in out
    assert "popularity has no settings to search" in out
    first, second = json.loads(out.splitlines()[-1])
    assert [len(first["trials"]), len(second["trials"])] == [5, 1]
    assert first["best"]["value"] == max(t["value"] for t in first["trials"] if t["state"] == "finished")
    assert Path("rows.toml").exists()
    assert tacit(*words)[0] == 0  # all of it is there already
    code, out, _ = tacit("leaderboard", "runs/search", "--out", "board.md")
    assert code == 0
    assert "| 1 | " in Path("board.md").read_text()
    code, out, _ = tacit("resume", "runs/search/demo/fedmf/trial-000-s0")
    assert code == 0
    assert "a trial of a search, without test figures" in out


def test_a_method_that_fails_leaves_the_others(tacit):
    words = ("search", "fedmf", "popularity", *QUICK, "--trials", "4")
    code, out, err = tacit(*words, "--set", "lr=1e30", "--set", "table_lr=1e30")
    assert code == 1
    assert "fedmf on demo: every trial failed" in err
    assert "popularity on demo, strict" in out


def test_the_ranges_of_a_method_are_shown(tacit):
    out = tacit("methods", "fedmf")[1]
    assert "0.0333 to 30, log" in out
    assert "server or own" in out


def begun(folder, trials):
    """Wait until this many trials were begun."""
    for _ in range(600):
        if (folder / "search.json").exists() and len(list(folder.glob("trial-*"))) >= trials:
            return
        time.sleep(0.1)
    raise AssertionError("no trial began")


def test_killed_it_goes_on(tmp_path):
    folder = tmp_path / "out" / "demo" / "fedmf"
    words = [*COMMAND, "--rounds", "60", "--patience", "0", "--trials", "3", "--out", str(tmp_path / "out")]
    words += ["--range", "lr=0.5:1", "--range", "table_lr=500:1000"]  # nothing that diverges
    search = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun(folder, 2)
    search.send_signal(signal.SIGKILL)
    search.wait()
    states = [trial.state for trial in opened(folder).trials]
    assert "running" in states
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "the best again" in done.stdout
    trials = opened(folder).trials
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert {trial.state for trial in trials} <= {"finished", "pruned"}, trials
    assert len(list(folder.glob("trial-*"))) == 3


@pytest.mark.slow
def test_two_workers_share_a_search_and_stop_with_their_parent(tmp_path):
    folder = tmp_path / "out" / "demo" / "fedmf"
    words = [*COMMAND, "--rounds", "12", "--trials", "5", "--workers", "2", "--out", str(tmp_path / "out")]
    search = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun(folder, 2)
    search.send_signal(signal.SIGINT)
    assert search.wait(60) == 130
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trials = opened(folder).trials
    assert len(trials) == 5
    assert "running" not in {trial.state for trial in trials}
    journal = [json.loads(line) for line in (folder / "journal.log").read_text().splitlines()]
    assert len({line["worker_id"] for line in journal if line["op_code"] == 6}) >= 2  # who told results
    assert str(folder) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
