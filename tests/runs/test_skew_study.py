import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console

from tacit.runs import skew_study, study_report


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("skew")
    return skew_study.study(out, "demo", users=2, rounds=4, threads=1, protocol="paper"), out


def test_every_round_of_every_group_is_written(found):
    groups, out = found
    lines = [json.loads(line) for line in (out / "skew.jsonl").read_text().splitlines()]
    assert [(line["group"], line["round"]) for line in lines] == [(g.name, n) for g in groups for n in range(1, 5)]
    assert [g.name for g in groups] == ["with averaging", "alone", "AF", "CF", "PFedCLR"]
    without = ("alone", "AF")  # nothing is averaged; a table of one's own is not kept
    averaged = [line for line in lines if line["group"] not in without]
    assert all(line["skew"] > 0 and line["calibration"] > 0 and -1 <= line["cosine"] <= 1 for line in averaged)
    assert all(line["added"] > 0 and line["allowed"] > 0 and 0 <= line["over"] <= 1 for line in averaged)
    assert not any("skew" in line or "added" in line for line in lines if line["group"] in without)


def test_trajectories_have_a_point_for_every_user_group_and_round(found):
    groups, out = found
    with (out / "trajectories.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(groups) * 4
    assert len({(r["user"], r["group"], r["round"]) for r in rows}) == len(rows)
    assert all(np.isfinite([float(r["x"]), float(r["y"])]).all() for r in rows)


def test_averaging_takes_vectors_away_from_where_they_go_alone(found):
    groups, _ = found
    averaged, alone, *_ = groups
    gaps = skew_study.apart(alone, averaged)
    assert gaps[0] == pytest.approx(0, abs=1e-5)  # in the first round everyone starts from the same table
    assert gaps[-1] > 0.01
    one = skew_study.Group("x", [None], np.array([[[3.0, 4.0]]]), [0.0])
    other = skew_study.Group("y", [None], np.array([[[3.0, 3.0]]]), [0.0])
    assert skew_study.apart(one, other) == [pytest.approx(0.2)]


def test_the_table_has_the_rounds_a_person_reads(found):
    groups, _ = found
    assert skew_study.every(100) == [1, 11, 21, 31, 41, 50, 60, 70, 80, 90, 100]
    console = Console(width=100, file=io.StringIO())
    console.print(study_report.skew(groups))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    (heading,) = (i for i, line in enumerate(lines) if line[:2] == ["round", "trained"])
    rows = [line for line in lines[heading + 1 :] if line and "─" not in line[0]]
    assert len(rows) == 4 * 5
    averaged, alone, _, _, calibrated = groups
    last = averaged.balances[3]
    measured = [f"{last.skew:.3g}", f"{last.calibration:.3g}", f"{last.cosine:.2f}", f"{last.left:.2f}"]
    gap = f"{skew_study.apart(alone, averaged)[3]:.2f}"
    assert rows[15] == ["4", "with", "averaging", *measured, gap, f"{averaged.valid[3]:.4f}"]
    assert rows[16] == ["alone", *["–"] * 5, f"{alone.valid[3]:.4f}"]
    assert [row[0] for row in rows[17:]] == ["AF", "CF", "PFedCLR"]
    assert rows[19][-2:] == [f"{skew_study.apart(alone, calibrated)[3]:.2f}", f"{calibrated.valid[3]:.4f}"]


def test_what_came_of_the_lemma_is_said_of_every_group_that_averages(found):
    groups, _ = found
    said = study_report.lemma(groups)
    assert [line.split(", ")[1] for line in said] == ["with averaging", "CF", "PFedCLR"]
    assert f"{groups[0].sums[-1].added:.3g}" in said[0]
