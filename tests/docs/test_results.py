"""Results that are kept, and what pages say of them."""

from documents import ROOT

from tacit.runs import papers_state


def test_the_list_of_published_tables_is_that_of_the_kept_runs():
    found, damaged = papers_state.states(ROOT / "docs/results/data")
    assert not damaged
    page = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    assert papers_state.markdown(found) in page, "tacit results --out docs/results/data --markdown prints it again"
