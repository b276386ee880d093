"""What a search is for: its default and its best settings, run with test figures over seeds."""

import json
import time
from collections.abc import Iterable
from statistics import mean
from typing import Any, Literal

from tacit.errors import UserError
from tacit.runs import search_journal as journal
from tacit.runs.compare import once
from tacit.runs.files import write_json
from tacit.runs.folder import RunFolder
from tacit.runs.search import Begin, Search, Trial

RESULT = "result.json"
Which = Literal["both", "best"]


def finals(one: Search) -> dict[str, Trial]:
    """`default`, where the first trial was the method's own settings, and `best`; the two may be one."""
    trials, best = one.trials, one.best
    if best is None:
        return {}
    first = next((t for t in trials if t.counts and not t.settings), None)
    return {"default": first, "best": best} if first else {"best": best}


def run_finals(one: Search, seeds: Iterable[int], begin: Begin | None = None, which: Which = "both") -> None:
    """Run both, or the best alone, with each seed; finished ones are read, stopped ones resumed, failures written down.

    Which is the best is known once nobody is at work on a trial, and one process at a time runs them.
    """
    while journal.busy(one.study(), one.folder):
        time.sleep(0.5)
    with journal.held(one.folder / ".finals"):
        _run(one, seeds, begin, which)


def figures(one: Search) -> dict[str, dict[str, float]]:
    """Test figures of `default` and `best`, means over the seeds that were run."""
    now = finals(one)
    out = {}
    for kind, number in _result(one).get("rows", {}).items():
        if kind not in now or now[kind].number != number:  # a later trial is better: these were another's
            continue
        places = sorted(one.folder.glob(f"final-{number:03d}-s*/run.json"))
        runs = [RunFolder.open(place.parent).summary for place in places]
        tests = [run["test"] for run in runs if run]
        if tests:
            out[kind] = {"seeds": len(tests)} | {n: mean(test[n] for test in tests) for n in ("HR@10", "NDCG@10")}
    return out


def outdated(one: Search) -> bool:
    """Whether a trial has become the best since the final runs."""
    before, now = _result(one).get("rows", {}).get("best"), one.best
    return before is not None and now is not None and now.number != before


def lost(one: Search) -> dict[str, str]:
    """Which final runs failed, and why."""
    return dict(_result(one).get("failed", {}))


def _result(one: Search) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((one.folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _run(one: Search, seeds: Iterable[int], begin: Begin | None, which: Which) -> None:
    found = finals(one)
    failed: dict[str, str] = {}
    for trial in {t.number: t for name, t in found.items() if which in ("both", name)}.values():
        for seed in seeds:
            path = one.folder / f"final-{trial.number:03d}-s{seed}"
            row = " and ".join(name for name, t in found.items() if t.number == trial.number)
            watch = begin(f"{one.asked.method} on {one.asked.data}, {row}, seed {seed}") if begin else None
            try:
                once(one.run_of(trial, seed), path, watch, one.data)
            except UserError as error:  # settings that suit one seed may diverge on another
                if isinstance(error.__cause__, OSError):
                    raise
                failed[f"{row}, seed {seed}"] = str(error)
                continue
            RunFolder.open(path).drop_checkpoints()
    rows = {name: trial.number for name, trial in found.items()}
    trials = one.trials
    spent = sum(t.cpu_seconds for t in trials)
    write_json(one.folder / RESULT, {"rows": rows, "trials": len(trials), "cpu_seconds": spent, "failed": failed})
