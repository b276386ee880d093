"""Run folders as they lie on the disk: read without torch, cheap to read again, live state included."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from tacit.errors import UserError

State = Literal["finished", "running", "stopped"]
DEEP = 5  # folders below the one that is named, at most
Stamp = tuple[int, int]  # time of change and size


@dataclass(frozen=True)
class Record:
    """One run: what was asked for, what came out, and whether somebody is at work on it."""

    path: Path
    run: dict[str, Any]
    summary: dict[str, Any] | None
    holder: int | None = None  # the process that writes to it

    @property
    def config(self) -> dict[str, Any]:
        """What was asked for."""
        return dict(self.run.get("config", {}))

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.config.get("method", "?"))

    @property
    def state(self) -> State:
        """Whether it is finished, at work, or was stopped."""
        if self.holder is not None:
            return "running"
        return "finished" if self.summary else "stopped"

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """A line a round; of one that is being written what is whole."""
        return rounds_of(self.path)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of another file of the run, none where it has none."""
        return _lines(self.path / name)

    def metric(self, name: str, sampled: bool = False) -> float | None:
        """A test metric; `sampled` reads the ranking among 99 others beside a full one."""
        found = (self.summary or {}).get("test_sampled99" if sampled else "test") or {}
        return found.get(name)


def rounds_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of rounds.jsonl, parsed once for as long as the file stays what it is."""
    return list(_parsed_lines(path / "rounds.jsonl", _stamp(path / "rounds.jsonl")))


def find(roots: Iterable[Path]) -> list[Record]:
    """Every run in these folders and below them; a name that is not a folder is an error."""
    held = holders()
    out: dict[Path, Record] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root} is not a folder; name run folders, or a folder that has some in it")
        for path in _folders(root, DEEP):
            if path not in out and (found := read(path, held)) is not None:
                out[path] = found
    return list(out.values())


def read(path: Path, held: dict[str, int] | None = None) -> Record | None:
    """The run in a folder; None where there is none that can be read."""
    run = _object(path / "run.json")
    if not isinstance(run.get("config"), dict):
        return None
    held = holders() if held is None else held
    holder = held.get(_inode(path / ".lock"))
    return Record(path, run, _object(path / "summary.json") or None, holder)


def named(paths: Iterable[Path]) -> list[Record]:
    """The runs that a report is asked for; nothing found is an error."""
    found = find(paths)
    if not found:
        raise UserError("there are no runs in these folders; tacit run --out DIR makes one")
    return found


def holders() -> dict[str, int]:
    """Lock file -> process, from the system's list of locks: to try a lock could get in the way of its owner."""
    out: dict[str, int] = {}
    try:
        with Path("/proc/locks").open(encoding="ascii") as file:
            for line in file:
                words = line.split()
                if len(words) > 5 and words[1] == "FLOCK":
                    out[words[5]] = int(words[4])
    except (OSError, ValueError):
        pass
    return out


def _inode(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_dev >> 8 & 0xFFF:02x}:{found.st_dev & 0xFF | found.st_dev >> 12 & 0xFFF00:02x}:{found.st_ino}"


def _folders(root: Path, deep: int) -> Iterator[Path]:
    """Folders with a run.json; what a run keeps inside is not looked through."""
    if (root / "run.json").is_file():
        yield root
        return
    if not deep:
        return
    try:
        with os.scandir(root) as entries:
            below = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return
    for name in below:
        yield from _folders(root / name, deep - 1)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return (0, -1)
    return found.st_mtime_ns, found.st_size


def _object(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is none."""
    stamp = _stamp(path)
    return dict(_parsed(path, stamp)) if stamp[1] >= 0 else {}


@lru_cache(maxsize=8192)
def _parsed(path: Path, stamp: Stamp) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


@lru_cache(maxsize=256)
def _parsed_lines(path: Path, stamp: Stamp) -> tuple[dict[str, Any], ...]:
    return tuple(_lines(path))


def _lines(path: Path) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return out
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            break  # cut short by a kill, or being written
        if isinstance(value, dict):
            out.append(value)
    return out
