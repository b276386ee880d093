"""Results that are kept, and what pages say of them."""

import importlib.util

from documents import ROOT


def test_pages_of_tables_are_those_of_the_kept_runs():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "tools/tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    pages = tables.pages()
    assert len(pages) == 6
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: python tools/tables.py writes it again"
    assert "| pfedclr-table1 | filmtrust | 10 of 10 |" in pages[tables.INDEX]
