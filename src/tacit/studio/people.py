"""People of a run or a node: their history, their list and its reasons, and how they are forgotten."""

import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tacit.errors import UserError

if TYPE_CHECKING:
    from tacit.runs.model import Model

KEPT = 2  # models in memory
SHOWN = 60  # users of one answer, and items of a history


class Models:
    """Models by their folder, loaded once and again when their run was revised."""

    def __init__(self) -> None:
        self._loaded: dict[Path, tuple[Any, Model]] = {}
        self._lock = threading.Lock()

    def of(self, path: Path) -> "Model":
        """The model of a run as it stands now."""
        from tacit.runs.model import load

        with self._lock:
            stamp = stamp_of(path)
            if path not in self._loaded or self._loaded[path][0] != stamp:
                self._loaded.pop(path, None)
                while len(self._loaded) >= KEPT:
                    self._loaded.pop(next(iter(self._loaded)))
                self._loaded[path] = (stamp, load(path))
            return self._loaded[path][1]


def stamp_of(path: Path) -> Any:
    """Changes with every checkpoint and every revision."""
    try:
        found = (path / "checkpoints" / "index.json").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def users(model: "Model", find: str) -> dict[str, Any]:
    """Some users whose id begins with what was typed, then those that contain it."""
    lengths = model.run.split.train.lengths
    there = [(str(name), int(n)) for name, n in zip(model.data.user_ids.tolist(), lengths.tolist(), strict=True) if n]
    chosen = [one for one in there if one[0].startswith(find)]
    if find:
        chosen += [one for one in there if find in one[0] and not one[0].startswith(find)]
    return {"total": len(there), "users": [{"id": name, "items": n} for name, n in chosen[:SHOWN]]}


def person(model: "Model", user: str, k: int) -> dict[str, Any]:
    """History, list, reasons, and which item was held out."""
    from tacit.runs.why import why

    split, data = model.run.split, model.data
    found = model.recommend(user, k, held_out=True)
    told = why(model, [one.item for one in found], user)
    row = model.user_index(user)
    known = [*split.train[row].tolist(), *split.valid[row].tolist()]
    hidden = [data.title(i) for i in split.test[row].tolist()]
    return {
        "user": user,
        "items": len(known),
        "history": [{"item": str(data.item_ids[i]), "title": data.title(i)} for i in reversed(known[-SHOWN:])],
        "held_out": hidden,
        "kind": told.kind,
        "lines": [
            {
                "item": one.item,
                "title": one.title,
                "score": one.score,
                "held_out": one.held_out,
                "why": [{"title": r.title, "share": r.share} for r in reasons],
            }
            for one, reasons in zip(found, told.reasons, strict=True)
        ],
    }


def forget(models: Models, path: Path, user: str, k: int) -> dict[str, Any]:
    """Forget a user; the list before, what the same history of a stranger gets after, and what it cost."""
    from tacit.runs import life
    from tacit.runs.run import reopen

    before = models.of(path)
    lines = _titles(before.recommend(user, k))
    train = [str(before.data.item_ids[i]) for i in before.run.split.train[before.user_index(user)]]
    run = reopen(path)
    began = perf_counter()
    life.forget(run, user)
    seconds = perf_counter() - began
    after = models.of(path)
    refused = _sentence(lambda: after.recommend(user, k))
    return {
        "user": user,
        "before": lines,
        "after": _titles(after.recommend_items(train, k)),
        "refused": refused,
        "seconds": seconds,
        "items": len(train),
    }


def of_node(path: Path, user: str, k: int) -> dict[str, Any]:
    """The same of a node's own user, from the node's disk alone."""
    from tacit.deploy import commands

    recent, found = commands.recommend(path, user, k)
    lines = [{"item": one.item, "title": one.title, "score": one.score, "held_out": False, "why": []} for one in found]
    history = [{"item": "", "title": title} for title in recent]
    return {"user": user, "items": len(recent), "history": history, "held_out": [], "kind": "none", "lines": lines}


def forget_on_node(path: Path, user: str) -> dict[str, Any]:
    """Forget a node's user, from its disk and its next uploads."""
    from tacit.deploy import commands

    began = perf_counter()
    commands.forget(path, user)
    said = "the user is forgotten here; delete it from your own file too"
    return {"user": user, "before": [], "after": [], "refused": said, "seconds": perf_counter() - began, "items": 0}


def _titles(found: Any) -> list[dict[str, Any]]:
    return [{"title": one.title, "score": one.score} for one in found]


def _sentence(call: Callable[[], Any]) -> str:
    try:
        call()
    except UserError as error:
        return str(error)
    return ""
