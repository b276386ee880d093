"""Finished runs of an experiment in one small file: its tables and figures can be drawn again without running."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.errors import UserError
from tacit.runs.files import to_json, write_text


def pack(runs: Path, file: Path) -> int:
    """Keep of every finished run below a folder what was asked, what came out and the rounds that were validated.

    What the file has of other runs stays in it. Gives how many it has now.
    """
    kept = _read(file) if file.exists() else {}
    for path in sorted(runs.glob("*/summary.json")):
        written = path.parent / "rounds.jsonl"
        lines = map(json.loads, written.read_text(encoding="utf-8").splitlines() if written.exists() else [])
        kept[path.parent.name] = {
            "run": json.loads((path.parent / "run.json").read_text(encoding="utf-8")),
            "summary": json.loads(path.read_text(encoding="utf-8")) | {"folder": path.parent.name},
            "rounds": [line for line in lines if line.get("valid")],
        }
    if not kept:
        raise UserError(f"nothing to keep: no run below {runs} is finished")
    each = ",\n".join(f"{to_json(name)}: {to_json(run)}" for name, run in sorted(kept.items()))
    write_text(file, "{\n" + each + "\n}\n")  # a line a run, so that a change can be read
    return len(kept)


@contextmanager
def opened(place: Path) -> Iterator[Path]:
    """The folder of an experiment's runs; a file of `pack` is one for as long as it is needed."""
    if not place.is_file():
        yield place
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run, parts in _read(place).items():
            (folder / run / "checkpoints").mkdir(parents=True)
            for part in ("run", "summary"):
                (folder / run / f"{part}.json").write_text(to_json(parts[part]), encoding="utf-8")
            lines = "".join(to_json(line) + "\n" for line in parts["rounds"])
            (folder / run / "rounds.jsonl").write_text(lines, encoding="utf-8")
        yield folder


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """A file of `pack`; its names are those of folders, wherever it comes from."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        for name, parts in kept.items():
            assert Path(name).name == name
            assert name not in ("", "..")
            assert isinstance(parts["run"], dict)
            assert isinstance(parts["summary"], dict)
            assert isinstance(parts["rounds"], list)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise UserError(f"{file} is not what tacit results --save keeps; name another file, or a folder") from None
    return dict(kept)
