"""What a new user stumbled over: each stays a sentence, and nothing is cut, ignored or left behind silently."""

import json
import re
from pathlib import Path

import pytest

import tacit as library
from tacit.cli import screen
from tacit.cli.screen import duration
from tacit.core.settings import settings_of
from tacit.errors import UserError
from tacit.methods import find

QUICK = ("--data", "demo", "--rounds", "2", "--threads", "1", "--no-sanity")


@pytest.mark.parametrize(
    ("method", "setting", "sentence"),
    [
        ("fedmf", "negatives=100000", "it must be at most 10000"),
        ("fedmf", "dim=100000000", "it must be at most 4096"),
        ("fedmf", "lr=nan", "finite"),
        ("fedmf", "init=1e30", "it must be at most 1000"),
        ("fedlightgcn", "negatives=0", "ranks positives above negatives"),
        ("ease", "ridge=-5", "it must be above 0"),
        ("ease", "ridge=", "it needs at least 1 value"),
        ("tally", "windows=0", "it must be at least 1"),
        ("tally", "blend=5", "it must be at most 1"),
        ("tally", "windows=3", "a decay for each window"),
        ("fedncf", "layers=0", "it must be at least 1"),
        ("gpfedrec", "lr=-1", "it must be at least 0"),  # a class that changes the default keeps the range
        ("plgc+fedmf", "plgc_beta=-1", "it must be at least 0"),
    ],
)
def test_a_setting_out_of_its_range(tacit, tmp_path, method, setting, sentence):
    code, _, err = tacit("run", method, *QUICK, "--set", setting)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert sentence in err
    assert setting.partition("=")[0] in err
    assert not (tmp_path / "runs").exists()


def test_more_clusters_than_items(tacit):
    code, _, err = tacit("run", "cgfedrec", *QUICK, "--set", "clusters=10000")
    assert code == 2
    assert "clusters=10000 is more than the 210 vectors" in err


def test_ranges_are_shown(tacit):
    _, out, _ = tacit("methods", "tally")
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert "0 to 1" in rows["blend"]
    assert "above 0" in rows["ridge"]
    assert "1 to 10,000" in rows["windows"]


def test_every_numeric_setting_of_tacit_has_a_range():
    from tacit.methods import PLUGS, known

    for name, cls in {**known(), **PLUGS.known()}.items():
        for one in settings_of(cls).values():
            if re.search(r"\b(int|float)\b", one.type):
                assert one.limits, f"{one.name} of {name}"


def test_a_search_range_holds_the_default():
    rates = {name: settings_of(find(name))["lr"] for name in ("fedmf", "mf", "pfedrec")}
    for one in rates.values():
        assert one.search.low <= one.default <= one.search.high
        assert one.search.log


def test_what_has_no_effect_is_said_or_refused(tacit):
    code, out, _ = tacit("run", "tally", *QUICK)
    assert code == 0
    assert re.search(r"tally has \d+ rounds of its own, one for each solution it tries: rounds=2 is ignored", out)
    assert "ignored" not in tacit("run", "fedmf", *QUICK)[1]
    for words in (["compare", "fedmf", "--seeds", "0,0"], ["experiment", "audit", "--seeds", "1,1"]):
        code, _, err = tacit(*words)
        assert code == 2
        assert "names a seed twice" in err
    code, _, err = tacit("run", "fedmf", "--data", "demo", "--rounds", "5", "--set", "rounds=2")
    assert code == 2
    assert "--rounds 5 and --set rounds=2" in err
    code, out, _ = tacit("compare", "ease", "--data", "demo", "--rounds", "4")
    assert code == 0
    assert "rounds=4 has no effect on ease, popularity" in out


def test_the_same_from_python(tmp_path):
    with pytest.raises(UserError, match="seed 0 is given twice"):
        library.compare(["popularity"], seeds=[0, 0], data="demo")
    with pytest.warns(UserWarning, match="rounds=3 is ignored"):
        library.run("popularity", data="demo", rounds=3, out=tmp_path / "run")
    library.compare(["Popularity", "popularity"], data="demo", rounds=1, threads=1, out=str(tmp_path / "kept"))
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
        "oracle-demo-strict-s0",
        "popularity-demo-strict-s0",
    ]
    for k in (-3, 0):
        with pytest.raises(UserError, match=f"k={k}"):
            library.recommend(tmp_path / "run", user="1", k=k)


def test_names_in_any_case(tacit, tmp_path):
    code, out, _ = tacit("run", "FedMF", *QUICK, "--select", "ndcg@10", "--metrics", "COVERAGE", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["method"] == "fedmf"
    assert (tmp_path / "runs" / "fedmf-demo-strict-s0").is_dir()
    assert json.loads((tmp_path / "runs/fedmf-demo-strict-s0/run.json").read_text())["config"]["select"] == "NDCG@10"


def test_options_from_a_file(tacit, tmp_path):
    (tmp_path / "run.toml").write_text('method = "fedmf"\ndata = "demo"\nrounds = 2\n[settings]\ndim = 4\nlr = 0.5\n')
    code, out, err = tacit("run", "--config", "run.toml", "--set", "dim=8", "--seed", "3", "--no-sanity", "--json")
    assert (code, err) == (0, "")
    first = json.loads(out.splitlines()[-1])
    assert (first["method"], first["seed"], first["rounds"]) == ("fedmf", 3, 2)
    assert (first["settings"]["dim"], first["settings"]["lr"]) == (8, 0.5)
    again = ("run", "--config", f"{first['folder']}/run.json", "--no-sanity", "--json")
    assert json.loads(tacit(*again)[1].splitlines()[-1])["test"] == first["test"]
    for text, words in (("dta = 1", "did you mean 'data'?"), ("a = ", "is not TOML"), ("seed = 'x'", "seed='x'")):
        (tmp_path / "run.toml").write_text(text)
        code, _, err = tacit("run", "--config", "run.toml")
        assert code == 2
        assert words in err


def test_a_finished_run_without_a_checkpoint_says_how_to_get_a_model(tacit, tmp_path):
    (tmp_path / "small.toml").write_text(
        'title = "small"\nmetrics = ["HR@10"]\nprotocols = ["strict"]\noptions = { rounds = 1 }\n'
        '[[data]]\nname = "demo"\n[[run]]\nlabel = "Popularity"\nmethod = "popularity"\n'
    )
    assert tacit("experiment", "small.toml", "--threads", "1")[0] == 0
    asked = json.loads((tmp_path / "runs/small/popularity-demo-strict-s0/run.json").read_text())["config"]
    assert asked["threads"] == 1
    code, _, err = tacit("recommend", "runs/small/popularity-demo-strict-s0", "--user", "1")
    assert code == 2
    assert "checkpoints were dropped" in err
    assert "resume" not in err
    way_out = re.search(r"tacit (run --config .*) DIR trains", err)
    assert way_out
    assert tacit(*way_out[1].split(), "again", "--no-sanity")[0] == 0
    assert tacit("recommend", "again", "--user", "1")[0] == 0


def test_a_trial_of_a_search_is_repeated_with_test_figures(tacit, tmp_path):
    assert tacit("search", "fedmf", "--data", "demo", "--rounds", "1", "--trials", "1", "--out", "found")[0] == 0
    trial = "found/demo/fedmf/trial-000-s0/run.json"
    assert not json.loads((tmp_path / trial).read_text())["config"]["tested"]
    code, out, _ = tacit("run", "--config", trial, "--no-sanity", "--json", "--out", "again")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["test"]["HR@10"] > 0


def test_a_line_a_round_on_request(tacit, capsys):
    assert tacit("run", "fedmf", *QUICK, "--out", "a")[2] == ""
    lines = tacit("run", "fedmf", *QUICK, "--out", "b", "--progress", "lines")[2].splitlines()
    assert [line.split("  ")[0] for line in lines] == ["fedmf: round 1/2", "fedmf: round 2/2"]
    assert all("valid NDCG@10" in line and "left" in line for line in lines)
    assert "did you mean 'lines'?" in tacit("run", "fedmf", *QUICK, "--out", "c", "--progress", "line")[2]
    library.run("fedmf", data="demo", rounds=2, out="d", watch=library.lines, threads=1)
    assert capsys.readouterr().err.splitlines()[0].startswith("round 1/2  valid NDCG@10 0.")


def test_many_runs_leave_a_line_each(tacit):
    words = ("compare", "fedmf", "--seeds", "0,1", "--data", "demo", "--rounds", "2", "--threads", "1")
    lines = tacit(*words, "--progress", "bar", "--out", "kept")[2]
    done = re.findall(r"(\d)/6 (\w+) seed (\d): (\d+) rounds  best valid NDCG@10 0\.\d+ in round \d", lines)
    assert [(int(n), name, seed) for n, name, seed, _ in done] == [
        (1, "fedmf", "0"), (2, "fedmf", "1"), (3, "popularity", "0"),
        (4, "popularity", "1"), (5, "oracle", "0"), (6, "oracle", "1"),
    ]  # fmt: skip
    again = tacit(*words, "--progress", "lines", "--out", "kept")[2]
    assert again.count("already there") == 6


def test_time_left_is_readable():
    assert [duration(s) for s in (0.4, 59, 61, 3725)] == ["0 s", "59 s", "1 min 1 s", "1 h 2 min"]


def test_a_narrow_window_cuts_nothing(tacit, monkeypatch):
    monkeypatch.setattr(screen.out, "_width", 30)
    code, out, err = tacit("run", "fedmf", *QUICK, "--ldp", "clip=1,scale=1", "--metrics", "coverage")
    assert (code, err) == (0, "")
    for heading in ("HR@10", "NDCG@10", "up per", "down per", "time", "ε", "Coverage@10", "recommended"):
        assert heading in out
    assert "…" not in out


def test_memory_that_is_not_there_is_said(tacit, raw_data, tmp_path):
    code, _, err = tacit("run", "fedcia", "--data", "ml-1m", "--set", "dim=4096")
    assert code == 2
    assert re.search(
        r"fedcia on ml-1m with these settings would take about \d+ GB of memory, and this machine has", err
    )
    assert "--mapped" in err
    assert not (tmp_path / "runs").exists()


def test_the_readme_says_what_a_bare_upload_tells():
    text = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    assert "tally's bare upload, too, names a user's items" in text


def test_results_that_are_not_there_are_said(tacit, tmp_path):
    code, _, err = tacit("results", "pfedclr-table2", "--out", "typo.json")
    assert code == 2
    assert "there is no typo.json" in err


def test_results_without_a_name_are_of_all_tables(tacit, tmp_path):
    code, _, err = tacit("results")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "nothing of a published table is finished in runs" in err
    assert tacit("results", "--rounds", "3")[0] == 2
    kept = str(Path(__file__).parents[2] / "docs/results/data")
    code, shown, _ = tacit("results", "--out", kept, "--markdown")
    (line,) = [line for line in shown.splitlines() if line.startswith("| hetefedrec-table2 | ml-1m |")]
    assert (code, line.split("|")[3].strip()) == (0, "14 of 14")
    assert "hetefedrec-table2" in tacit("results", "--out", kept)[1]


def test_a_damaged_file_hides_no_other_table(tacit, tmp_path):
    good = Path(__file__).parents[2] / "docs/results/data/pfedclr-figure7.json"
    (tmp_path / "pfedclr-figure7.json").write_text(good.read_text())
    (tmp_path / "pfedclr-table2.json").write_text("{")
    code, shown, err = tacit("results", "--out", ".", "--markdown")
    assert (code, "| pfedclr-figure7 | filmtrust | 7 of 7 |" in shown) == (0, True)
    assert "left out: pfedclr-table2.json is not what tacit results --save keeps" in err
    assert "7 of 7" not in tacit("results", "pfedclr-figure7", "--out", ".")[1]  # its table, not the overview
    assert "PFedCLR rank=12" in tacit("results", "pfedclr-figure7", "--out", ".")[1]
    for place, sentence in (("pfedclr-figure7.json", "is a file, of one table"), ("nope", "is finished in nope")):
        code, _, err = tacit("results", "--out", place)
        assert (code, sentence in err) == (2, True)


def test_results_on_a_data_set_of_ones_own_are_shown_and_kept(tacit, tmp_path):
    some = ("--data", "demo", "--rounds", "1")
    asked = ("experiment", "pfedclr-table2", *some, "--row", "FedMF", "--protocol", "strict", "--seeds", "0")
    assert tacit(*asked, "--threads", "1")[0] == 0
    code, shown, err = tacit("results", "pfedclr-table2", *some, "--save", "kept.json")
    assert code == 0
    assert "1 in all → kept.json" in err
    assert "FedMF" in shown
    assert tacit("results", "pfedclr-table2", *some, "--out", "kept.json")[1] == shown
    assert tacit("results", "pfedclr-table2", "--rounds", "1")[1] == shown


@pytest.mark.parametrize("threads", ["-1", "100000000000000000000"])
def test_a_number_of_workers_that_cannot_be_is_refused(tacit, tmp_path, threads):
    words = ("experiment", "pfedclr-table2", "--data", "demo", "--rounds", "1", "--threads", threads, "--out", "rows")
    assert tacit(*words)[0] == 2
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("settings", ["[]", "[1]", '"x"', "1"])
def test_settings_of_a_file_are_a_table(tacit, tmp_path, settings):
    (tmp_path / "run.json").write_text(f'{{"config": {{"method": "fedmf", "data": "demo", "settings": {settings}}}}}')
    code, _, err = tacit("run", "--config", "run.json")
    assert code == 2
    assert "'settings' in run.json is invalid" in err
