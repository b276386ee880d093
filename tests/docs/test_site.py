"""The site builds without a warning, without a broken link, and asks no other host for anything."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from documents import ROOT

from tacit.methods import known

pytest.importorskip("zensical", reason="pip install 'tacit[docs]'")


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.places, self.text = set(), set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.places |= {has[key] for key in ("id", "name") if has.get(key)}
        if tag == "a" and has.get("href"):
            self.links.add(has["href"])
        elif tag == "link" and has.get("rel") not in ("canonical", "prev", "next"):
            self.loads.add(has.get("href"))
        elif tag in ("script", "img", "iframe", "source", "use") and (has.get("src") or has.get("href")):
            self.loads.add(has.get("src") or has.get("href"))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", place / "docs")
    shutil.copytree(ROOT / "tools", place / "tools")
    shutil.copy(ROOT / "zensical.toml", place)
    (place / "src").symlink_to(ROOT / "src")
    subprocess.run([sys.executable, "tools/site.py"], cwd=place, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return place / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def target(site, page, address):
    """The file that a link leads to, and the place in it."""
    parts = urlsplit(address)
    path = unquote(parts.path)
    start = site / path.lstrip("/") if path.startswith("/") else page.parent / path
    found = Path(start) if path else page
    return (found / "index.html" if found.is_dir() else found).resolve(), unquote(parts.fragment)


def test_no_link_is_broken(site, pages):
    at = {path.resolve(): page for path, page in pages.items()}
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for address in page.links:
            if urlsplit(address).scheme:
                continue
            file, place = target(site, path, address)
            assert file.exists(), f"{path.relative_to(site)} → {address}"
            if place and not place.startswith("__"):
                assert place in at[file].places, f"{path.relative_to(site)} → {address}"


def test_nothing_is_asked_of_another_host(site, pages):
    for path, page in pages.items():
        for address in page.loads:
            assert not urlsplit(address).netloc, f"{path.relative_to(site)} loads {address}"
            if path.name != "404.html":
                assert target(site, path, address)[0].exists(), f"{path.relative_to(site)} loads {address}"
    assert not any("fonts.googleapis" in path.read_text(encoding="utf-8") for path in pages)


def test_all_pages_of_the_navigation_are_there(site):
    named = re.findall(r'"([\w./-]+)\.md"', (ROOT / "zensical.toml").read_text())
    assert len(named) > 15
    for name in named:
        folder = site / name.removesuffix("index")
        assert (folder / "index.html").is_file(), name


def test_the_picture_has_every_room(site, pages):
    text = " ".join(pages[site / "how-it-works" / "index.html"].text)
    rooms = [path.name for path in (ROOT / "src" / "tacit").iterdir() if (path / "__init__.py").is_file()]
    drawing = text[text.index("The rooms:") : text.index("A round:")]
    for room in rooms:
        assert re.search(rf"\b{room}\b", drawing), room


def test_the_papers_page_names_every_method(pages, site):
    text = " ".join(pages[site / "papers" / "index.html"].text).lower()
    ours = {"tally", "tally-private", "fedcia-gfcf", "localmf", "popularity", "oracle"}  # or forms of others
    for name, cls in known().items():
        assert name in text or cls.pooled or name in ours, name
