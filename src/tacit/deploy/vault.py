"""What a node keeps on its own disk: readable only by its owner, and never half written.

node.json                 the node's name
current                   the id of the latest job
.lock                     held while a node runs here
ledger.json               noisy uploads that left the node, by job and user; it outlives the jobs
jobs/<job>/job.json       the job as it came
jobs/<job>/roster.json    the node's users in the order of their numbers, and where these start
jobs/<job>/revealed.json  the latest round whose secure sum the node helped to open
jobs/<job>/model.packet   the latest message with a model: enough to recommend while the server is away
jobs/<job>/state/N.safetensors   private leaves after round N, for the users named in it

Whatever else lies in the folder is not the node's: it is neither read nor removed.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save as save_tensors

from tacit.core.payload import State
from tacit.errors import UserError
from tacit.runs.files import released, taken, writing

LOCK = ".lock"  # held by the one process that answers a server from this folder
KEPT = 5  # jobs whose private state stays on disk: a run that is resumed after others finds its own


def write(path: Path, blob: bytes) -> None:
    """Replace a file at once, readable by its owner alone."""
    _make(path.parent)
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make(folder: Path) -> None:
    """A folder and those above it, each new one its owner's alone; one that is there stays as it is."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


class Vault:
    """A node's folder."""

    def __init__(self, path: Path) -> None:
        """Open a node's folder or make one; a folder of somebody else's is refused."""
        self.path = path
        try:
            if path.exists() and not self.is_one(path) and any(p.name != LOCK for p in path.iterdir()):
                raise UserError(f"{path} is not a node's folder and not empty; name another --folder")
            _make(path)
        except OSError as error:
            raise UserError(
                f"cannot keep a node in {path} ({error.strerror or error}); name another --folder"
            ) from error
        if not (path / "jobs").exists():
            for old in self._jobs_in(path):  # as the first edition kept them
                _make(path / "jobs")
                old.rename(path / "jobs" / old.name)

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a folder is a node's."""
        return (path / "node.json").is_file()

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the folder's lock; False where another process has it."""
        with writing(self.path / LOCK):
            lock = taken(self.path / LOCK)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                released(lock)

    def json(self, name: str) -> Any:
        """A JSON file, or None."""
        path = self.path / name
        try:
            return json.loads(path.read_bytes()) if path.exists() else None
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read ({error}); restore it, or remove it and start over") from error

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file."""
        write(self.path / name, (json.dumps(value, ensure_ascii=False) + "\n").encode())

    @property
    def current(self) -> str:
        """The id of the latest job; a UserError where there is none."""
        path = self.path / "current"
        if not path.exists():
            raise UserError(f"{self.path} has not seen a run yet; start `tacit node` and a server first")
        return path.read_text().strip()

    def begin(self, job: str) -> None:
        """Make a job the current one; of others the latest are kept."""
        write(self.path / "current", job.encode())
        for old in self.jobs()[KEPT:]:
            shutil.rmtree(self.job(old))

    def job(self, job: str) -> Path:
        """The folder of a job."""
        return self.path / "jobs" / job

    def jobs(self) -> list[str]:
        """The jobs this node has heard of, the current one first and then the latest."""
        found = self._jobs_in(self.path / "jobs")
        found.sort(key=lambda folder: (folder.name == self.current, folder.stat().st_mtime), reverse=True)
        return [folder.name for folder in found]

    @staticmethod
    def _jobs_in(folder: Path) -> list[Path]:
        """What the node itself made there: folders with a job's id for a name and its roster inside."""
        inside = folder.iterdir() if folder.is_dir() else ()
        return [path for path in inside if re.fullmatch("[0-9a-f]{24}", path.name) and (path / "roster.json").is_file()]

    def unfinished(self) -> list[Path]:
        """Files that a node was killed in the midst of."""
        jobs = [path for path in (self.path / "jobs").glob("*") if re.fullmatch("[0-9a-f]{24}", path.name)]
        return [*self.path.glob("*.json.new"), *(half for job in jobs for half in job.rglob("*.new"))]

    def rounds(self, job: str) -> list[int]:
        """The rounds whose private state is kept, ascending."""
        return sorted(int(file.stem) for file in (self.job(job) / "state").glob("[0-9]*.safetensors"))

    def newest(self, job: str, most: int) -> int:
        """The latest kept round that is not behind `most`; 0: the state before the first."""
        return max((r for r in self.rounds(job) if r <= most), default=0)

    def save(self, job: str, round: int, leaves: State, users: list[str]) -> None:
        """Keep the private state after a round."""
        whole = {name: leaf.clone() for name, leaf in leaves.items()}
        blob = save_tensors(whole, metadata={"users": json.dumps(users)})
        write(self._state(job, round), blob)

    def load(self, job: str, round: int, users: list[str]) -> State:
        """The private state after a round; refuses that of other users."""
        path = self._state(job, round)
        with safe_open(path, framework="pt") as file:
            if json.loads((file.metadata() or {}).get("users", "null")) != users:
                raise UserError(f"{path} holds the state of other users than {self.path} now has")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping

    def forget_from(self, job: str, round: int) -> None:
        """Remove the state of this round and of later ones: the server repeats them."""
        for later in self.rounds(job):
            if later >= round:
                self._state(job, later).unlink()

    def drop(self, job: str, round: int) -> None:
        """Remove the state of one round."""
        self._state(job, round).unlink()

    def prune(self, job: str, wanted: Iterable[int]) -> None:
        """Remove all but the states that these rounds would be ranked with."""
        kept = {self.newest(job, round) for round in wanted}
        for round in self.rounds(job):
            if round not in kept:
                self._state(job, round).unlink()

    def _state(self, job: str, round: int) -> Path:
        return self.job(job) / "state" / f"{round:06d}.safetensors"
