import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.cli import main
from tacit.runs.run import run

COMMAND = [str(Path(sys.executable).with_name("tacit"))]
METRICS = {f"{name}@{k}" for name in ("HR", "NDCG", "MRR", "Recall", "Precision", "F1") for k in (5, 10, 20)}
CONTRACT = {
    "method", "data", "protocol", "seed", "best_round", "valid", "test", "test_sampled99", "bytes_up", "bytes_down",
    "seconds", "cpu_seconds", "peak_memory_mb", "epsilon",
}  # fmt: skip
MEASURED = ("seconds", "cpu_seconds", "peak_memory_mb", "folder")
QUICK = ("--data", "demo", "--rounds", "2", "--threads", "1")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def tacit(place, capsys, monkeypatch):
    """The command in this process: (exit code, standard output, standard error)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tacit", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        shown = capsys.readouterr()
        return caught.value.code or 0, shown.out, shown.err

    return call


def assert_one_sentence(result, *parts):
    code, _, err = result
    assert code == 2
    lines = err.split("\n")
    assert len(lines) == 2, err  # the sentence and the end of its line
    assert lines[0].startswith("tacit: ")
    assert lines[1] == ""
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "fedmff"], ["unknown method 'fedmff'", "did you mean 'fedmf'?", "known: "]),
        (
            ["run", "fedmf", "--set", "dmi=8"],
            ["unknown setting of fedmf 'dmi'", "did you mean 'dim'?", "known: agg"],
        ),
        (["run", "--set", "dim"], ["'dim' is not a setting", "key=value"]),
        (["run", "fedmf", "--set", "dim=wide"], ["dim=wide", "fedmf", "it must be a whole number"]),
        (["run", "fedmf", "--set", "dim=0"], ["dim=0", "at least 1"]),
        (["run", "--data", "demoo"], ["unknown data set 'demoo'", "did you mean 'demo'?", "ml-100k"]),
        (["run", "--protocol", "strikt"], ["'strikt'", "'strict', 'paper', 'symmetric'"]),
        (["run", "--select", "NDCG@7"], ["unknown metric 'NDCG@7'", "NDCG@10"]),
        (["run", "--select", "coverage@10"], ["Coverage@10 is computed at test time only", "NDCG@10"]),
        (["compare", "fedmf", "--metrics", "coverage,glamour"], ["unknown metric 'glamour'", "Gini@10"]),
        (["run", "--rounds", "0"], ["rounds=0", "at least 1"]),
        (["run", "--clients", "500"], ["clients=500", "300 users of demo"]),
        (["run", "--min-interactions", "5000"], ["5,000 interactions", "the most is"]),
        (["compare", "fedmf", "--seeds", "0,x"], ["--seeds 0,x", "0,1,2"]),
        (["compare", "fedmf", "--seeds", "0,-1"], ["--seeds 0,-1", "0 or more"]),
        (["run", "--seed", "-1"], ["seed=-1", "at least 0"]),
        (["compare", "fedmf", "--seeds", ""], ["--seeds", "0,1,2"]),
        (["compare", "fedmf", "eese"], ["unknown method 'eese'", "did you mean 'ease'?"]),
        (["compare", "popularity", "fedncf", "--set", "layers=x", "--out", "kept"], ["layers=x", "fedncf"]),
        (["compare", "fedmf", "--set", "dmi=1"], ["no method here has a setting 'dmi'", "fedmf"]),
        (["compare", "fedmf", "--select", "HR@1"], ["unknown metric 'HR@1'"]),
        (["run", "fedmf", "--ldp", "clip=1"], ["laplace needs either scale=", "epsilon="]),
        (["run", "tally", "--ldp", "clip=1,scale=1"], ["tally has central differential privacy", "--set epsilon=8"]),
        (["compare", "fedmf", "tally", "--ldp", "clip=1,scale=1"], ["tally has central differential privacy"]),
    ],
)
def test_a_wrong_run_is_one_sentence_and_leaves_nothing_behind(tacit, place, words, parts):
    if "--data" not in words:
        words = [*words, "--data", "demo"]
    assert_one_sentence(tacit(*words), *parts)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("command", [["resume"], ["recommend", "--user", "1"]])
def test_a_folder_that_is_no_run(tacit, place, command):
    (place / "photos").mkdir()
    assert_one_sentence(tacit(*command, "photos"), "photos is not a run folder", "tacit run --out")
    assert_one_sentence(tacit(*command, "nowhere"), "nowhere is not a run folder: there is nothing of that name")
    (place / "photos" / "run.json").write_text("{}")
    assert_one_sentence(tacit(*command, "photos"), "photos is not a run folder")
    (place / "photos" / "run.json").write_text("not JSON")
    assert_one_sentence(tacit(*command, "photos"), "photos/run.json cannot be read")


def test_a_full_folder_is_not_written_into(tacit, place):
    (place / "photos").mkdir()
    (place / "photos" / "cat.jpg").write_text("cat")
    assert_one_sentence(tacit("run", *QUICK, "--out", "photos"), "photos is not an empty folder", "name another")
    assert [p.name for p in (place / "photos").iterdir()] == ["cat.jpg"]
    assert_one_sentence(tacit("run", *QUICK, "--out", "photos/cat.jpg/run"), "cannot write to", "name another --out")


CSV_ERRORS = {
    "a column that is not there": ("user,what\n1,2\n", [], ["'item'", "known: user, what"]),
    "a named column that is not there": ("user,item\n1,2\n", ["--time", "when"], ["'when'", "known: item, user"]),
    "a time that cannot be read": ("user,item,time\n1,2,3\n1,3,soon\n", [], ["mine.csv line 3", "'soon'"]),
    "a row that is cut short": ("user,item,time\n1,2,3\n1\n", [], ["mine.csv line 3", "1 field,", "header has 3"]),
    "a missing id": ("user,item\n1,2\n,3\n", [], ["mine.csv line 3", "user is empty"]),
    "an empty file": ("", [], ["mine.csv is empty", "header"]),
    "a header alone": ("user,item\n", [], ["mine.csv holds no rows"]),
}


@pytest.mark.parametrize("case", CSV_ERRORS)
def test_a_file_that_cannot_be_imported(tacit, place, case):
    text, options, parts = CSV_ERRORS[case]
    (place / "mine.csv").write_text(text)
    assert_one_sentence(tacit("data", "import", "mine.csv", "--name", "mine", *options), *parts)
    assert_one_sentence(tacit("run", "--data", "mine"), "unknown data set 'mine'")


def test_ones_own_data_from_file_to_recommendation(tacit, place):
    rows = [f"u{u},i{(u % 5) * 9 + (u + n) % 11},{n}" for u in range(30) for n in range(6)]
    (place / "mine.csv").write_text("\n".join(["user,item,time", *rows]))
    code, out, err = tacit("data", "import", "mine.csv", "--name", "mine")
    assert (code, err) == (0, "")
    assert "tacit run --data mine" in out
    assert "30 users" in out
    code, out, _ = tacit("run", "fedmf", "--data", "mine", "--rounds", "2", "--threads", "1", "--out", "run", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["users_evaluated"] == 30
    code, out, _ = tacit("recommend", "run", "--user", "u7", "-k", "3", "--json")
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert len(found) == 3
    assert all(set(line) == {"item", "title", "score", "held_out"} for line in found)


@pytest.mark.parametrize("method", ["fedmf", "popularity"])
def test_a_run_ends_with_a_table_recommendations_and_json(tacit, place, method):
    code, out, err = tacit("run", method, *QUICK, "--out", "run", "--json", *(["--set", "dim=4"] * (method == "fedmf")))
    assert (code, err) == (0, "")  # no bar where output is not a terminal
    for word in (method, "popularity", "ease", "oracle", "HR@10", "NDCG@10", "recommended"):
        assert word in out
    summary = json.loads(out.splitlines()[-1])
    assert set(summary) >= CONTRACT
    for part in ("valid", "test", "test_sampled99"):
        assert set(summary[part]) >= METRICS
    assert summary == json.loads((place / "run" / "summary.json").read_text())
    if method == "fedmf":
        assert summary["settings"]["dim"] == 4
    assert sorted(p.name for p in place.iterdir()) == ["run"]


def test_tables_are_diagnosed(tacit, place):
    words = ("--set", "dim=4", "--no-sanity", "--out", "run", "--diagnose")
    assert tacit("run", "fedmf", *QUICK, *words)[0] == 0
    code, out, _ = tacit("diagnose", "run")
    assert code == 0
    assert "server: items" in out
    assert "clients: ranked with" in out
    lines = [json.loads(line) for line in tacit("diagnose", "run", "--json")[1].splitlines()]
    assert {line["round"] for line in lines} == {1, 2}
    assert all(len(line["spectrum"]) == 4 and 1 <= line["abundance"] <= 4 for line in lines)
    assert "clusters of items" not in out


def test_clusters_are_diagnosed(tacit, place):
    words = ("--set", "dim=4", "--set", "clusters=3", "--no-sanity", "--out", "run", "--diagnose")
    assert tacit("run", "cgfedrec", *QUICK, *words)[0] == 0
    code, out, _ = tacit("diagnose", "run")
    assert code == 0
    assert "clusters of items" in out
    assert "adjusted Rand index" in out
    lines = [json.loads(line) for line in tacit("diagnose", "run", "--json")[1].splitlines()]
    assert [(line["round"], line.get("before")) for line in lines if "labels" in line] == [(1, None), (2, 1)]
    assert all(-1 <= line["separability"] <= 1 for line in lines if "table" in line)


def test_the_curious_server_reports(tacit, place):
    assert tacit("run", "fedmf", *QUICK, "--set", "dim=4", "--no-sanity", "--out", "run")[0] == 0
    words = ("audit", "run", "--rounds", 1, "--clients", 20, "--secure", "--ldp", "kind=gaussian,clip=1,scale=7.5")
    code, out, _ = tacit(*words)
    assert code == 0
    assert all(word in out for word in ("(popularity)", "none", "secure sum", "gaussian", "the attack is on the sum"))
    lines = [json.loads(line) for line in tacit(*words, "--json")[1].splitlines()]
    assert [line["protection"] for line in lines] == ["", "none", "gaussian clip 1 scale 7.5", "secure sum"]
    assert lines[1]["attacks"]["score direction"]["auc"] > 0.8
    code, _, err = tacit("audit", "nothing")
    assert code == 2
    assert "nothing is not a run folder" in err


def test_a_plug_in_is_an_option(tacit, place):
    settings = ("--set", "dim=4", "--plug", "plgc:beta=0.2,regulariser=au")
    code, out, _ = tacit("run", "fedmf", *QUICK, "--no-sanity", "--json", "--out", "run", *settings)
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert summary["method"] == "plgc+fedmf"
    assert {k: summary["settings"][k] for k in ("dim", "plgc_beta", "plgc_regulariser")} == {
        "dim": 4, "plgc_beta": 0.2, "plgc_regulariser": "au",
    }  # fmt: skip
    assert tacit("recommend", "run", "--user", "3")[0] == 0
    code, out, _ = tacit("compare", "fedmf", "fedncf", *QUICK, "--json", "--plug", "plgc:every=1")
    assert code == 0
    methods = [line["method"] for line in json.loads(out.splitlines()[-1])]
    assert methods[:2] == ["plgc+fedmf", "plgc+fedncf"]
    assert_one_sentence(tacit("run", "fedmf", *QUICK, "--plug", "plcg"), "unknown plug-in 'plcg'", "plgc")
    assert_one_sentence(tacit("run", "tally", *QUICK, "--plug", "plgc"), "plgc cannot go over tally")
    assert_one_sentence(tacit("run", "fedmf", *QUICK, "--plug", "plgc:bet=1"), "plgc_bet", "did you mean 'plgc_beta'")
    assert "--plug plgc" in tacit("methods")[1]


def test_noise_on_uploads_is_an_option(tacit, place):
    code, out, err = tacit(
        "run", "fedmf", *QUICK, "--no-sanity", "--ldp", "kind=unclipped-laplace,scale=0.5", "--json", "--out", "run"
    )
    assert (code, err) == (0, "")
    assert "∞" in out
    assert json.loads(out.splitlines()[-1], parse_constant=pytest.fail)["epsilon"] == "inf"
    code, out, _ = tacit("resume", "run", "--no-sanity")
    assert code == 0
    assert "∞" in out


def test_a_run_without_a_folder_makes_one(tacit, place):
    code, out, _ = tacit("run", "popularity", *QUICK, "--no-sanity")
    assert code == 0
    assert "runs/popularity-demo-strict-s0" in out
    assert (place / "runs" / "popularity-demo-strict-s0" / "summary.json").exists()


def test_the_table_warns_of_a_leaking_protocol(tacit):
    _, out, _ = tacit("run", "popularity", *QUICK, "--protocol", "paper")
    assert "leaks the answer" in " ".join(out.split())
    _, out, _ = tacit("run", "popularity", *QUICK)
    assert "leaks" not in out


def test_a_comparison_is_one_table(tacit, place):
    code, out, err = tacit("compare", "ease", *QUICK, "--seeds", "0,1", "--out", "kept", "--json")
    assert (code, err) == (0, "")
    assert "±" in out
    found = json.loads(out.splitlines()[-1])
    assert [(run["method"], run["seed"]) for run in found] == [
        (name, seed) for name in ("ease", "popularity", "oracle") for seed in (0, 1)
    ]
    assert len(list((place / "kept").iterdir())) == 6


@pytest.mark.parametrize("words", [("compare", "ease"), ("run", "ease", "--no-sanity")])
def test_metrics_are_shown_on_request(tacit, words):
    _, out, _ = tacit(*words, *QUICK, "--select", "ndcg@5")
    assert "beside accuracy" not in out
    code, out, err = tacit(*words, *QUICK, "--metrics", "coverage,NOVELTY@20")
    assert (code, err) == (0, "")
    assert "beside accuracy" in out
    assert "Coverage@10" in out
    assert "Novelty@20" in out


def test_recommendations_for_a_user(tacit, place):
    tacit("run", "popularity", *QUICK, "--no-sanity", "--out", "run")
    code, out, _ = tacit("recommend", "run", "--user", "12", "-k", "4")
    assert code == 0
    assert "for user 12" in out
    assert_one_sentence(tacit("recommend", "run", "--user", "nobody"), "no user 'nobody' in demo", "--items")


def test_a_run_without_a_finished_round_has_nothing_to_recommend(tacit, place):
    tacit("run", "popularity", *QUICK, "--no-sanity", "--out", "run")
    for file in (place / "run" / "checkpoints").rglob("*.json"):
        file.unlink()
    (place / "run" / "summary.json").unlink()
    assert_one_sentence(tacit("recommend", "run", "--user", "12"), "no finished round", "tacit resume")


def test_training_that_diverges_says_so(tacit):
    words = ("--set", "lr=1e30", "--set", "table_lr=1e30", "--set", "epochs=2", "--no-sanity")
    assert_one_sentence(tacit("run", "fedncf", *QUICK, *words), "not a number", "smaller lr")


def test_the_lists_name_everything(tacit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = tacit("methods")
    assert code == 0
    assert all(name in out for name in ("fedmf", "fedncf", "ease", "oracle", "popularity", "mf"))
    code, out, _ = tacit("data", "list")
    assert code == 0
    assert all(name in out for name in ("ml-100k", "ml-1m", "filmtrust", "demo"))
    code, out, _ = tacit("data", "show", "demo")
    assert code == 0
    assert "300 users" in out


# Real processes and real signals.

LONG = {"rounds": 7, "settings": {"dim": 8, "init": 0.3, "epochs": 20, "batch": 32, "table_lr": 30.0, "lr": 0.1}}
LONG_WORDS = [
    "run", "fedmf", "--data", "demo", "--threads", "1", "--no-sanity", "--rounds", "7", "--out", "run",
    *(word for key, value in LONG["settings"].items() for word in ("--set", f"{key}={value}")),
]  # fmt: skip


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1"}


def started(place, lines):
    """A run in a process of its own that has finished this many rounds and is in the middle of the next."""
    process = subprocess.Popen(
        [*COMMAND, *LONG_WORDS], cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    rounds = place / "run" / "rounds.jsonl"
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if (place / "run" / "run.json").exists() and (
            not lines or (rounds.exists() and rounds.read_bytes().count(b"\n") >= lines)
        ):
            time.sleep(0.1)  # well inside the round: one takes several times as long
            return process
        time.sleep(0.01)
    out, err = process.communicate()
    pytest.fail(f"the run did not get there: {out} {err}")


def resumed(tacit):
    code, out, err = tacit("resume", "run", "--no-sanity", "--json")
    assert code == 0, err
    return {k: v for k, v in json.loads(out.splitlines()[-1]).items() if k not in MEASURED}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("through") / "run"
    run("fedmf", data="demo", threads=1, out=folder, **LONG)
    summary = json.loads((folder / "summary.json").read_text())
    return {k: v for k, v in summary.items() if k not in MEASURED}


@pytest.mark.parametrize("lines", [0, 3])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tacit, place, uninterrupted, lines):
    process = started(place, lines)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (place / "run" / "summary.json").exists()
    assert resumed(tacit) == uninterrupted
    rounds = [json.loads(line)["round"] for line in (place / "run" / "rounds.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, 8))


def test_ctrl_c_says_how_to_go_on(tacit, place, uninterrupted):
    process = started(place, lines=2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "stopped; continue with: tacit resume run\n"
    assert not (place / "run" / "summary.json").exists()
    assert resumed(tacit) == uninterrupted


def test_an_error_of_the_real_command(place):
    done = subprocess.run(
        [*COMMAND, "run", "fedmff"], cwd=place, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    assert_one_sentence((done.returncode, "", done.stderr), "did you mean 'fedmf'?")
    assert list(place.iterdir()) == []


def test_a_mistyped_command_or_metric_is_suggested_once(tacit):
    assert tacit("rnu")[2].count("Did you mean") == 1
    assert tacit("data", "lsit")[2].count("Did you mean") == 1
    assert_one_sentence(tacit("run", "fedmf", "--metrics", "ndgc@10"), "did you mean 'NDCG@10'?")
