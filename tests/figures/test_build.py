import json

import pytest

from run_folders import folder
from tacit.figures import build, inside, records, report
from tacit.figures.rows import grounds


def read(root):
    return records.find([root])


def named(specs):
    return {spec["name"]: spec for spec in specs}


def test_curves_have_mean_and_deviation_over_seeds_and_the_best_round(tmp_path):
    folder(tmp_path, seed=0, score=0.2)
    folder(tmp_path, seed=1, score=0.4)
    (rows,) = grounds(read(tmp_path)).values()
    (line,) = build.curves(rows)["series"]
    assert line["points"][-1] == pytest.approx([4, 0.3, 0.2 / 2**0.5])
    assert line["best"] == pytest.approx([4, 0.3])


def test_a_changed_summary_changes_the_figure(tmp_path):
    path = folder(tmp_path, score=0.2)
    before = build.comparison(read(tmp_path))
    summary = json.loads((path / "summary.json").read_text())
    summary["test"]["NDCG@10"] = 0.9
    (path / "summary.json").write_text(json.dumps(summary))
    assert build.comparison(read(tmp_path)) != before


def test_the_leak_sets_the_sampled_rankings_of_both_protocols_side_by_side(tmp_path):
    for method, paper, strict in [("oracle", 1.0, 0.1), ("tally", 0.6, 0.5)]:
        folder(tmp_path, method, "paper", score=paper)
        folder(tmp_path, method, "strict", score=strict)
    folder(tmp_path, "fedmf", "paper")
    leak = named(build.comparison(read(tmp_path)))["leak"]
    assert {s["name"]: (s["left"][0], s["right"][0]) for s in leak["series"]} == {
        "oracle": (1, 0.11),
        "tally": (0.6, 0.51),
    }
    assert leak["rules"] == [{"y": 0.1, "label": "chance"}]


def test_the_frontier_is_of_those_that_nobody_beats_with_less():
    assert build.frontier([(3, 0.5), (1, 0.2), (2, 0.1), (4, 0.4), (1, 0.3)]) == [(1, 0.3), (3, 0.5)]


def test_pooled_runs_have_a_lane_of_their_own(tmp_path):
    folder(tmp_path, "fedmf")
    folder(tmp_path, "ease")
    (rows,) = grounds(read(tmp_path)).values()
    spec = build.traffic(rows, "NDCG@10")
    assert {p["name"]: (p["lane"], p["x"]) for p in spec["points"]} == {
        "fedmf": (None, 1200),
        "ease": ("pooled", 12000),
    }
    assert spec["lanes"] == ["pooled"]


def test_an_infinite_budget_has_a_lane_of_its_own(tmp_path):
    for seed, epsilon in enumerate([None, 2.0, "inf"]):
        folder(tmp_path, dim=seed, epsilon=epsilon)
    (rows,) = grounds(read(tmp_path)).values()
    spec = build.budgets(rows, "NDCG@10")
    assert [p["lane"] for p in spec["points"]] == ["none promised", None, "∞"]
    assert spec["lanes"] == ["∞", "none promised"]


def test_rows_are_told_apart_by_what_differs_and_make_a_sweep(tmp_path):
    for dim in (4, 8, 16):
        folder(tmp_path, dim=dim, score=dim / 100)
        folder(tmp_path, seed=1, dim=dim, score=dim / 100)
    (rows,) = grounds(read(tmp_path)).values()
    assert [row.label for row in rows] == ["fedmf dim=16", "fedmf dim=4", "fedmf dim=8"]
    (spec,) = build.sweeps(rows, "NDCG@10")
    assert [p[:2] for p in spec["series"][0]["points"]] == [[4, 0.04], [8, 0.08], [16, 0.16]]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 2, 12], "linear"),
        ([0.01, 0.1, 1], "log"),
        ([0, 1e-4, 0.1], "symlog"),
        ([0, 1, 2], "linear"),
        ([0], "linear"),
    ],
)
def test_a_sweep_over_powers_of_ten_has_room_for_each(values, scale):
    spec = build.sweep("lr", "NDCG@10", [("FedMF", [(float(x), (0.1, None)) for x in reversed(values)])])
    assert [x for x, *_ in spec["series"][0]["points"]] == values
    assert (spec["x"]["scale"], spec["x"]["ticks"]) == (scale, sorted(set(values)))


def test_a_live_run_has_curves_loss_bytes_and_no_groups_yet(tmp_path):
    folder(tmp_path, finished=False, epsilon=1.5)
    assert list(named(inside.of_run(read(tmp_path)[0]))) == ["learning-curves", "loss", "epsilon", "bytes"]


def test_what_a_run_recorded_is_drawn(tmp_path):
    path = folder(tmp_path)
    lines = [
        {"round": r, "table": "items", "of": "clients", "group": g, "abundance": 2.0 + r, "spectrum": [3, 2, 1],
         "separability": 0.1 * r}
        for r in (1, 2) for g in ("everyone", "1–9 interactions")
    ]  # fmt: skip
    (path / "diagnostics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "trajectories.csv").write_text("user,group,round,x,y\n7,alone,1,0.5,0.25\n7,alone,2,1,2\n")
    audit = {"method": "fedmf", "protection": "none", "attacks": {"row change": {"auc": 1.0}}}
    found = named(inside.of_run(read(tmp_path)[0]))
    assert found["spectra"]["series"][0]["points"] == [[1, 3], [2, 2], [3, 1]]
    assert found["abundance"]["series"][1]["points"] == [[1, 3.0], [2, 4.0]]
    assert ["2", "everyone", 0.2] in found["clusters"]["cells"]
    assert found["trajectories"]["panels"][0]["series"][0]["points"] == [[0.5, 0.25, 1], [1, 2, 2]]
    assert inside.audits([audit])["cells"] == [["row change", "fedmf, none", 1.0]]


def labels(root):
    return sorted(row.label for rows in grounds(read(root)).values() for row in rows)


def test_a_label_says_no_more_than_tells_rows_apart(tmp_path):
    for number, more in enumerate([{}, {"rounds": 7}, {"ldp": {"kind": "gaussian", "clip": 1.0, "epsilon": 8.0}}]):
        path = folder(tmp_path, dim=4, seed=number)
        run = json.loads((path / "run.json").read_text())
        run["config"] |= more | {"seed": 0, "evaluate_every": 1 + number}
        (path / "run.json").write_text(json.dumps(run))
    assert labels(tmp_path) == ["fedmf evaluate_every=1", "fedmf evaluate_every=2", "fedmf ε=8, evaluate_every=3"]


def test_how_often_a_run_was_validated_does_not_hide_it_from_the_leak(tmp_path):
    for every, protocol in ((1, "paper"), (2, "strict")):
        path = folder(tmp_path, protocol=protocol)
        run = json.loads((path / "run.json").read_text())
        run["config"]["evaluate_every"] = every
        (path / "run.json").write_text(json.dumps(run))
    assert labels(tmp_path) == ["fedmf", "fedmf"]
    assert named(build.comparison(read(tmp_path)))["leak"]["series"][0]["name"] == "fedmf"


def test_a_poisoned_run_shows_what_was_pushed(tmp_path):
    path = folder(tmp_path)
    (record,) = read(tmp_path)
    assert inside.poisoning(record) is None
    play = {"interactions": 6, "clients": 943, "rounds": 3, "attack": "boosted", "attackers": 9, "defence": "bound 1"}
    honest = play | {"attack": "none", "attackers": 0, "exposure": 0.0}
    (path / "poison.json").write_text(json.dumps({"plays": [honest, play | {"exposure": 0.25}]}))
    spec = inside.poisoning(record)
    assert spec["cells"] == [["bound 1", "nobody", 0.0], ["bound 1", "9 x boosted", 0.25]]
    assert "poisoning" in {one["name"] for one in inside.of_run(record)}
    (path / "poison.json").write_text("[")
    assert inside.poisoning(record) is None


def test_a_report_shows_how_unequally_items_are_liked():
    found = named(report.histories(["demo"]))
    assert set(found) == {"histories-demo", "lorenz"}
    (line,) = found["lorenz"]["series"]
    assert line["name"] == "demo"
    assert line["points"][0] == [0, 0]
    assert line["points"][-1] == pytest.approx([1, 1])
    assert all(y < x for x, y in line["points"][1:-1]), "the least popular items have less than their share"
    assert report.histories([]) == []
