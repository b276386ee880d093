"""Who carries out a search: this process, or several that share its journal.

`python -m tacit.runs.search_work FOLDER BUDGET PARENT` is one of these; the search is in FOLDER.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from tacit.core.rounds import Plan, Progress
from tacit.errors import UserError
from tacit.runs.run import Watch
from tacit.runs.search import Begin, Budget, Search, opened
from tacit.runs.search_trials import work


def carry_out(
    one: Search,
    budget: Budget,
    workers: int = 1,
    begin: Begin | None = None,
    said: Callable[[str], None] | None = None,
) -> None:
    """Trials until the budget is spent, in this process or in several; `said` is told of those that end there."""
    if workers <= 1:
        work(one, budget, begin)
        return
    shared = replace(budget, minutes=budget.minutes * workers)  # the clock of each trial counts
    words = [sys.executable, "-m", __name__, str(one.folder), json.dumps(asdict(shared)), str(os.getpid())]
    words.append(str(one.asked.threads))
    with ExitStack() as files:
        # not pipes: nobody reads these before the end, and a pipe that is full holds its writer up
        ends = [files.enter_context(tempfile.TemporaryFile()) for _ in range(workers)]
        team = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=end) for end in ends]
        try:
            _follow(one, team, said)
        except KeyboardInterrupt:
            for worker in team:  # a Ctrl-C reaches them as well, a signal to this process alone does not
                worker.send_signal(2)
            raise
        finally:
            codes = [worker.wait() for worker in team]
        for end, code in zip(ends, codes, strict=True):
            end.seek(0)
            if code:
                text = end.read().decode(errors="replace").strip()
                raise UserError(
                    text.splitlines()[-1] if text else f"a worker ended with code {code}; the same call goes on"
                )


def _follow(one: Search, team: list[subprocess.Popen[bytes]], said: Callable[[str], None] | None) -> None:
    """Until all are done; says which trials have ended."""
    told: set[int] = set()
    while any(worker.poll() is None for worker in team):
        time.sleep(0.5)
        for trial in one.trials if said else []:
            if trial.state != "running" and trial.number not in told and said:
                told.add(trial.number)
                value = "" if trial.value is None else f"  valid {one.asked.select} {trial.value:.4f}"
                said(f"{one.asked.method} on {one.asked.data}, trial {trial.number}: {trial.state}{value}")


def _orphaned(parent: int) -> Begin:
    """Stop where the process that asked for the search is gone."""

    def watch(progress: Progress, plan: Plan) -> None:
        if os.getppid() != parent:
            raise KeyboardInterrupt

    def begin(name: str) -> Watch:
        return watch

    return begin


def main() -> int:
    """A worker."""
    folder, budget, parent, threads = sys.argv[1:]
    try:
        work(opened(Path(folder), int(threads)), Budget(**json.loads(budget)), _orphaned(int(parent)))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
