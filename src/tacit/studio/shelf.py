"""The runs that a studio shows: found by name, described for a page, started, stopped and resumed."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.errors import UserError, unknown
from tacit.figures.build import main_metric
from tacit.figures.command import repeating
from tacit.figures.inside import of_run
from tacit.figures.records import Record, find, holders, read
from tacit.figures.tables import columns

PATIENCE = 20.0  # seconds until a started run has its folder, at most


class Shelf:
    """Run folders below a few roots. A name is the path below its root, and nothing else is ever opened."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve() for root in roots]
        self.places: dict[str, Path] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def records(self) -> dict[str, Record]:
        """Every run by its name."""
        found = {self._name(record.path): record for record in find([r for r in self.roots if r.is_dir()])}
        self.places = {name: record.path for name, record in found.items()}
        return found

    def record(self, name: str) -> Record:
        """One run by its name."""
        if name not in self.places:
            self.records()
        found = read(self.places[name], holders()) if name in self.places else None
        if found is None:
            raise unknown("run", name, list(self.places)[:5])
        return found

    def chosen(self, names: Sequence[str]) -> list[Record]:
        """Some runs, in the order of their names."""
        return [self.record(name) for name in sorted(set(names))]

    def nodes(self) -> dict[str, Path]:
        """Folders of nodes, which have people and no record of rounds."""
        out = {}
        for root in self.roots:
            for path in (root, *(sorted(root.iterdir()) if root.is_dir() else ())):
                if (path / "node.json").is_file():
                    out[self._name(path)] = path
        return out

    def listing(self) -> list[dict[str, Any]]:
        """A line a run, the newest first."""
        lines = [line(name, record) for name, record in self.records().items()]
        return sorted(lines, key=lambda one: (one["state"] == "running", one["started"]), reverse=True)

    def start(self, words: Sequence[str], folder: str = "") -> str:
        """`tacit run …` as a process of its own; gives the run's name once its folder is there."""
        root = self.roots[0]
        path = root / folder if folder else _free(root, words)
        if not path.resolve().is_relative_to(root):
            raise UserError(f"'{folder}' is outside {root}; name a folder inside")
        if path.exists():
            raise UserError(f"{path} already exists; name another folder")
        self._spawn(["run", *words, "--out", str(path), "--no-sanity"], path)
        return self._name(path)

    def resume(self, name: str) -> str:
        """`tacit resume …` likewise."""
        record = self.record(name)
        if record.state != "stopped":
            raise UserError(f"{name} is {record.state}; there is nothing to resume")
        self._spawn(["resume", str(record.path), "--no-sanity"], record.path)
        return name

    def stop(self, name: str) -> None:
        """Ctrl-C for the process that writes to a run: what it has finished is saved."""
        holder = self.record(name).holder
        if holder is None or not _is_ours(holder):
            raise UserError(f"no run of yours is at work on {name}; there is nothing to stop")
        os.kill(holder, signal.SIGINT)

    def still_running(self) -> int:
        """How many runs that were started here go on."""
        return sum(process.poll() is None for process in self._started)

    def _spawn(self, words: list[str], path: Path) -> None:
        """Wait until the process holds its run, or says why it does not."""
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "tacit", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # Ctrl-C here is not for the runs
            )
            with self._lock:
                self._started.append(process)
            until = time.monotonic() + PATIENCE
            while process.poll() is None and time.monotonic() < until:
                found = read(path)
                if found is not None and found.holder is not None:
                    return
                time.sleep(0.1)
            if process.poll():
                said.seek(0)
                sentence = said.read().decode(errors="replace").strip().splitlines()
                raise UserError(sentence[-1].removeprefix("tacit: ") if sentence else "the run ended without a message")

    def _name(self, path: Path) -> str:
        for number, root in enumerate(self.roots):
            if path == root or path.is_relative_to(root):
                below = path.relative_to(root).as_posix()
                here = root.name if below == "." else below
                return here if not number else f"{number}:{here}"
        return path.name


def _is_ours(process: int) -> bool:
    """Whether a process is tacit's: nothing else is ever sent a signal."""
    try:
        return b"tacit" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _free(root: Path, words: Sequence[str]) -> Path:
    options = dict(zip(words[1::2], words[2::2], strict=False))
    base = "-".join(
        [words[0].replace(":", "."), *(options.get(k, d) for k, d in (("--data", "ml-100k"), ("--protocol", "strict")))]
    )
    base = f"{base}-s{options.get('--seed', '0')}"
    number = 1
    while (path := root / (base if number == 1 else f"{base}-{number}")).exists():
        number += 1
    return path


def line(name: str, record: Record) -> dict[str, Any]:
    """A run in the list."""
    asked, protocol = record.config, str(record.config.get("protocol"))
    metric = main_metric(protocol)
    done = record.summary
    rounds = int(done["rounds"]) if done else len(record.rounds)
    return {
        "id": name,
        "method": record.method,
        "data": asked.get("data"),
        "protocol": protocol,
        "seed": asked.get("seed"),
        "state": record.state,
        "round": rounds,
        "planned": planned(record),
        "metric": metric,
        "value": record.metric(metric) if done else None,
        "valid": None if done else _best_valid(record)[1],
        "epsilon": done.get("epsilon") if done else None,
        "seconds": done.get("seconds") if done else sum(r["seconds"] for r in record.rounds),
        "started": str(record.run.get("started", "")),
        "people": bool(done) and (record.path / "checkpoints" / "index.json").is_file(),
        "forgets": record.method == "tally" and bool(done),
    }


def planned(record: Record) -> int | None:
    """How many rounds a run will have; None where only its method knows."""
    rounds: int | None = record.config.get("rounds") or record.run.get("settings", {}).get("rounds")
    return rounds


def view(name: str, record: Record) -> dict[str, Any]:
    """Everything that the page of a run shows."""
    rounds, total = record.rounds, planned(record)
    best_round, best = _best_valid(record)
    last = [r["seconds"] for r in rounds[-10:]]
    left = None
    if record.state == "running" and total and last:
        left = sum(last) / len(last) * max(total - len(rounds), 0)
    done = record.summary or {}
    return line(name, record) | {
        "select": record.config.get("select", "NDCG@10"),
        "best_round": done.get("best_round", best_round),
        "best_valid": best,
        "left": left,
        "bytes_up": sum(r.get("bytes_up", 0) for r in rounds),
        "bytes_down": sum(r.get("bytes_down", 0) for r in rounds),
        "clients": done.get("clients") or max((r.get("clients", 0) for r in rounds), default=0),
        "epsilon": rounds[-1].get("epsilon") if rounds else None,
        "test": [
            {"metric": m, "kind": "1 of 100" if sampled else "", "value": record.metric(m, sampled)}
            for m, sampled in columns(str(record.config.get("protocol")))
        ],
        "figures": of_run(record),
        "command": repeating(record.run),
        "settings": record.run.get("settings", {}),
        "versions": record.run.get("versions", {}),
        "folder": str(record.path),
    }


def _best_valid(record: Record) -> tuple[int, float | None]:
    select = record.config.get("select", "NDCG@10")
    found = [(r["valid"][select], -r["round"]) for r in record.rounds if r.get("valid") and select in r["valid"]]
    value, place = max(found, default=(None, 0))
    return -place, value
