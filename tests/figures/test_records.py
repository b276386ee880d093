import fcntl
import json
import subprocess
import sys
import time

import pytest

from run_folders import folder
from tacit.errors import UserError
from tacit.figures import records


def test_runs_are_found_below_a_folder_and_by_their_own(tmp_path):
    one, other = folder(tmp_path / "deep" / "er"), folder(tmp_path, method="tally")
    (tmp_path / "deep" / "notes").mkdir()
    assert {r.path for r in records.find([tmp_path])} == {one, other}
    assert [r.path for r in records.find([other, other])] == [other]
    with pytest.raises(UserError, match="is not a folder"):
        records.find([tmp_path / "gone"])
    with pytest.raises(UserError, match="there are no runs"):
        records.named([tmp_path / "deep" / "notes"])


def test_a_changed_summary_is_read_again(tmp_path):
    path = folder(tmp_path, score=0.25)
    assert records.find([tmp_path])[0].metric("HR@10") == 0.25
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"test": {"HR@10": 0.75}}))
    assert records.find([tmp_path])[0].metric("HR@10") == 0.75


def test_the_state_of_a_run(tmp_path):
    path = folder(tmp_path, finished=False)
    assert records.find([tmp_path])[0].state == "stopped"
    with (path / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert records.find([tmp_path])[0].state == "running"
    assert records.find([tmp_path])[0].state == "stopped"
    assert records.find([folder(tmp_path, seed=1)])[0].state == "finished"


def test_a_half_written_line_and_a_broken_file_are_left_out(tmp_path):
    path = folder(tmp_path)
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "val')
    assert len(records.find([tmp_path])[0].rounds) == 4
    (path / "run.json").write_text("{")
    assert records.find([tmp_path]) == []


def test_a_thousand_runs_are_listed_in_a_second_without_torch(tmp_path):
    for seed in range(1000):
        folder(tmp_path / "runs", seed=seed, rounds=1)
    code = (
        "import sys, time; from pathlib import Path; from tacit.figures import records, build, tables;"
        "b = time.perf_counter();"
        "n = len(records.find([Path(sys.argv[1])])); print(n, time.perf_counter() - b, 'torch' in sys.modules)"
    )
    tries = []
    for _ in range(3):
        said = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "runs"], capture_output=True, text=True, check=True
        )
        count, seconds, torch = said.stdout.split()
        assert (count, torch) == ("1000", "False")
        tries.append(float(seconds))
        if tries[-1] < 1:
            break
        time.sleep(0.5)
    assert min(tries) < 1
