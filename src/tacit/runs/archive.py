"""Finished runs of an experiment in one small file: its tables and figures can be drawn again without running."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tacit.config import OUTSIDE
from tacit.errors import UserError
from tacit.runs.files import to_json, write_text
from tacit.runs.folder import RunFolder

DIGITS = 6  # of a figure: more than any page prints


def pack(runs: Path, file: Path) -> int:
    """Keep of every finished run below a folder what was asked, what came out and its learning curve.

    What the file has of other runs stays in it; a run of the same name with other options is refused. Gives how many
    it has now.
    """
    if file.is_dir() or not file.absolute().parent.is_dir():
        reason = "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise UserError(f"--save {file} cannot be written: {reason}")
    kept = _read(file) if file.is_file() else {}
    for path in sorted(found.parent for found in runs.glob("*/summary.json") if (found.parent / "run.json").is_file()):
        folder = RunFolder.open(path)
        if path.name in kept and not _alike(kept[path.name]["run"], folder.run):
            raise UserError(f"{file} has a run {path.name} with other options; name another file, or remove it")
        summary = (folder.summary or {}) | {"folder": path.name}
        kept[path.name] = {"run": folder.run, "summary": summary, "rounds": list(_lines(path / "rounds.jsonl"))}
    if not kept:
        raise UserError(f"nothing to keep: no run below {runs} is finished")
    each = ",\n".join(f"{to_json(name)}: {to_json(_slim(run))}" for name, run in sorted(kept.items()))
    write_text(file, "{\n" + each + "\n}\n")  # one line per run, so that a change can be read
    return len(kept)


@contextmanager
def opened(place: Path) -> Iterator[Path]:
    """The folder of an experiment's runs; a file of `pack` is one for as long as it is needed.

    Such a file may come from anywhere: whatever cannot be made of it is said in a sentence.
    """
    if not place.is_file():
        yield place
        return
    kept = _read(place)
    try:
        with tempfile.TemporaryDirectory() as name:
            for run, parts in kept.items():
                path = Path(name) / run
                (path / "checkpoints").mkdir(parents=True)
                for part in ("run", "summary"):
                    (path / f"{part}.json").write_text(to_json(parts[part]), encoding="utf-8")
                lines = "".join(to_json(line) + "\n" for line in parts["rounds"])
                (path / "rounds.jsonl").write_text(lines, encoding="utf-8")
            yield Path(name)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place} cannot be shown: {type(error).__name__}: {error}; it may be damaged") from error


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """A file of `pack`; its names are those of folders, wherever it comes from."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        for name, parts in kept.items():
            kinds = (parts["run"]["config"], dict), (parts["run"]["settings"], dict), (parts["summary"], dict)
            sound = all(isinstance(value, kind) for value, kind in (*kinds, (parts["rounds"], list)))
            if not sound or Path(name).name != name or name in ("", ".."):  # no assert: -O would leave it out
                raise ValueError(name)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{file} is not what tacit results --save keeps; name another file, or a folder") from None
    return dict(kept)


def _slim(parts: dict[str, Any]) -> dict[str, Any]:
    """A run with the validated metric that chooses its round alone, by round: that is its curve."""
    select = parts["run"]["config"].get("select")
    rounds = []
    for line in parts["rounds"]:
        match line:
            case {"round": int(number), "valid": {**valid}} if select in valid:
                rounds.append({"round": number, "valid": {select: _short(valid[select])}})
    return {"run": parts["run"], "summary": _short(parts["summary"]), "rounds": rounds}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of rounds.jsonl that can be read."""
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="utf-8").splitlines():
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs were asked for the same, as far as both versions knew the options."""
    mine, theirs = one.get("config", {}), other.get("config", {})
    return all(mine[key] == theirs[key] for key in mine.keys() & theirs.keys() - set(OUTSIDE))
