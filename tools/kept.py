"""Finished runs in one small file, so that a page of results can be drawn again without running anything.

python tools/kept.py pack runs/hetefedrec-table2 docs/results/data/hetefedrec-table2.json
python tools/kept.py unpack docs/results/data/hetefedrec-table2.json runs/again
tacit results hetefedrec-table2 --out runs/again --markdown
"""

import json
import sys
from pathlib import Path


def pack(runs: Path, file: Path) -> None:
    """What was asked, what came out, and the rounds that were validated, of every finished run below a folder."""
    kept = {}
    for summary in sorted(runs.glob("*/summary.json")):
        lines = [json.loads(line) for line in (summary.parent / "rounds.jsonl").read_text().splitlines()]
        kept[summary.parent.name] = {
            "run": json.loads((summary.parent / "run.json").read_text()),
            "summary": json.loads(summary.read_text()) | {"folder": summary.parent.name},
            "rounds": [line for line in lines if line.get("valid")],
        }
    file.parent.mkdir(parents=True, exist_ok=True)
    each = ",\n".join(f"{json.dumps(name)}: {json.dumps(run)}" for name, run in kept.items())
    file.write_text("{\n" + each + "\n}\n")  # a line a run


def unpack(file: Path, runs: Path) -> None:
    """The same runs as folders, without checkpoints."""
    for name, run in json.loads(file.read_text()).items():
        (runs / name / "checkpoints").mkdir(parents=True, exist_ok=True)
        for part in ("run", "summary"):
            (runs / name / f"{part}.json").write_text(json.dumps(run[part]))
        (runs / name / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in run["rounds"]))


if __name__ == "__main__":
    {"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
