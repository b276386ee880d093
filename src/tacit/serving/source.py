"""Where lists come from: a run's model, read again whenever the run has changed, or a node's own folder."""

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tacit.errors import UserError
from tacit.runs.model import Model, load
from tacit.runs.why import why


@dataclass(frozen=True)
class Ask:
    """One question: for whom, how many, and what may be on the list."""

    user: str | None = None
    items: Sequence[str] = ()
    k: int = 10
    exclude: Sequence[str] = ()
    only: Sequence[str] = ()
    why: bool = False


class Source(Protocol):
    """Answers questions."""

    reloads: int

    def answer(self, ask: Ask) -> dict[str, Any]:
        """A list, or a UserError."""

    def about(self) -> dict[str, Any]:
        """What it is, for /health."""


class RunSource:
    """A run. Looks at every question whether the run was revised: nobody who is forgotten is answered for."""

    def __init__(self, path: Path) -> None:
        self.path, self.reloads = path, 0
        self._lock = threading.Lock()
        self._stamp = self._now()
        self._model = load(path)

    @property
    def model(self) -> Model:
        """The model as the run stands now."""
        if self._now() != self._stamp:
            with self._lock:
                stamp = self._now()
                if stamp != self._stamp:
                    self._model, self._stamp = load(self.path), stamp
                    self.reloads += 1
        return self._model

    def answer(self, ask: Ask) -> dict[str, Any]:
        """The k best; with `only`, of these alone."""
        model = self.model
        if (ask.user is None) == (not ask.items):
            raise UserError("a list is for a user or, for somebody new, from items: name one of the two")
        most = model.data.n_items if ask.only else min(ask.k, model.data.n_items)
        if ask.user is not None:
            found = list(model.recommend(ask.user, most, exclude=ask.exclude))
        else:
            found = list(model.recommend_items(ask.items, most, ask.exclude))
        if ask.only:
            wanted = {str(model.data.item_ids[model.item_index(item)]) for item in ask.only}
            found = [line for line in found if line.item in wanted][: ask.k]
        lines: list[dict[str, Any]] = [{"item": x.item, "title": x.title, "score": x.score} for x in found]
        out: dict[str, Any] = {"user": ask.user} if ask.user is not None else {"items": list(ask.items)}
        if ask.why:
            told = why(model, [x.item for x in found], ask.user, ask.items)
            out["why"] = told.kind
            for line, reasons in zip(lines, told.reasons, strict=True):
                line["why"] = [asdict(reason) for reason in reasons]
        return out | {"recommendations": lines}

    def about(self) -> dict[str, Any]:
        """The run and its model."""
        model = self.model
        return {
            "run": str(self.path),
            "method": model.run.config.method,
            "data": model.data.name,
            "users": model.data.n_users,
            "items": model.data.n_items,
            "revision": model.run.revision,
            "reloads": self.reloads,
        }

    def _now(self) -> tuple[int, ...]:
        try:
            found = (self.path / "checkpoints" / "index.json").stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


class NodeSource:
    """A node's own folder, read for every question: its users alone, and nothing leaves the machine for it."""

    def __init__(self, path: Path) -> None:
        self.path, self.reloads = path, 0
        self._lock = threading.Lock()

    def answer(self, ask: Ask) -> dict[str, Any]:
        """The k best for one of its users."""
        from tacit.deploy import commands

        if ask.user is None or ask.only or ask.why:
            raise UserError(f"{self.path} is a node's folder: it has lists for its own users, without only and why")
        with self._lock:
            _, found = commands.recommend(self.path, ask.user, ask.k + len(ask.exclude))
        gone = set(ask.exclude)
        lines = [{"item": x.item, "title": x.title, "score": x.score} for x in found if x.item not in gone]
        return {"user": ask.user, "recommendations": lines[: ask.k]}

    def about(self) -> dict[str, Any]:
        """The node."""
        return {"node": str(self.path), "reloads": 0}


def source_of(path: Path) -> Source:
    """A run or a node by its folder."""
    return NodeSource(path) if (path / "node.json").is_file() else RunSource(path)
