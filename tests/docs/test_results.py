"""Results that are kept, and what pages say of them."""

import importlib.util
import shutil

from documents import ROOT

from tacit.figures import leaderboard_page


def test_pages_of_tables_are_those_of_the_kept_runs():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "tools/tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    pages = tables.pages()
    assert len(pages) == 6
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: python tools/tables.py writes it again"
    assert "| pfedclr-table1 | filmtrust | 10 of 10 |" in pages[tables.INDEX]


def test_the_leaderboard_is_that_of_the_figures_beside_it(tmp_path):
    kept, page = ROOT / "docs/results", tmp_path / "leaderboard.md"
    shutil.copy(kept / "leaderboard.json", tmp_path)
    leaderboard_page.update([], page)
    for name in ("leaderboard.md", "leaderboard.svg"):
        there, here = ((place / name).read_text(encoding="utf-8") for place in (kept, tmp_path))
        assert there == here, f"tacit leaderboard --out docs/results/leaderboard.md draws {name} again"
