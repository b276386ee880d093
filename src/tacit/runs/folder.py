"""A run's folder. `checkpoints/index.json`, replaced at once, alone says what counts: a kill leaves before or after.

run.json             what was asked for: configuration, settings, versions, data fingerprint
data.npz             the data, where they have no name of their own or the run is a model to be used
rounds.jsonl         one line per round
checkpoints/         round-N/server.safetensors and clients.safetensors; index.json names the last and the best.
                     After a user was forgotten or taken in, revision-N with life.json beside them
summary.json         the result, once the run is finished
users.npz            each user's hits in the test, for paired tests over users
.lock                held by the one process that writes; readers need none
"""

import dataclasses
import io
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tacit.core.payload import State
from tacit.core.rounds import Progress, RoundRecord
from tacit.data import kept
from tacit.data.interactions import Interactions
from tacit.errors import UserError
from tacit.evaluation.protocol import Result
from tacit.runs.compact import compacted, restored
from tacit.runs.files import (
    append,
    from_json,
    read_tensors,
    released,
    sync,
    taken,
    to_json,
    write_bytes,
    write_json,
    write_tensors,
    write_text,
    writing,
)

LOCK, HITS = ".lock", "users.npz"
BEGUN = {LOCK, kept.FILE, f"{kept.FILE}.new", "run.json.new"}  # all that a run killed while it was made can leave


class RunFolder:
    """Reads and writes one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, run: dict[str, Any], data: Interactions | None = None) -> "RunFolder":
        """A new run, locked, with its data where they are to be kept; refuses a folder that has anything in it."""
        folder = cls(path)
        folder._refuse_full()
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            folder._refuse_full()  # another process may have been faster
            if data is not None:
                folder.keep(data)
            write_json(path / "run.json", run)
            folder.checkpoints.mkdir()
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}; name another --out") from error
        return folder

    def _refuse_full(self) -> None:
        if self.path.exists() and not (self.path.is_dir() and self._empty()):
            there = (self.path / "run.json").exists()
            done = there and self.summary is not None
            hint = f"tacit resume {self.path} continues it" if there else "name another"
            hint = "its run is finished; name another, or delete it" if done else hint
            raise UserError(f"{self.path} is not an empty folder; {hint}")

    def _empty(self) -> bool:
        """Whether nothing is in it, or only what a killed process left before there was a run."""
        names = {p.name for p in self.path.iterdir()}
        return not names or (LOCK in names and names <= BEGUN)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        if not (path / "run.json").is_file():
            lack = "it has no run.json" if path.exists() else "there is nothing of that name"
            raise UserError(
                f"{path} is not a run folder: {lack}; tacit run --out DIR and tacit train --out DIR make one"
            )
        return cls(path)

    def lock(self) -> None:
        """Become the one process that writes here, and remove what a killed one left half done."""
        if self._lock is None:
            with writing(self.path / LOCK):
                self._lock = taken(self.path / LOCK)
            if self._lock is None:
                raise UserError(f"another process is writing to {self.path}; wait until it ends, or stop it")
            self._sweep(self._index())

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            released(self._lock)
            self._lock = None

    @contextmanager
    def writer(self) -> Iterator[None]:
        """Hold the lock, free at the end."""
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    @property
    def data(self) -> Interactions | None:
        """The data it keeps; None where they have a name."""
        return kept.unpacked(self.path / kept.FILE) if (self.path / kept.FILE).exists() else None

    def keep(self, data: Interactions) -> None:
        """Keep these data, in place of others."""
        write_bytes(self.path / kept.FILE, kept.packed(data))

    def keep_hits(self, test: Result) -> None:
        """Keep which of the first places of each user's list are hits, a bit each, and how many there were to find."""
        if test.ranked is not None and test.who is not None:
            hits, total = test.ranked.hits.numpy(), test.ranked.total.numpy()
            self._pack_hits(test.who.numpy().astype(np.int32), np.packbits(hits, axis=1), total.astype(np.int32))

    def drop_hits(self, user: int) -> None:
        """Forget those of one user."""
        if (self.path / HITS).exists():
            with np.load(self.path / HITS) as there:
                rest = there["user"] != user
                self._pack_hits(*(there[name][rest] for name in ("user", "hits", "total")))

    def _pack_hits(self, user: NDArray[Any], hits: NDArray[Any], total: NDArray[Any]) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, user=user, hits=hits, total=total)
        write_bytes(self.path / HITS, file.getvalue())

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
        """The round of the best checkpoint, 0 before the first; a run under way may have a better round since."""
        index = self._index()
        return int(index.get("kept", index.get("best_round", 0)))

    @property
    def spent(self) -> dict[str, float]:
        """Seconds and CPU seconds up to the last checkpoint."""
        return dict(self._index().get("spent", {}))

    @property
    def revision(self) -> int:
        """How often the run was revised since it was trained."""
        return int(self._index().get("revision", 0))

    def finish(self, summary: dict[str, Any], extensible: bool = True) -> None:
        """Write the result; a run that can have no more rounds needs only its best one."""
        write_json(self.path / "summary.json", summary)
        index = self._index()
        if index and not extensible and index["last"] != index["best"]:
            self._count(index | {"last": index["best"]})

    def extend(self, rounds: int) -> None:
        """Ask for more rounds; the result goes first, so that a kill between leaves a run that can be resumed."""
        run = self.run
        with writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
        write_json(self.path / "run.json", run | {"config": run["config"] | {"rounds": rounds}})

    def save(self, progress: Progress, clients: State, spent: dict[str, float]) -> None:
        """Checkpoint a finished round. Kept beside it is the newest one that is not behind the best round."""
        index = self._index()
        there = {self.best_round: index["best"], index["round"]: index["last"]} if index else {}
        there[progress.round] = self._write(f"round-{progress.round:06d}", progress.server, clients)
        kept = max(round for round in there if round <= (progress.best_round or progress.round))
        if (self.path / "rounds.jsonl").exists():
            sync(self.path / "rounds.jsonl")
        state = {
            "last": there[progress.round],
            "best": there[kept],
            "round": progress.round,
            "best_round": progress.best_round,
            "kept": kept,
            "best_value": progress.best if progress.best_round else None,
            "spent": spent,
        }
        self._count(state)

    def save_best(self, server: State, clients: State) -> None:
        """The state of the best round, which had no checkpoint."""
        index = self._index()
        where = self._write(f"round-{index['best_round']:06d}", server, clients)
        self._count(index | {"best": where, "kept": index["best_round"]})

    def revise(self, server: State, clients: State, life: dict[str, Any]) -> None:
        """Put a new state, and the note of what changed, in the best round's place."""
        index = self._index()
        number = index.get("revision", 0) + 1
        where = self._write(f"revision-{number:06d}", server, clients, life)
        self._count(index | {"last": where, "best": where, "revision": number})

    @property
    def life(self) -> dict[str, Any]:
        """What was revised; earlier versions kept the note beside run.json."""
        while True:
            index = self._index()
            life = self._json(f"checkpoints/{index.get('best')}/life.json", self._json("life.json", {}))
            if self._index() == index:  # else its writer has moved on meanwhile
                return life

    def _write(self, name: str, server: State, clients: State, life: dict[str, Any] | None = None) -> str:
        where = self.checkpoints / name
        shutil.rmtree(where, ignore_errors=True)
        try:
            with writing(where):
                where.mkdir(parents=True)
                write_tensors(where / "server.safetensors", compacted(server))
                write_tensors(where / "clients.safetensors", clients)
                if life is not None:
                    write_json(where / "life.json", life)
                sync(where)
                sync(self.checkpoints)
        except UserError:
            shutil.rmtree(where, ignore_errors=True)  # a full disk gets its room back
            raise
        return name

    def _count(self, index: dict[str, Any]) -> None:
        """Make an index the one that counts."""
        write_json(self.checkpoints / "index.json", index)
        self._sweep(index)

    def _sweep(self, index: dict[str, Any]) -> None:
        """Remove what an index does not name: of a forgotten user nothing may stay."""
        for old in [*self.checkpoints.glob("round-*"), *self.checkpoints.glob("revision-*")]:
            if old.name not in (index.get("last"), index.get("best")):
                shutil.rmtree(old)
        if index and (self.checkpoints / index["best"] / "life.json").exists():
            (self.path / "life.json").unlink(missing_ok=True)

    def without_checkpoint(self) -> UserError:
        """Why a run that has no checkpoint cannot be used, and what to do."""
        if self.summary is None:
            return UserError(f"{self.path} has no finished round yet; tacit resume {self.path} continues it")
        return UserError(
            f"{self.path} is finished and its checkpoints were dropped, so only its figures are left; "
            f"tacit run --config {self.path / 'run.json'} --out DIR trains the same again and keeps the model"
        )

    def drop_checkpoints(self) -> None:
        """Keep only the figures of a finished run."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def log(self, record: RoundRecord) -> None:
        """Append a line to rounds.jsonl."""
        append(self.path / "rounds.jsonl", to_json(dataclasses.asdict(record)))

    def load(self, which: str) -> tuple[State, State] | None:
        """(server, clients) of the `last` or the `best` checkpoint; None before the first."""
        while index := self._index():
            where = self.checkpoints / index[which]
            try:
                server = restored(read_tensors(where / "server.safetensors"))
                return server, read_tensors(where / "clients.safetensors")
            except OSError as error:
                if self._index() == index:  # else its writer has moved on to the next one
                    again = f"remove {self.checkpoints} and tacit resume {self.path} to train it again"
                    way = "start a new run" if self.revision else again
                    raise UserError(f"{where} cannot be read: {error}; restore it from a copy, or {way}") from error
        return None

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
        """The lines of rounds.jsonl; one cut short by a kill is left out, a file that lacks finished rounds refused."""
        finished = max(self.last_round, (self.summary or {}).get("rounds", 0))
        path = self.path / "rounds.jsonl"
        out: list[dict[str, Any]] = []
        with suppress(ValueError, TypeError, KeyError):  # the rest is cut off
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
                value = from_json(line)
                if value["round"] != len(out) + 1:
                    break
                out.append(value)
        if len(out) < finished:
            raise UserError(
                f"{path} has {len(out)} of {finished} finished rounds: its totals would be wrong; "
                "restore it from a copy, or start a new run"
            )
        return out

    def _index(self) -> dict[str, Any]:
        return self._json("checkpoints/index.json", {})

    def _json(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        path = self.path / name
        if default is not None and not path.exists():
            return default
        try:
            value = from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}; restore it from a copy, or start a new run") from error
        if not isinstance(value, dict):
            raise UserError(f"{path} is not what tacit writes there; restore it from a copy, or start a new run")
        return value
