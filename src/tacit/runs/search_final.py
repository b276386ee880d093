"""What a search is for: its default and its best settings, run with test figures over seeds."""

from collections.abc import Iterable

from tacit.runs.compare import once
from tacit.runs.files import write_json
from tacit.runs.folder import RunFolder
from tacit.runs.search import Begin, Search, Trial

RESULT = "result.json"


def finals(one: Search) -> dict[str, Trial]:
    """`default`, where the first trial was the method's own settings, and `best`; the two may be one."""
    trials, best = one.trials, one.best
    if best is None:
        return {}
    first = next((t for t in trials if t.counts and not t.settings), None)
    return {"default": first, "best": best} if first else {"best": best}


def run_finals(one: Search, seeds: Iterable[int], begin: Begin | None = None) -> None:
    """Run both with each seed; finished ones are read, stopped ones resumed."""
    found = finals(one)
    for trial in {t.number: t for t in found.values()}.values():
        for seed in seeds:
            path = one.folder / f"final-{trial.number:03d}-s{seed}"
            row = " and ".join(name for name, t in found.items() if t.number == trial.number)
            watch = begin(f"{one.asked.method} on {one.asked.data}, {row}, seed {seed}") if begin else None
            once(one.run_of(trial, seed), path, watch, one.data)
            RunFolder.open(path).drop_checkpoints()
    rows = {name: trial.number for name, trial in found.items()}
    trials = one.trials
    spent = sum(t.cpu_seconds for t in trials)
    write_json(one.folder / RESULT, {"rows": rows, "trials": len(trials), "cpu_seconds": spent})
