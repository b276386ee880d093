import pytest
from scipy import stats

from run_folders import folder
from tacit.figures import records, tables
from tacit.figures.rows import grounds


def test_the_table_has_means_deviations_and_marks_the_best(tmp_path):
    for seed, scores in enumerate([(0.2, 0.5), (0.4, 0.6)]):
        for method, score in zip(("fedmf", "tally"), scores, strict=True):
            folder(tmp_path, method, seed=seed, score=score)
    table = tables.tables(records.find([tmp_path]))[0]
    rows = {row[0]["text"]: row for row in table["rows"]}
    assert rows["fedmf"][1] == {"text": "0.3000", "spread": "0.1414", "best": False}
    assert rows["tally"][1]["best"]
    assert [cell["text"] for cell in rows["tally"][5:]] == ["400 B", "800 B", "1.5 s", "2"]


def test_an_unfinished_run_is_counted_and_not_averaged(tmp_path):
    folder(tmp_path, score=0.3)
    folder(tmp_path, seed=1, score=0.9, finished=False)
    (row,) = tables.tables(records.find([tmp_path]))[0]["rows"]
    assert (row[1]["text"], row[-1]["text"]) == ("0.3000", "1 of 2")


def test_pairs_are_of_the_same_seed(tmp_path):
    ours, theirs = [0.5, 0.6, 0.55], [0.4, 0.52, 0.49]
    for seed in range(3):
        folder(tmp_path, "tally", seed=seed, score=ours[seed])
        folder(tmp_path, "fedmf", seed=seed, score=theirs[seed])
    (rows,) = grounds(records.find([tmp_path])).values()
    ((name, ahead, pairs, p),) = tables.significance(rows, "strict")["rows"]
    expected = stats.ttest_rel(ours, theirs)
    assert (name["text"], ahead["text"], pairs["text"]) == ("fedmf", "0.0800", "3")
    assert float(p["text"]) == pytest.approx(expected.pvalue, abs=5e-4)
    assert tables.paired([0.1]) is None


def test_a_leaking_protocol_is_named(tmp_path):
    folder(tmp_path, "oracle", "paper", score=1.0)
    folder(tmp_path, "fedmf", "paper", score=0.5)
    assert "leaks the answer" in tables.tables(records.find([tmp_path]))[0]["remarks"][0]


def test_the_order_of_a_file_is_said_to_be_no_measure(tmp_path):
    folder(tmp_path, "oracle", "fileorder", score=1.0)
    (table,) = tables.tables(records.find([tmp_path]))
    assert "the protocol fileorder" in table["remarks"][0].lower()
    assert [head["text"] for head in table["heads"]][1].startswith("Recall@20")


def test_budgets_for_people():
    assert [tables._spent(e) for e in ([None], [1.25, 2], ["inf", 1.0])] == ["–", "2", "∞"]
