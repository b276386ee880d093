"""Published beside measured figures: whether they agree."""

import pytest

from run_folders import summary_of
from tacit.runs import papers_state
from tacit.runs.cells import Cell
from tacit.runs.experiments import Experiment
from tacit.runs.paper_tables import headings, table_rows, verdict


@pytest.mark.parametrize(
    ("told", "ours", "word", "gap"),
    [
        ([0.5], 0.55, "reproduced", 0.1),
        ([0.5], 0.45, "reproduced", -0.1),
        ([0.5], 0.5505, "above", 0.101),
        ([0.5], 0.4, "below", -0.2),
        ([0.5, 0.8], 0.75, "reproduced", -0.0625),  # the nearest of two papers
        ([0.2, 0.8], 0.4, "between", -0.5),
        ([0.2, 0.4], 0.8, "above", 1.0),
        ([0.4, 0.8], 0.2, "below", -0.5),
    ],
)
def test_a_tenth_of_what_is_published_is_reproduced(told, ours, word, gap):
    found = verdict([("", value) for value in told], (ours, None))
    assert found is not None
    assert (found[0], found[1]) == (word, pytest.approx(gap))


def test_nothing_is_said_of_nothing_and_of_other_data():
    assert verdict([("", 0.5)], None) is None
    assert verdict([], (0.5, None)) is None
    assert verdict([("", 0.0)], (0.5, None)) is None
    assert verdict([("on 10,482 users", 0.5)], (0.5, None)) is None
    assert verdict([("on 10,482 users", 0.5), ("", 0.1)], (0.5, None))[0] == "above"


def _made(protocols=("strict", "paper"), **published):
    rows = [{"label": name, "method": "fedmf", "published": {"demo": [told]}} for name, told in published.items()]
    return Experiment(
        title="t", metrics=["HR@10"], protocols=list(protocols), data=[{"name": "demo"}],
        run=[*rows, {"label": "unpublished", "method": "fedmf"}],
    )  # fmt: skip


def test_the_papers_own_protocol_is_judged():
    made = _made(a={"HR@10": 0.5})
    found = {("a", "demo", "strict"): Cell((summary_of(0, 0.1),)), ("a", "demo", "paper"): Cell((summary_of(0, 0.52),))}
    place = headings(made).index("verdict")
    one, other = table_rows(made, "demo", found)
    assert (one[place], other[place]) == (["reproduced, +4%"], ["–"])
    assert "verdict" not in headings(_made())  # nothing is published
    assert all(len(row) == len(headings(made)) for row in (one, other))
    assert all(len(row) == len(headings(_made())) for row in table_rows(_made(), "demo", {}))


def test_rows_are_counted_by_what_came_out():
    made = _made(near={"HR@10": 0.5}, far={"HR@10": 0.1}, missing={"HR@10": 0.5})
    cell = Cell((summary_of(0, 0.5), summary_of(1, 0.5)))
    found = {(label, "demo", "paper"): cell for label in ("near", "far", "unpublished")}
    found |= {("near", "demo", "strict"): Cell((summary_of(0, 0.5),))}
    (state,) = papers_state._of("t", made, found)
    assert (state.rows, state.run, state.strict, state.seeds) == (4, 3, 1, (1, 2))
    assert dict(zip(papers_state.HEADINGS, state.texts(), strict=True)) == {
        "table": "t", "data": "demo", "rows run": "3 of 4", "strict": "1", "seeds": "1–2",
        "reproduced": "1", "above": "1", "below": "", "mixed": "", "nothing to compare": "1",
    }  # fmt: skip
    assert papers_state._of("t", made, {}) == []


@pytest.mark.parametrize(
    ("words", "one"),
    [
        ([], ""),
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "above"], "above"),
        (["below", "reproduced"], "below"),
        (["below", "above"], "mixed"),
        (["between", "reproduced"], "mixed"),
    ],
)
def test_a_row_has_one_word(words, one):
    assert papers_state._word(words) == one


def test_other_rounds_have_a_line_of_their_own(tmp_path):
    for name in ("t.json", "t-rounds-30.json", "t-rounds-5.json", "t-rounds-0.json", "t-80-passes.json", "table.json"):
        (tmp_path / name).touch()
    for name in ("t-rounds-30", "t-rounds-7", "t-rounds-x"):
        (tmp_path / name).mkdir()
    found = [(rounds, place.name) for rounds, place in papers_state.places(tmp_path, "t")]
    assert found == [
        (None, "t.json"), (5, "t-rounds-5.json"), (7, "t-rounds-7"), (30, "t-rounds-30.json")
    ]  # fmt: skip
