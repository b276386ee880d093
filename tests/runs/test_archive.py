"""Finished runs in one file."""

import json
import subprocess
import sys

import pytest

from tacit.errors import UserError
from tacit.figures import papers
from tacit.runs import archive, experiments, paper_tables

FILE = (
    'title = "small"\nmetrics = ["HR@10"]\nprotocols = ["strict"]\noptions = { rounds = 2 }\n'
    '[[data]]\nname = "demo"\n'
    '[[run]]\nlabel = "FedMF"\nmethod = "fedmf"\n[[run]]\nlabel = "Popularity"\nmethod = "popularity"\n'
)


@pytest.fixture
def kept(tmp_path):
    """An experiment, its runs, and the file that they are kept in."""
    (tmp_path / "small.toml").write_text(FILE)
    asked = experiments.read(tmp_path / "small.toml")
    experiments.carry_out(experiments.planned(asked), tmp_path / "runs")
    assert archive.pack(tmp_path / "runs", tmp_path / "kept.json") == 2
    return tmp_path


def rounded(value):
    """Figures as a file keeps them."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def test_tables_and_figures_are_those_of_the_folder(kept):
    asked = experiments.read(kept / "small.toml")
    there = experiments.collect(asked, kept / "runs")
    with archive.opened(kept / "kept.json") as folder:
        again = experiments.collect(asked, folder)
        assert paper_tables.markdown(asked, again) == paper_tables.markdown(asked, there)
        drawn = papers.of_file(kept / "small.toml", folder)["figures"]
    assert drawn
    assert rounded(drawn) == rounded(papers.of_file(kept / "small.toml", kept / "runs")["figures"])
    assert not folder.exists()


def test_a_round_keeps_the_metric_that_chooses_and_figures_are_short(kept):
    run = json.loads((kept / "kept.json").read_text())["fedmf-demo-strict-s0"]
    assert [list(line["valid"]) for line in run["rounds"]] == [["NDCG@10"], ["NDCG@10"]]
    figures = [line["valid"]["NDCG@10"] for line in run["rounds"]] + list(run["summary"]["test"].values())
    assert all(figure == float(f"{figure:.6g}") for figure in figures)
    assert run["summary"]["seed"] == 0


@pytest.mark.parametrize("line", [1, {"round": "x", "valid": {"NDCG@10": 0.1}}, {"round": 1, "valid": 2}, {}])
def test_an_odd_round_of_a_kept_file_is_left_out_when_more_is_kept(kept, line):
    runs = json.loads((kept / "kept.json").read_text())
    runs["elsewhere-demo-strict-s0"] = runs["fedmf-demo-strict-s0"] | {"rounds": [line]}
    (kept / "kept.json").write_text(json.dumps(runs))
    assert archive.pack(kept / "runs", kept / "kept.json") == 3
    assert json.loads((kept / "kept.json").read_text())["elsewhere-demo-strict-s0"]["rounds"] == []


def test_what_is_kept_of_other_runs_stays(kept):
    (kept / "runs/fedmf-demo-strict-s0/summary.json").unlink()
    assert archive.pack(kept / "runs", kept / "kept.json") == 2
    (kept / "kept.json").unlink()
    assert archive.pack(kept / "runs", kept / "kept.json") == 1


def test_a_folder_is_taken_as_it_is(tmp_path):
    with archive.opened(tmp_path) as folder:
        assert folder == tmp_path


def test_nothing_finished_is_said(tmp_path):
    with pytest.raises(UserError, match=r"no run below .* is finished"):
        archive.pack(tmp_path, tmp_path / "kept.json")
    assert not (tmp_path / "kept.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"run": {}}}', "[" * 100_000])
def test_what_is_no_such_file_is_refused(tmp_path, text):
    (tmp_path / "kept.json").write_text(text)
    with (
        pytest.raises(UserError, match="is not what tacit results --save keeps"),
        archive.opened(tmp_path / "kept.json"),
    ):
        pass


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/b", "", ".", ".."])
def test_a_file_from_elsewhere_writes_nowhere_else(tmp_path, name):
    parts = {"run": {"config": {}, "settings": {}}, "summary": {}, "rounds": []}
    (tmp_path / "kept.json").write_text(json.dumps({name: parts}))
    with pytest.raises(UserError, match="is not what"), archive.opened(tmp_path / "kept.json"):
        pass


def test_names_are_looked_at_without_assertions_too(tmp_path):
    parts = {"run": {"config": {}, "settings": {}}, "summary": {}, "rounds": []}
    (tmp_path / "kept.json").write_text(json.dumps({"../outside": parts}))
    code = "import sys, pathlib; from tacit.runs.archive import opened; opened(pathlib.Path(sys.argv[1])).__enter__()"
    said = subprocess.run([sys.executable, "-O", "-c", code, tmp_path / "kept.json"], capture_output=True, text=True)
    assert "is not what tacit results --save keeps" in said.stderr


def changed(kept, **parts):
    """The file, with these parts of the run of FedMF changed."""
    runs = json.loads((kept / "kept.json").read_text())
    for part, values in parts.items():
        runs["fedmf-demo-strict-s0"][part] |= values
    (kept / "kept.json").write_text(json.dumps(runs))
    return kept / "kept.json"


@pytest.mark.parametrize(
    "parts",
    [{"summary": {"test": {"HR@10": "x"}}}, {"summary": {"test": 1}}],
)
def test_a_damaged_file_is_shown_in_a_sentence(kept, parts):
    asked, file = experiments.read(kept / "small.toml"), changed(kept, **parts)
    with pytest.raises(UserError, match=r"kept\.json cannot be shown"), archive.opened(file) as folder:
        paper_tables.markdown(asked, experiments.collect(asked, folder))


def test_a_file_from_elsewhere_imports_nothing(kept, monkeypatch, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    runs = json.loads((kept / "kept.json").read_text())
    config = runs["fedmf-demo-strict-s0"]["run"]["config"] | {"metrics": ["evil:X@10"]}
    asked, file = experiments.read(kept / "small.toml"), changed(kept, run={"config": config})
    with archive.opened(file) as folder:
        assert len(experiments.collect(asked, folder)[("FedMF", "demo", "strict")].runs) == 1


@pytest.mark.parametrize("config", [{"newer": 1}, {"seed": "x"}])
def test_a_run_of_another_version_does_not_count_and_stops_nothing(kept, config):
    runs = json.loads((kept / "kept.json").read_text())
    config = runs["fedmf-demo-strict-s0"]["run"]["config"] | config
    asked, file = experiments.read(kept / "small.toml"), changed(kept, run={"config": config})
    with archive.opened(file) as folder:
        counts = {key[0]: len(cell.runs) for key, cell in experiments.collect(asked, folder).items()}
    assert counts == {"FedMF": 0, "Popularity": 1}


def test_a_newer_versions_summary_is_read_and_one_that_lacks_something_does_not_count(kept):
    asked, file = experiments.read(kept / "small.toml"), changed(kept, summary={"unheard_of": 1})
    with archive.opened(file) as folder:
        assert len(experiments.collect(asked, folder)[("FedMF", "demo", "strict")].runs) == 1
    runs = json.loads(file.read_text())
    del runs["fedmf-demo-strict-s0"]["summary"]["bytes_up"]
    file.write_text(json.dumps(runs))
    with archive.opened(file) as folder:
        assert not experiments.collect(asked, folder)[("FedMF", "demo", "strict")].runs


def test_another_experiments_runs_are_not_overwritten(kept):
    config = json.loads((kept / "runs/fedmf-demo-strict-s0/run.json").read_text())["config"]
    file = changed(kept, run={"config": config | {"rounds": 7}})
    before = file.read_text()
    with pytest.raises(UserError, match="with other options"):
        archive.pack(kept / "runs", file)
    assert file.read_text() == before


def test_half_a_line_and_half_a_folder_are_left_out(kept):
    rounds = kept / "runs/fedmf-demo-strict-s0/rounds.jsonl"
    rounds.write_text(rounds.read_text() + '{"round": 3, "val')
    (kept / "runs/other").mkdir()
    (kept / "runs/other/summary.json").write_text("{}")
    assert archive.pack(kept / "runs", kept / "kept.json") == 2
    assert len(json.loads((kept / "kept.json").read_text())["fedmf-demo-strict-s0"]["rounds"]) == 2


@pytest.mark.parametrize("name", ["", "nowhere/kept.json"])
def test_a_place_that_cannot_be_written_is_said(kept, name):
    with pytest.raises(UserError, match=r"cannot be written: (it is a folder|there is no folder)"):
        archive.pack(kept / "runs", kept / name)
