"""The leaderboard: from finished runs to a page that can be drawn again without them."""

import json
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from run_folders import folder
from tacit.errors import UserError
from tacit.figures import leaderboard, leaderboard_page, records
from tacit.figures.leaderboard import Line, boards, chance, entries, merged
from tacit.figures.leaderboard_page import _seeds


def hits(path, places):
    """users.npz as a run writes it."""
    found = np.zeros((len(places), 20), dtype=bool)
    for user, place in enumerate(places):
        if place:
            found[user, place - 1] = True
    user = np.arange(len(places), dtype=np.int32)
    np.savez_compressed(path / "users.npz", user=user, hits=np.packbits(found, axis=1), total=np.ones_like(user))


def read(root):
    return entries(records.find([root]))


def test_lines_are_in_order_and_only_tested_runs_under_strict_count(tmp_path):
    folder(tmp_path, "fedmf", score=0.1)
    folder(tmp_path, "fedmf", seed=1, score=0.3)
    folder(tmp_path, "tally", score=0.4)
    folder(tmp_path, "fedmf", "paper", score=0.9)
    folder(tmp_path, "pfedrec", finished=False)
    trial = folder(tmp_path, "fedrap", score=0.9)
    summary = json.loads((trial / "summary.json").read_text())
    (trial / "summary.json").write_text(json.dumps(summary | {"test": {}}))
    (lines,) = boards(read(tmp_path)).values()
    assert [line.label for line in lines] == ["tally", "fedmf"]
    assert lines[1].figure("NDCG@10") == pytest.approx((0.2, 0.2 / 2**0.5))


def searched(root, default, best, trials=12):
    """The folder of a search of fedmf, with finals for these trials."""
    place = root / "demo" / "fedmf"
    for number in {default, best}:
        path = folder(place, "fedmf", score=0.1 + number / 100, **({"dim": 8} if number else {}))
        path.rename(place / f"final-{number:03d}-s0")
    (place / "search.json").write_text(json.dumps({"config": {"settings": {}}}))
    (place / "result.json").write_text(json.dumps({"rows": {"default": default, "best": best}, "trials": trials}))
    return place


def test_a_search_gives_default_and_best_and_a_better_best_takes_its_place(tmp_path):
    place = searched(tmp_path / "one", 0, 5)
    first = read(tmp_path / "one")
    (line,) = boards(first)["demo"]
    assert line.figure("NDCG@10", "default")[0] == pytest.approx(0.1)
    assert line.figure("NDCG@10", "best")[0] == line.figure("NDCG@10")[0] == pytest.approx(0.15)
    assert line.trials == 12
    path = folder(place, "fedmf", score=0.2, dim=16)
    path.rename(place / "final-009-s0")
    (place / "result.json").write_text(json.dumps({"rows": {"default": 0, "best": 9}, "trials": 20}))
    (line,) = boards(merged(first, read(tmp_path / "one")))["demo"]
    assert line.figure("NDCG@10")[0] == pytest.approx(0.2)
    assert len(line.shown) == 1


def test_seeds_of_default_and_best_may_differ():
    def line(**runs):
        return Line("m", "", 6, {kind: ({},) * count for kind, count in runs.items()})

    assert [_seeds(line(default=3)), _seeds(line(best=3)), _seeds(line(default=3, best=3))] == ["3"] * 3
    assert _seeds(line(default=1, best=3)) == "1 / 3"


def test_a_default_that_is_the_best_stands_for_both(tmp_path):
    searched(tmp_path, 0, 0)
    (line,) = boards(read(tmp_path))["demo"]
    assert line.runs["default"] == line.runs["best"]


def test_neighbours_are_compared_user_by_user(tmp_path):
    places = np.random.default_rng(0).integers(0, 11, 400)
    better = np.where(places > 1, places - 1, places)
    for name, found in (("fedmf", places), ("tally", better), ("pfedrec", places)):
        hits(folder(tmp_path, name, score={"tally": 0.3}.get(name, 0.2)), found)
    by = {line.method: line for line in boards(read(tmp_path))["demo"]}
    assert chance(by["tally"], by["fedmf"]) < 1e-6
    assert chance(by["pfedrec"], by["fedmf"]) == 1
    shutil.rmtree(tmp_path / "tally-demo-strict-s0")
    folder(tmp_path, "tally", score=0.3)  # without users.npz
    by = {line.method: line for line in boards(read(tmp_path))["demo"]}
    assert chance(by["tally"], by["fedmf"]) is None


def test_places_become_gains(tmp_path):
    hits(folder(tmp_path, "fedmf"), [1, 0, 3, 15])
    (entry,) = read(tmp_path)
    assert leaderboard._gain(entry["users"]) == pytest.approx([1, 0, 0.5, 0])


def test_the_page_is_drawn_again_without_the_runs(tmp_path):
    folder(tmp_path / "runs", "fedmf", score=0.1)
    folder(tmp_path / "runs", "ease", score=0.2)
    folder(tmp_path / "runs", "tally", score=0.15, epsilon=float("inf"))
    page = tmp_path / "board" / "leaderboard.md"
    assert leaderboard_page.update(records.find([tmp_path / "runs"]), page) == (3, 3)
    before = page.read_text(), page.with_suffix(".svg").read_text()
    shutil.rmtree(tmp_path / "runs")
    assert leaderboard_page.update([], page) == (0, 3)
    assert before == (page.read_text(), page.with_suffix(".svg").read_text())
    assert "| 1 | ease |" in before[0]
    assert "pooled" in before[0]
    assert "∞" in before[0]
    assert "## How to add a row from outside" in before[0]
    circles = ET.fromstring(before[1]).findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3
    json.loads(page.with_suffix(".json").read_text())


def test_several_data_sets_have_one_table_over_all(tmp_path):
    for data, method, score in (("few", "fedmf", 0.2), ("more", "fedmf", 0.1), ("more", "tally", 0.3)):
        folder(tmp_path, method, data=data, score=score)
    leaderboard_page.update(records.find([tmp_path]), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    over, *_ = text.split("## All data sets")[1].split("\n## ")
    lines = [line for line in over.splitlines() if line.startswith("|")]
    assert lines[0] == "| method | more | few |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| tally", "| fedmf"]
    assert lines[2].endswith("0.3000 | – |")
    assert lines[3].endswith("0.2000 |")


def test_nothing_to_show_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="nothing to show"):
        leaderboard_page.update([], tmp_path / "leaderboard.md")
    (tmp_path / "leaderboard.json").write_text("[]")
    with pytest.raises(UserError, match="not what tacit leaderboard keeps"):
        leaderboard_page.update([], tmp_path / "leaderboard.md")


@pytest.mark.parametrize(
    "result", ["", "{}", "[]", '{"rows": null, "trials": 3}', '{"rows": {"best": 0}, "trials": "x"}']
)
def test_final_runs_of_a_search_that_is_not_done_are_no_rows(tmp_path, result):
    searched(tmp_path / "deep" / "er", 0, 3)
    assert len(read(tmp_path)) == 2
    file = tmp_path / "deep" / "er" / "demo" / "fedmf" / "result.json"
    file.unlink()
    if result:
        file.write_text(result)
    assert read(tmp_path) == []


def test_the_same_settings_are_one_row_however_they_are_written(tmp_path):
    for place, rate in (("one", 6730), ("two", 6730.0)):
        folder(tmp_path / place, "fedmf", table_lr=rate)
    (lines,) = boards(merged([], read(tmp_path))).values()
    assert [line.label for line in lines] == ["fedmf table_lr=6730"]


@pytest.mark.parametrize(
    "change",
    [
        {"data": None},
        {"seed": "a"},
        {"users": "%%%"},
        {"users": "AAAA"},
        {"NDCG@10": float("nan")},
        {"NDCG@10": "high"},
        {"kinds": ["foo"]},
    ],
)
def test_a_damaged_line_is_refused(tmp_path, change):
    hits(folder(tmp_path / "runs", "fedmf"), [1, 0, 3])
    page = tmp_path / "leaderboard.md"
    leaderboard_page.update(records.find([tmp_path / "runs"]), page)
    kept = json.loads(page.with_suffix(".json").read_text())
    page.with_suffix(".json").write_text(json.dumps({"runs": [kept["runs"][0] | change]}))
    with pytest.raises(UserError, match="not what tacit leaderboard keeps"):
        leaderboard_page.update([], page)


@pytest.mark.parametrize("score", [float("nan"), 1e300, "x", None])
def test_a_run_that_could_not_be_drawn_again_is_named_and_changes_nothing(tmp_path, score):
    folder(tmp_path / "good", score=0.1)
    page = tmp_path / "page.md"
    leaderboard_page.update(records.find([tmp_path / "good"]), page)
    before = page.with_suffix(".json").read_text()
    bad = folder(tmp_path / "bad", "tally", score=0.1)
    summary = json.loads((bad / "summary.json").read_text())
    summary["test"]["NDCG@10"] = score
    (bad / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"tally-demo-strict-s0 cannot be taken"):
        leaderboard_page.update(records.find([tmp_path / "bad"]), page)
    assert page.with_suffix(".json").read_text() == before


def test_a_letter_that_cannot_be_written_loses_nothing(tmp_path):
    folder(tmp_path / "good", score=0.1)
    page = tmp_path / "page.md"
    leaderboard_page.update(records.find([tmp_path / "good"]), page)
    bad = folder(tmp_path / "bad", "tally")
    run = json.loads((bad / "run.json").read_text())
    run["config"]["method"] = "\ud800"
    (bad / "run.json").write_text(json.dumps(run))
    with pytest.raises(UserError, match="cannot be taken"):
        leaderboard_page.update(records.find([tmp_path / "bad"]), page)
    assert len(leaderboard.read(page.with_suffix(".json"))) == 1


def test_names_from_elsewhere_do_not_break_the_page(tmp_path):
    for number, data in enumerate(("a|b\n## X", "demo")):
        path = folder(tmp_path / str(number), "fedmf", score=0.1)
        run = json.loads((path / "run.json").read_text())
        run["config"]["data"] = data
        (path / "run.json").write_text(json.dumps(run))
    leaderboard_page.update(records.find([tmp_path]), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "\n## X" not in text
    assert "a\\|b ## X" in text
    ET.fromstring((tmp_path / "page.svg").read_text())


@pytest.mark.parametrize("name", ["page.json", "page.svg"])
def test_a_page_does_not_take_the_place_of_its_own_figures(tmp_path, name):
    folder(tmp_path, score=0.1)
    with pytest.raises(UserError, match="is no page"):
        leaderboard_page.update(records.find([tmp_path]), tmp_path / name)
    assert not (tmp_path / name).exists()


def test_users_of_another_number_are_not_compared(tmp_path):
    for seed, places in ((0, [1, 2, 3]), (1, [1, 2])):
        for method in ("fedmf", "tally"):
            hits(folder(tmp_path, method, seed=seed, score=0.1), places)
    (lines,) = boards(read(tmp_path)).values()
    assert chance(*lines) is None
