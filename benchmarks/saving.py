"""What saving takes of a run's CPU time, and what reaching an unsaved best round again takes.

python -m benchmarks.saving [--rounds 20] [--data ml-100k] [METHOD …]
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tacit.config import config
from tacit.runs.folder import RunFolder
from tacit.runs.run import Run, start

RESULTS = Path(__file__).parent / "results"


def timed(owner: type, name: str, into: list[float]) -> Callable[[], None]:
    """Note the CPU seconds of every call of a method; gives what undoes it."""
    real = getattr(owner, name)

    def call(*words: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return real(*words, **options)
        finally:
            into.append(time.process_time() - began)

    setattr(owner, name, call)
    return lambda: setattr(owner, name, real)


def measure(method: str, data: str, rounds: int) -> dict[str, Any]:
    """One run, timed from within."""
    saves: list[float] = []
    logs: list[float] = []
    best: list[float] = []
    watched = [(RunFolder, "save", saves), (RunFolder, "log", logs), (Run, "_at_best", best)]
    undo = [timed(owner, name, into) for owner, name, into in watched]
    try:
        with TemporaryDirectory() as folder:
            summary = start(config(method=method, data=data, rounds=rounds), Path(folder)).go_on()
    finally:
        for one in undo:
            one()
    return {
        "method": method,
        "data": data,
        "rounds": rounds,
        "best round": summary.best_round,
        "saves": len(saves),
        "cpu seconds": summary.cpu_seconds,
        "saving": sum(saves) + sum(logs),
        "to the best round": sum(best),
        "share": (sum(saves) + sum(logs) + sum(best)) / summary.cpu_seconds,
    }


def main() -> None:
    """Print and keep the figures."""
    words = argparse.ArgumentParser()
    words.add_argument("methods", nargs="*", default=["pfedrec", "fedrap"])
    words.add_argument("--data", default="ml-100k")
    words.add_argument("--rounds", type=int, default=20)
    asked = words.parse_args()
    found = [measure(method, asked.data, asked.rounds) for method in asked.methods]
    for one in found:
        print(
            f"{one['method']:10} {one['saves']} saves in {one['rounds']} rounds: {one['saving']:.2f} of "
            f"{one['cpu seconds']:.1f} CPU seconds, {one['to the best round']:.2f} to the best round "
            f"({one['best round']}): {100 * one['share']:.1f}%"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "saving.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
