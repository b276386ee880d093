import dataclasses
import json
import statistics

import pytest

from tacit.config import config
from tacit.errors import UserError
from tacit.runs import report
from tacit.runs.compare import SANITY, Row, compare, sanity
from tacit.runs.folder import RunFolder

QUICK = {"data": "demo", "rounds": 2, "threads": 1}


def written(rows):
    """The rows as JSON has them: a tuple is a list there."""
    return json.dumps([dataclasses.asdict(row) for row in rows])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    return compare(["fedmf", "ease"], iter([0, 1]), out, settings={"dim": "8"}, **QUICK), out


def test_every_method_has_a_run_for_every_seed_and_the_sanity_rows_come_last(rows):
    made, out = rows
    assert [row.method for row in made] == ["fedmf", "ease", *SANITY]
    for row in made:
        assert [summary.seed for summary in row.runs] == [0, 1]
        for summary in row.runs:
            folder = out / f"{row.method}-demo-strict-s{summary.seed}"
            assert RunFolder.open(folder).summary["test"] == summary.test


def test_settings_and_rounds_go_to_the_methods_that_have_them(rows):
    made = {row.method: row.runs[0] for row in rows[0]}
    assert made["fedmf"].settings["dim"] == 8
    assert made["fedmf"].rounds == made["oracle"].rounds == 2
    assert made["ease"].rounds == len(made["ease"].settings["ridge"])  # a closed form has its own rounds
    assert made["popularity"].rounds == 1
    assert made["popularity"].settings == {}  # it has none


def test_a_row_is_the_mean_and_deviation_over_seeds(rows):
    row = rows[0][0]
    values = [summary.test["HR@10"] for summary in row.runs]
    sampled = [summary.test_sampled99["NDCG@10"] for summary in row.runs]
    assert row.mean("HR@10") == pytest.approx(statistics.mean(values))
    assert row.deviation("HR@10") == pytest.approx(statistics.stdev(values))
    assert row.mean("NDCG@10", sampled=True) == pytest.approx(statistics.mean(sampled))
    assert Row("one", row.runs[:1]).deviation("HR@10") is None


def test_finished_runs_are_read_and_not_run_again(rows):
    made, out = rows
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.json*")}
    again = compare(["fedmf", "ease"], [0, 1], out, settings={"dim": "8"}, **QUICK | {"threads": 2})
    assert written(again) == written(made)
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.json*")} == before


def test_runs_with_other_options_are_not_taken_for_the_same(rows):
    _, out = rows
    with pytest.raises(UserError, match="holds a run with other options; name another --out"):
        compare(["fedmf"], [0], out, settings={"dim": "9"}, **QUICK)


def test_settings_from_python_are_recognised_again(tmp_path):
    options = QUICK | {"settings": {"layers": (4,), "epochs": 1}}
    first = compare(["fedncf"], [0], tmp_path, **options)
    assert written(compare(["fedncf"], [0], tmp_path, **options)) == written(first)


def test_everything_is_checked_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="layers=x is invalid for fedncf"):
        compare(["fedmf", "fedncf"], [0], tmp_path, settings={"layers": "x"}, **QUICK)
    with pytest.raises(UserError, match="unknown method 'fedmff'"):
        compare(["popularity", "fedmff"], [0], tmp_path, **QUICK)
    with pytest.raises(UserError, match="no method here has a setting 'layers': fedmf, ease"):
        compare(["fedmf", "ease"], [0], tmp_path, settings={"layers": "8"}, **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_method_named_twice_is_one_row():
    made = compare(["popularity", "popularity"], [0], **QUICK)
    assert [row.method for row in made] == ["popularity", "oracle"]


def test_without_a_folder_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare(["popularity"], [0], **QUICK)
    assert not (tmp_path / "runs").exists()


def test_sanity_rows_stand_on_the_same_ground():
    like = config(method="fedmf", data="demo", protocol="paper", seed=2, threads=1, rounds=7, settings={"dim": 4})
    for row in sanity(like, ["popularity"]):
        (summary,) = row.runs
        assert (summary.data, summary.protocol, summary.seed) == ("demo", "paper", 2)


def test_a_leaking_protocol_is_named_in_words_and_an_honest_one_is_not():
    for protocol, leaks in (("paper", True), ("strict", False)):
        rows = compare(["popularity"], [0], **QUICK | {"protocol": protocol, "rounds": 60})
        said = [line for line in report.remarks(rows) if "leaks the answer" in line]
        assert bool(said) == leaks
        if leaks:
            assert "popularity" in said[0]
            assert "--protocol strict" in said[0]


def test_the_order_of_a_file_is_said_to_be_no_measure():
    rows = compare(["popularity"], [0], **QUICK | {"protocol": "fileorder"})
    assert [metric for metric, _ in report.columns("fileorder")][:2] == ["Recall@20", "NDCG@20"]
    assert report.FILE_ORDER in report.remarks(rows)
    assert not any("leaks" in line for line in report.remarks(rows))


def test_a_history_that_knows_the_validation_item_is_marked():
    rows = compare(["ease"], [0], settings={"history": "known"}, **QUICK)
    assert any(line.startswith("* ") for line in report.remarks(rows))
    table = report.comparison(rows)
    assert next(iter(table.columns[0].cells)) == "ease *"


def shown(table):
    """The cells of a table by heading."""
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def test_noise_is_for_those_who_upload_and_its_price_is_in_the_table(tmp_path):
    options = QUICK | {"settings": {"dim": 4}}
    made = compare(["fedmf", "ease"], [0], tmp_path, ldp="kind=gaussian,clip=1,epsilon=4", **options)
    assert [row.runs[0].ldp is not None for row in made] == [True, False, False, False]
    noise = made[0].runs[0].ldp
    assert noise["epsilon_round"] < made[0].runs[0].epsilon
    assert 3.9 < made[0].runs[0].epsilon <= 4
    assert shown(report.comparison(made))["ε"] == ["4", "–", "–", "–"]
    assert any(line.startswith("ε at δ = 1e-05") for line in report.remarks(made))
    papers = compare(["fedmf"], [0], ldp={"kind": "unclipped-laplace", "scale": 0.1}, **options)
    assert shown(report.comparison(papers))["ε"] == ["∞", "–", "–"]
    plain = compare(["fedmf"], [0], **options)
    assert "ε" not in shown(report.comparison(plain))
    assert not any("ε" in line for line in report.remarks(plain))
    with pytest.raises(UserError, match="holds a run with other options"):
        compare(["fedmf"], [0], tmp_path, ldp="kind=gaussian,clip=1,epsilon=5", **options)


def test_noise_that_a_method_cannot_have_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="tally has central differential privacy of its own"):
        compare(["fedmf", "tally"], [0], tmp_path, ldp="clip=1,scale=1", **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_metrics_on_request_are_a_second_table_and_older_runs_are_without(rows):
    made, out = rows
    names = ("Coverage@10", "Novelty@20")
    cells = shown(report.beside(made, names))
    runs = made[0].runs
    assert list(cells) == ["method", *names, "gap of\nNDCG@10"]
    assert float(cells["Coverage@10"][0]) == pytest.approx(sum(r.test["Coverage@10"] for r in runs) / len(runs), 1e-3)
    assert float(cells["gap of\nNDCG@10"][0]) == pytest.approx(sum(r.gap["NDCG@10"] for r in runs) / len(runs), 1e-3)
    path = out / "fedmf-demo-strict-s0" / "summary.json"
    before = path.read_text()
    written = json.loads(before)
    del written["gap"]
    written["test"] = {name: written["test"][name] for name in written["valid"]}
    path.write_text(json.dumps(written))
    old = compare(["fedmf"], [0], out, settings={"dim": "8"}, metrics="coverage", **QUICK)
    path.write_text(before)
    cells = shown(report.beside(old, names))
    assert cells["Coverage@10"][0] == cells["gap of\nNDCG@10"][0] == "–"
    assert cells["Coverage@10"][1] != "–"
    assert report.comparison(old).row_count == 3
    assert len(shown(report.groups(old[0].runs[0]))["users with"]) == 3
    assert shown(report.groups(old[1].runs[0]))["users with"][-1] == "gap by activity"


def test_a_run_from_before_there_was_an_option_counts(rows):
    made, out = rows
    path = out / "fedmf-demo-strict-s0" / "run.json"
    before = path.read_text()
    written = json.loads(before)
    del written["config"]["ldp"], written["ldp"], written["config"]["metrics"]
    path.write_text(json.dumps(written))
    assert written["config"]["data"] == "demo"
    assert compare(["fedmf"], [0], out, settings={"dim": "8"}, **QUICK)[0].runs[0].test == made[0].runs[0].test
    path.write_text(before)
