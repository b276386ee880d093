"""A real browser and real processes. Without a browser these tests are skipped: `make browser` installs one."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: make browser installs it")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no browser on this machine: make browser installs one")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


class Watched:
    """A tab that remembers every request and every complaint."""

    def __init__(self, context):
        self.page = context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)

    def foreign(self, base):
        """Addresses that were asked for and are not the studio's own."""
        return [r.url for r in self.requests if not r.url.startswith((base, "data:", "blob:"))]


@pytest.fixture
def tab(chromium):
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    context.set_default_timeout(30_000)
    yield Watched(context)
    context.close()


def environment(cache):
    return os.environ | {"TACIT_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def tacit(*words, cache, **more):
    """A command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tacit", *map(str, words)],
        env=environment(cache),
        capture_output=True,
        text=True,
        check=True,
        **more,
    )


@contextmanager
def going(*words, cache, **more):
    """A command while it runs; Ctrl-C at the end, if it has not had it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", *map(str, words)],
        env=environment(cache),
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.stdout.close()


def address(process):
    """What a server prints first: (address, token)."""
    line = process.stdout.readline()
    found = re.search(r"(http://[^/]+)/(?:#token=(\S+))?", line)
    assert found, line
    return found[1], found[2]


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Finished runs on the demo; copied by tests that change them."""
    import tacit as library

    place = tmp_path_factory.mktemp("home")
    for method, seed in (("tally", 0), ("tally", 1), ("ease", 0)):
        both = {"blend": [0.5]} if method == "tally" else {}  # both parts of its score
        library.run(method, data="demo", seed=seed, threads=1, settings=both, out=place / "runs" / f"{method}-{seed}")
    return place


@pytest.fixture
def studio(home, tmp_path):
    """(base, token, folder of runs, process) of a studio on copies of these runs."""
    runs = tmp_path / "runs"
    shutil.copytree(home / "runs", runs)
    with going("studio", runs, "--port", 0, "--experiments", tmp_path / "none", cache=home / "cache") as process:
        base, token = address(process)
        yield base, token, runs, process
