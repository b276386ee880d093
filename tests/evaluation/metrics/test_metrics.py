import re
from pathlib import Path

import pytest

import tacit
from tacit.config import config
from tacit.errors import UserError
from tacit.evaluation.metrics import combined, find, names, selecting
from tacit.evaluation.metrics.accuracy import F1, NDCG
from tacit.evaluation.metrics.beyond import Coverage

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-metric.md"


@pytest.mark.parametrize(
    ("text", "metric", "name"),
    [
        ("NDCG@10", NDCG(10), "NDCG@10"),
        ("ndcg@20", NDCG(20), "NDCG@20"),
        ("f1@5", F1(5), "F1@5"),
        ("coverage", Coverage(10), "Coverage@10"),
    ],
)
def test_a_name_in_any_case_finds_its_metric(text, metric, name):
    assert find(text) == metric
    assert str(metric) == name


def test_configurations_have_the_full_name():
    made = config(method="fedmf", select="ndcg@5", metrics="coverage, gini@20")
    assert (made.select, made.metrics) == ("NDCG@5", ("Coverage@10", "Gini@20"))
    assert names("") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NDGC@10", r"unknown metric 'NDGC@10'; did you mean 'NDCG@10'\? known: Coverage@10"),
        ("NDCG@7", "unknown metric 'NDCG@7'"),
        ("tacit.evaluation.metrics.accuracy:NDCG@7", "K must be one of 5, 10, 20"),
        ("no_such_module:X", "there is no module 'no_such_module'"),
        ("tacit.evaluation.metrics:UserMetric@5", "cannot make metric .* abstract"),
        ("tacit.evaluation.metrics:Rankings", "it must be a subclass of"),
    ],
)
def test_a_wrong_name_gives_a_sentence(text, message):
    with pytest.raises(UserError, match=message):
        find(text)


def test_what_is_computed_in_the_test_alone_selects_no_round():
    with pytest.raises(UserError, match=r"Coverage@10 is computed at test time only .* one of .*NDCG@10") as error:
        config(method="fedmf", select="coverage@10")
    assert "Gini" not in str(error.value)
    assert selecting("hr@5").k == 5


def test_nodes_combine_what_everybody_knows():
    one = {"HR@10": 0.5, "Precision@5": 0.2, "Recall@5": 0.4, "F1@5": 0.9, "Odd@10": 1.0, "Coverage@10": 0.5}
    other = {"HR@10": 0.1, "Precision@5": 0.1, "Recall@5": 0.2, "NDCG@10": 0.3, "F1@5": 0.9, "Odd@10": 1.0}
    precision, recall = (0.2 + 3 * 0.1) / 4, (0.4 + 3 * 0.2) / 4
    assert combined([(1, one), (3, other | {"Coverage@10": 0.5})]) == pytest.approx(
        {
            "HR@10": (0.5 + 3 * 0.1) / 4,
            "Precision@5": precision,
            "Recall@5": recall,
            "F1@5": 2 * precision * recall / (precision + recall),  # of all users, not a mean of the nodes' own
        }
    )


def test_the_page_on_adding_a_metric_works(tmp_path, monkeypatch):
    """Its file is written where it says, and its Python block runs."""
    source, used = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "my_metrics.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    room = {}
    exec(used, room)
    summary = room["summary"]
    assert 0 < summary.test["my_metrics:Tail@10"] < 1
    assert "my_metrics:FirstHit@10" in summary.valid
    assert summary.valid["my_metrics:FirstHit@10"] <= summary.valid["HR@10"]
    assert tacit.resume(summary.folder).test == summary.test
