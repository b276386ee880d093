import json
import re
import signal
import time

import httpx
import pytest

from .conftest import going, tacit

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: make browser installs it")
expect = playwright.expect

PAGES = ["runs", "compare", "papers", "people", "try", "privacy", "federation", "run/tally-0"]


def opened(tab, studio, place="runs"):
    base, token, *_ = studio
    tab.page.goto(f"{base}/#token={token}")
    expect(tab.page.locator("[data-page=runs] h1")).to_be_visible()
    tab.page.goto(f"{base}/#/{place}")
    return tab.page


def test_a_run_is_watched_live_to_its_end(tab, studio, home):
    _, _, runs, _ = studio
    page = opened(tab, studio)
    words = ("run", "fedmf", "--data", "demo", "--rounds", 200, "--no-sanity", "--threads", 1, "--out", runs / "live")
    with going(*words, cache=home / "cache") as process:
        rounds = runs / "live" / "rounds.jsonl"
        while process.poll() is None and not (rounds.exists() and rounds.read_text().count("\n") > 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)  # however fast the machine is, the run is seen before its end
        row = page.locator("[data-run=live]")
        expect(row.locator(".state")).to_have_text("running", timeout=60_000)
        row.get_by_role("link").click()
        expect(page.locator("[data-state=running]")).to_be_visible()
        expect(page.locator("[data-figure=learning-curves] svg.drawing")).to_be_visible(timeout=60_000)
        first = page.locator("[data-figure=learning-curves] svg.drawing").inner_html()
        process.send_signal(signal.SIGCONT)
        expect(page.locator("[data-state=finished]")).to_be_visible(timeout=120_000)
        process.wait(60)
    summary = json.loads((runs / "live" / "summary.json").read_text())
    expect(page.locator("[data-tile='NDCG@10']")).to_have_text(f"{summary['test']['NDCG@10']:.4f}")
    expect(page.locator("[data-tile='round']")).to_have_text("200 of 200")
    best = f"{summary['valid']['NDCG@10']:.4f} round {summary['best_round']}"
    expect(page.locator("[data-tile='best validation NDCG@10']")).to_have_text(best)
    assert page.locator("[data-figure=learning-curves] svg.drawing").inner_html() != first
    assert tab.complaints == []


def test_two_runs_are_compared_and_copied(tab, studio):
    base, _, runs, _ = studio
    page = opened(tab, studio)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=base)
    for name in ("tally-0", "tally-1", "ease-0"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare 3 runs").click()
    table = page.locator("section.table").first
    expect(table.locator("tbody tr")).to_have_count(2)
    found = [json.loads((runs / f"tally-{s}" / "summary.json").read_text())["test"]["HR@10"] for s in (0, 1)]
    expect(table.locator("tbody tr").filter(has_text="tally").locator("td").first).to_contain_text(
        f"{sum(found) / 2:.4f}"
    )
    table.get_by_role("button", name="Markdown").click()
    expect(table.get_by_role("button", name="copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("| method | HR@10 (all items) |")
    assert f"**{sum(found) / 2:.4f} ±" in copied or f"| {sum(found) / 2:.4f} ±" in copied
    expect(page.locator("figure svg.drawing").first).to_be_visible()
    assert tab.complaints == []


def test_a_list_its_reasons_and_forgetting(tab, studio, home):
    _, _, runs, _ = studio
    said = tacit("recommend", runs / "tally-0", "--user", "17", "--held-out", "--json", cache=home / "cache")
    expected = json.loads(said.stdout.splitlines()[-1])
    page = opened(tab, studio, "people/tally-0?user=17")
    lines = page.locator("ol.recs li")
    expect(lines).to_have_count(10, timeout=60_000)
    assert [line.get_attribute("data-item") for line in lines.all()] == [line["item"] for line in expected]
    expect(lines.first.locator(".why b").first).to_be_visible()
    shares = [float(x) for x in re.findall(r"\+(\d+\.\d+)", lines.first.locator(".why").inner_text())]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0
    page.get_by_role("button", name="Forget this user…").click()
    page.get_by_role("button", name="Forget", exact=True).click()
    done = page.locator("[data-forgotten='17']")
    expect(done).to_contain_text("it was forgotten")
    expect(page.locator("ol.recs")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("alert").first).to_contain_text("knows nothing of user '17'")
    assert json.loads((runs / "tally-0" / "checkpoints" / "index.json").read_text())["revision"] == 1


def test_what_is_picked_never_leaves_the_page(tab, studio, home):
    base, _, runs, _ = studio
    page = opened(tab, studio, "try/tally-0")
    find = page.get_by_placeholder("Find a title…")
    expect(find).to_be_visible(timeout=60_000)
    before = len(tab.requests)
    for title in ("Haunted Cellar", "Cursed Mirror", "Tender Kiss"):
        find.fill(title)
        page.locator("ul.tall button").first.click()
    lines = page.locator("ol.recs li")
    expect(lines).to_have_count(10)
    expect(page.locator("[data-requests]")).to_have_text("no request")
    assert tab.requests[before:] == []
    assert all(r.method == "GET" and not r.post_data for r in tab.requests)
    paths = {r.url.removeprefix(base).split("?")[0] for r in tab.requests}
    assert {p for p in paths if not p.startswith("/static/")} <= {
        "/", "/api/runs", "/api/live/runs", "/api/try/tally-0", "/api/model/tally-0",
    }  # fmt: skip
    from tacit.methods import tally_small
    from tacit.runs.model import load

    model = load(runs / "tally-0")
    picked = [chip.inner_text().removesuffix(" ×") for chip in page.locator(".picked .chip").all()]
    blob = httpx.get(f"{base}/api/model/tally-0").content
    small, had = tally_small.decode(blob), [model.item_index(title) for title in picked]
    expected = small.rank(had, 10)
    shown = [line.locator(".score").inner_text() for line in lines.all()]
    assert shown == [f"{small.scores(had)[i]:.3f}" for i in expected]
    assert [line.get_attribute("data-item") for line in lines.all()] == [str(model.data.item_ids[i]) for i in expected]


def test_no_page_asks_another_host_or_complains(tab, studio):
    base, *_ = studio
    page = opened(tab, studio)
    for place in PAGES:
        page.goto(f"{base}/#/{place}")
        expect(page.locator(f"[data-page='{place.split('/')[0]}'] h1").first).to_be_visible(timeout=60_000)
        expect(page.locator(".error")).to_have_count(0)
    assert tab.foreign(base) == []
    assert tab.complaints == []
    policy = httpx.get(base).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy


def test_no_page_is_wider_than_a_narrow_screen(tab, studio):
    base, *_ = studio
    page = opened(tab, studio)
    page.set_viewport_size({"width": 360, "height": 700})
    for place in [*PAGES, "compare?run=tally-0&run=ease-0", "people/tally-0?user=3"]:
        page.goto(f"{base}/#/{place}")
        expect(page.locator("main h1").first).to_be_visible(timeout=60_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place


@pytest.mark.slow
def test_runs_are_started_stopped_and_resumed_from_the_page(tab, studio):
    _, _, runs, _ = studio
    page = opened(tab, studio)
    page.get_by_role("button", name="New run").click()
    page.get_by_label("method").fill("fedmff")
    page.get_by_label("data").fill("demo")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'fedmf'?", timeout=60_000)
    page.get_by_label("method").fill("fedmf")
    page.get_by_label("rounds").fill("2000")
    page.get_by_label("folder").fill("mine")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("[data-state=running]")).to_be_visible(timeout=60_000)
    expect(page.locator("[data-tile=round]")).to_have_text(re.compile(r"^[1-9]\d* of 2000"), timeout=60_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-state=stopped]")).to_be_visible(timeout=60_000)
    done = json.loads((runs / "mine" / "checkpoints" / "index.json").read_text())["round"]
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("[data-state=running]")).to_be_visible(timeout=60_000)
    further = re.compile(rf"^({'|'.join(str(done + n) for n in range(1, 200))}) of 2000")
    expect(page.locator("[data-tile=round]")).to_have_text(further, timeout=60_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-state=stopped]")).to_be_visible(timeout=60_000)


def test_without_the_token_nothing_changes_and_no_people_are_shown(tab, studio):
    base, *_ = studio
    tab.page.goto(f"{base}/#/people/tally-0?user=17")
    expect(tab.page.locator(".empty")).to_contain_text("the address with the token")
    assert not [r.url for r in tab.requests if "/api/people" in r.url]


def test_ctrl_c_ends_it_within_two_seconds_with_a_tab_open(tab, studio):
    *_, process = studio
    page = opened(tab, studio, "run/tally-0")
    expect(page.locator("[data-state=finished]")).to_be_visible()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert time.monotonic() - began < 2
    assert process.returncode == 0
