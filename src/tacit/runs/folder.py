"""The files of a run. A kill at any moment loses at most the round in progress.

run.json             what was asked for: configuration, settings, versions, data fingerprint
rounds.jsonl         a line a round
checkpoints/         round-N/server.safetensors and clients.safetensors; index.json names the last and the best
summary.json         the result, once the run is finished
"""

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tacit.core.payload import State
from tacit.core.rounds import Progress, RoundRecord
from tacit.errors import UserError


class RunFolder:
    """Reads and writes one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, run: dict[str, Any]) -> "RunFolder":
        """A new run; refuses a folder that has anything in it."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = f"tacit resume {path} goes on with it" if (path / "run.json").exists() else "name another"
            raise UserError(f"{path} is not an empty folder; {hint}")
        folder = cls(path)
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            write_json(path / "run.json", run)
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}; name another --out") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        if not (path / "run.json").is_file():
            raise UserError(f"{path} is not a run folder: it has no run.json; tacit run --out DIR makes one")
        return cls(path)

    @property
    def run(self) -> dict[str, Any]:
        """run.json."""
        run = self._json("run.json")
        if lost := [key for key in ("config", "settings", "fingerprint") if key not in run]:
            raise UserError(f"{self.path} is not a run folder: its run.json has no {' and no '.join(lost)}")
        return run

    @property
    def summary(self) -> dict[str, Any] | None:
        """summary.json, or None while the run is not finished."""
        return self._json("summary.json") if (self.path / "summary.json").exists() else None

    @property
    def last_round(self) -> int:
        """The round of the last checkpoint, 0 before the first."""
        return int(self._index().get("round", 0))

    @property
    def best_round(self) -> int:
        """The round of the best checkpoint, 0 before the first."""
        return int(self._index().get("best_round", 0))

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the result."""
        write_json(self.path / "summary.json", summary)

    def save(self, progress: Progress, clients: State, improved: bool, spent: dict[str, float]) -> None:
        """Checkpoint a finished round: new files first, then the index that makes them count."""
        index = self._index()
        where = self._write(f"round-{progress.round:06d}", progress.server, clients)
        best = where.name if improved or not progress.best_round else index["best"]
        state = {
            "last": where.name,
            "best": best,
            "round": progress.round,
            "best_round": progress.best_round,
            "best_value": progress.best if progress.best_round else None,
            "spent": spent,
        }
        self._count(state)

    def revise(self, server: State, clients: State) -> None:
        """Put a new state in the best round's place: what a finished run knows has changed."""
        index = self._index()
        number = index.get("revision", 0) + 1
        where = self._write(f"revision-{number:06d}", server, clients)
        self._count(index | {"last": where.name, "best": where.name, "revision": number})

    def _write(self, name: str, server: State, clients: State) -> Path:
        where = self.checkpoints / name
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir()
        save_file(_apart(server), where / "server.safetensors")
        save_file(_apart(clients), where / "clients.safetensors")
        return where

    def _count(self, index: dict[str, Any]) -> None:
        """Make an index the one that counts, and remove what it does not name."""
        write_json(self.checkpoints / "index.json", index)
        for old in [*self.checkpoints.glob("round-*"), *self.checkpoints.glob("revision-*")]:
            if old.name not in (index["last"], index["best"]):
                shutil.rmtree(old)

    def drop_checkpoints(self) -> None:
        """Keep the figures of a finished run alone."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def log(self, record: RoundRecord) -> None:
        """Append a line to rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(to_json(dataclasses.asdict(record)) + "\n")

    def load(self, which: str) -> tuple[State, State] | None:
        """(server, clients) of the `last` or the `best` checkpoint; None before the first."""
        index = self._index()
        if not index:
            return None
        where = self.checkpoints / index[which]
        return load_file(where / "server.safetensors"), load_file(where / "clients.safetensors")

    def progress(self, server: State) -> tuple[Progress, dict[str, float]]:
        """Where the run stands, and what it has spent so far; lines behind the last checkpoint are cut off."""
        index = self._index()
        lines = self.rounds()[: index.get("round", 0)]
        text = "".join(to_json(line) + "\n" for line in lines)
        write_text(self.path / "rounds.jsonl", text)
        if not index:
            return Progress(server), {}
        history = [RoundRecord(**line) for line in lines]
        best = -math.inf if index["best_value"] is None else index["best_value"]
        return Progress(server, index["round"], index["best_round"], best, history), index["spent"]

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl; a line cut short by a kill is left out."""
        path = self.path / "rounds.jsonl"
        out = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                out.append(from_json(line))
            except json.JSONDecodeError:
                break
        return out

    def _index(self) -> dict[str, Any]:
        return self._json("checkpoints/index.json") if (self.checkpoints / "index.json").exists() else {}

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = from_json((self.path / name).read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise UserError(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise UserError(f"{self.path / name} is not what tacit writes there")
        return value


def _apart(state: State) -> State:
    """Contiguous, and no memory under two names: safetensors refuses both."""
    out: State = {}
    seen: set[int] = set()
    for name, value in state.items():
        whole = value.contiguous()
        if whole.numel() and whole.untyped_storage().data_ptr() in seen:
            whole = whole.clone()
        seen.add(whole.untyped_storage().data_ptr())
        out[name] = whole
    return out


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON as the standard has it: an infinite ε is the text "inf"."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False)


def from_json(text: str) -> Any:
    """The same, read: an ε of "inf" is infinite again."""
    return json.loads(text, object_hook=lambda d: {k: math.inf if _endless(k, v) else v for k, v in d.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "inf" if k.startswith("epsilon") and v == math.inf else _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _endless(key: str, value: Any) -> bool:
    return key.startswith("epsilon") and value == "inf"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file at once: a reader sees the old or the new, never a half."""
    write_text(path, to_json(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
