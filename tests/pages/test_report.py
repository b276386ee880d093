import json
import shutil

import pytest

from tacit.figures import records, report

from .conftest import tacit

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: make browser installs it")
expect = playwright.expect


def opened(tab, page):
    tab.page.context.set_offline(True)
    tab.page.goto(page.as_uri())
    expect(tab.page.locator("figure svg.drawing").first).to_be_visible()
    return tab.page


def contents(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(text.split('<script id="contents" type="application/json">')[1].split("</script>")[0])


def test_a_report_opens_from_disk_without_network_and_draws_all_its_figures(tab, home, tmp_path):
    out = tmp_path / "report.html"
    tacit("report", home / "runs", "--out", out, cache=home / "cache")
    page = opened(tab, out)
    shown = contents(out)
    expect(page.locator("figure svg.drawing")).to_have_count(len(shown["figures"]))
    assert [one.get_attribute("data-figure") for one in page.locator("figure").all()] == [
        f["name"] for f in shown["figures"]
    ]
    expect(page.locator("section.table")).to_have_count(len(shown["tables"]))
    assert [r.url for r in tab.requests if not r.url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.complaints == []
    assert "tacit run tally --data demo --protocol strict --seed 1" in page.content()


def test_a_figure_is_saved_as_svg_and_png(tab, home, tmp_path):
    out = tmp_path / "report.html"
    report.write(report.contents(records.find([home / "runs"])), out)
    page = opened(tab, out)
    for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save figure as {kind}").first.click()
        content = saved.value.path().read_bytes()
        assert content.startswith(begins)
        assert len(content) > 3000
        assert b"var(--" not in content
    assert saved.value.suggested_filename.endswith(".png")


def test_a_changed_summary_changes_the_picture(tab, home, tmp_path):
    drawn = []
    runs = tmp_path / "runs"
    shutil.copytree(home / "runs", runs)
    for number, score in enumerate((None, 0.5, None)):
        path = runs / "tally-0" / "summary.json"
        summary = json.loads((home / "runs" / "tally-0" / "summary.json").read_text())
        if score is not None:
            summary["test"]["NDCG@10"] = score
        path.write_text(json.dumps(summary))
        out = tmp_path / f"{number}.html"
        report.write(report.contents(records.find([runs])), out)
        drawn.append(opened(tab, out).locator("[data-figure^=traffic] svg.drawing").inner_html())
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]
