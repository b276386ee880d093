"""Finished runs in one file."""

import json

import pytest

from tacit.errors import UserError
from tacit.figures import papers
from tacit.runs import archive, experiments

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


def test_tables_and_figures_are_those_of_the_folder(kept):
    asked = experiments.read(kept / "small.toml")
    there = experiments.collect(asked, kept / "runs")
    with archive.opened(kept / "kept.json") as folder:
        again = experiments.collect(asked, folder)
        assert experiments.markdown(asked, again) == experiments.markdown(asked, there)
        drawn = papers.of_file(kept / "small.toml", folder)["figures"]
    assert drawn == papers.of_file(kept / "small.toml", kept / "runs")["figures"]
    assert drawn
    assert not folder.exists()


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


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"run": {}}}'])
def test_what_is_no_such_file_is_refused(tmp_path, text):
    (tmp_path / "kept.json").write_text(text)
    with (
        pytest.raises(UserError, match="is not what tacit results --save keeps"),
        archive.opened(tmp_path / "kept.json"),
    ):
        pass


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/b", "", ".", ".."])
def test_a_file_from_elsewhere_writes_nowhere_else(tmp_path, name):
    parts = {"run": {}, "summary": {}, "rounds": []}
    (tmp_path / "kept.json").write_text(json.dumps({name: parts}))
    with pytest.raises(UserError, match="is not what"), archive.opened(tmp_path / "kept.json"):
        pass
