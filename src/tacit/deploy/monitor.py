"""How a server is seen from outside: a file in the run's folder, and pages for health, metrics and status.

The pages are plain HTTP, on this machine only unless asked for otherwise: /health, /metrics for Prometheus, /status.
They hold names, counts and reasons; no key, no id of a user, no value of a model.
"""

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tacit.deploy.board import Board
from tacit.errors import UserError
from tacit.runs.wording import size

log = logging.getLogger("tacit.server")

FILE = "status.json"
PORT = 8478
EVERY = 2.0  # seconds
STALE = 15.0  # seconds after which a file is that of a server which has ended
_COUNTS = ("users", "bytes_up", "bytes_down", "refused", "silent", "failed")


class Monitor:
    """Keeps the board, the file and the pages up to date while the rounds run in another thread."""

    def __init__(
        self, board: Board, folder: Path, there: Callable[[], Mapping[int, str | None]], host: str, port: int
    ) -> None:
        """Without a port there are no pages."""
        self.board, self.path, self.there = board, folder / FILE, there
        self._end = threading.Event()
        self._pages: ThreadingHTTPServer | None = None
        if port:
            try:
                self._pages = ThreadingHTTPServer((host, port), _handler(board))
            except (OSError, OverflowError) as error:
                log.warning("no status pages on %s:%d (%s); --status-port names another", host, port, error)
        with suppress(OSError, ValueError, TypeError):
            board.take(json.loads(self.path.read_bytes()))

    def __enter__(self) -> "Monitor":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        if self._pages is not None:
            threading.Thread(target=self._pages.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(EVERY)
        if self._pages is not None:
            self._pages.shutdown()
            self._pages.server_close()
        if self.board.state != "finished":
            self.board.state = "stopped"
        self._write()

    def _watch(self) -> None:
        while not self._end.is_set():
            try:
                self.board.look(self.there())
            except Exception as error:  # whatever it is, the rounds go on
                log.warning("the nodes cannot be inspected: %s", error)
            self._write()
            self._end.wait(EVERY)

    def _write(self) -> None:
        """Replace the file at once. What it says is past in a moment: nothing waits for the disk, full or not."""
        fresh = self.path.with_name(FILE + ".new")
        with suppress(OSError):
            fresh.write_text(json.dumps(self.board.shown(), ensure_ascii=False))
            fresh.replace(self.path)


def _handler(board: Board) -> type[BaseHTTPRequestHandler]:
    class Pages(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            shown = board.shown()
            health = {key: shown[key] for key in ("state", "round", "rounds", "quorum")}
            pages = {
                "/health": ("application/json", json.dumps({"ok": True, **health})),
                "/metrics": ("text/plain; version=0.0.4", metrics(shown)),
                "/status": ("application/json", json.dumps(shown)),
            }
            kind, text = pages.get(self.path, ("text/plain", "there are /health, /metrics and /status\n"))
            body = text.encode()
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Pages


def metrics(shown: Mapping[str, Any]) -> str:
    """The board as Prometheus reads it."""
    lines: list[str] = []

    def value(name: str, kind: str, about: str, found: Mapping[str, float]) -> None:
        lines.extend([f"# HELP tacit_{name} {about}", f"# TYPE tacit_{name} {kind}"])
        lines.extend(f"tacit_{name}{labels} {number:g}" for labels, number in found.items())

    value("round", "gauge", "Rounds that are finished.", {"": shown["round"]})
    value("rounds", "gauge", "Rounds of the run.", {"": shown["rounds"]})
    value("quorum", "gauge", "Whether enough nodes are there for a round.", {"": float(shown["quorum"])})
    value("rejected_total", "counter", "Requests without a known key.", {"": sum(shown["rejected"].values())})
    if (days := shown["certificate_days"]) is not None:
        value("certificate_days", "gauge", "Days until the first certificate ends.", {"": days})
    nodes = {f'{{node="{_quoted(name)}"}}': one for name, one in shown["nodes"].items()}
    value("node_up", "gauge", "Whether a node is there.", {label: float(one["up"]) for label, one in nodes.items()})
    seen = {label: one["last_seen"] for label, one in nodes.items()}
    lines.extend(["# HELP tacit_node_last_seen_seconds When, since 1970.", "# TYPE tacit_node_last_seen_seconds gauge"])
    lines.extend(f"tacit_node_last_seen_seconds{label} {at:.0f}" for label, at in seen.items())
    for key in _COUNTS:
        kind, name = ("gauge", "users") if key == "users" else ("counter", f"{key}_total")
        lines.extend([f"# HELP tacit_node_{name} {key.replace('_', ' ')}.", f"# TYPE tacit_node_{name} {kind}"])
        lines.extend(f"tacit_node_{name}{label} {int(one[key])}" for label, one in nodes.items())
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def status(target: str) -> dict[str, Any]:
    """What a server shows, from its run's folder on this machine or from its pages."""
    folder = Path(target)
    if folder.is_dir():
        try:
            shown = json.loads((folder / FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(
                f"{folder} has no {FILE}: no server has run there; name a run's folder or host:port"
            ) from error
        if shown["state"] not in ("finished", "stopped") and time.time() - shown["written"] > STALE:
            shown["state"] = "stopped"  # killed: nothing was written at its end
        if shown["state"] in ("finished", "stopped"):
            for one in shown["nodes"].values():
                one["up"] = False
        return dict(shown)
    host, _, port = target.rpartition(":") if target.rpartition(":")[2].isdigit() else (target, "", str(PORT))
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/status", timeout=10) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{target} is not a run folder, and there are no status pages at {host}:{port} ({reason})"
        ) from error


def table(shown: Mapping[str, Any]) -> list[list[str]]:
    """One line per node: name, state, last seen, users, bytes, and what went wrong."""
    return [
        [
            name,
            ("up" if one["up"] else "down") + ("" if one["member"] else ", not in the run"),
            f"{max(0.0, time.time() - one['last_seen']):.0f} s ago" if one["last_seen"] else "never",
            f"{one['users']:,}",
            size(one["bytes_up"]),
            size(one["bytes_down"]),
            f"{one['refused']} / {one['silent']} / {one['failed']}",
            one["reason"],
        ]
        for name, one in sorted(shown["nodes"].items())
    ]
