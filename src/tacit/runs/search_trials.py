"""The trials of a search: claimed one by one, run without a test set, pruned where they are hopeless, written down."""

import dataclasses
import json
import shutil
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from tacit.config import build
from tacit.core.closed_form import ClosedForm
from tacit.core.rounds import Plan, Progress
from tacit.core.workers import cpu_seconds
from tacit.errors import UserError
from tacit.methods import find
from tacit.runs import search_journal as journal
from tacit.runs.assembly import method_of
from tacit.runs.compare import once
from tacit.runs.files import released, writing
from tacit.runs.folder import RunFolder
from tacit.runs.run import Stopped, Watch
from tacit.runs.search import Begin, Budget, Search, Trial, trial_of
from tacit.runs.search_space import combinations, drawn, points

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial as Asked

LARGE = 100_000_000  # bytes of checkpoints: a pruned trial with more keeps none, and starts over when it is resumed
HOPELESS = 3  # first trials that fail before a search is given up


def work(one: Search, budget: Budget, begin: Begin | None = None) -> None:
    """Carry out trials until the budget is spent; several processes may, and a killed one's trial is resumed."""
    with writing(one.folder):  # a disk that is full costs no trial: it is resumed where there is room again
        _work(one, budget, begin)


def _work(one: Search, budget: Budget, begin: Begin | None) -> None:
    study = one.study()
    own = dataclasses.asdict(build(find(one.asked.method), one.asked.settings))
    while True:
        with journal.held(one.folder / journal.LOCK):
            so_far = [trial_of(t) for t in study.get_trials(deepcopy=False) if t.state.name != "WAITING"]
            left = _left(one, budget, so_far)
            claim = journal.claimed(study, one.folder, one.seeds[0], points(one.space), left is not None)
            if claim is None:
                if so_far and all(t.state == "failed" for t in so_far):
                    raise UserError(f"{one.asked.method} on {one.asked.data}: every trial failed: {so_far[0].reason}")
                return
            trial, lock = claim
            settings = drawn(one.space, trial, one.asked.settings, own)
            trial.set_user_attr("settings", settings)
        try:
            again = next((t for t in so_far if t.counts and json.dumps(t.settings) == json.dumps(settings)), None)
            if again is None:
                found = _tried(one, trial, settings, budget, left or (0.0, 0.0), begin)
            else:
                found = dataclasses.replace(again, number=trial.number, state="repeated", cpu_seconds=0.0, seconds=0.0)
            _write_down(study, trial, found)
        finally:
            released(lock)
        failed = [t for t in one.trials if t.state == "failed"]
        if len(failed) >= HOPELESS and len(failed) == len(one.trials):
            raise UserError(f"{one.asked.method} on {one.asked.data}: every trial failed: {failed[0].reason}")


def _left(one: Search, budget: Budget, so_far: list[Trial]) -> tuple[float, float] | None:
    """(CPU seconds, seconds) that are left for a new trial, 0: any; None where the budget is spent."""
    tried = sum(t.state != "repeated" for t in so_far)
    if len(so_far) >= budget.trials or tried >= combinations(one.space):
        return None
    cpu = budget.cpu_seconds - sum(t.cpu_seconds for t in so_far)
    wall = budget.minutes * 60 - sum(t.seconds for t in so_far)
    if (budget.cpu_seconds and cpu <= 0) or (budget.minutes and wall <= 0):
        return None
    return cpu if budget.cpu_seconds else 0.0, wall if budget.minutes else 0.0


def _tried(
    one: Search,
    trial: "Asked",
    settings: dict[str, Any],
    budget: Budget,
    left: tuple[float, float],
    begin: Begin | None,
) -> Trial:
    """Run a trial on every seed, or as far as it is worth it."""
    state, reason, figures = "finished", "", []
    limits = [x for x in (budget.trial_seconds / len(one.seeds), left[0]) if x]
    for seed in one.seeds:
        path = one.folder / f"trial-{trial.number:03d}-s{seed}"
        if path.exists() and not (path / "run.json").exists():  # killed while its folder was made
            shutil.rmtree(path)
        show = begin(f"{one.asked.method} on {one.asked.data}, trial {trial.number}") if begin else None
        before = RunFolder(path).spent.get("cpu_seconds", 0.0) - cpu_seconds()
        watch = _watch(before, min(limits, default=0.0), left[1], show)
        if seed == one.seeds[0] and not isinstance(method_of(one.run(settings, seed)), ClosedForm):
            watch = _pruned(trial, one.asked.select, watch)
        try:
            once(one.run(settings, seed), path, watch, one.data)
        except Stopped as stopped:
            state = str(stopped)
        except OSError:
            raise
        except Exception as error:  # a search outlives whatever one trial's settings do
            if isinstance(error.__cause__, OSError):
                raise
            state, reason = "failed", str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if (path / "run.json").exists():
            try:
                figures.append(_figures(path, one.asked.select))
                figures[-1]["cpu_seconds"] = max(figures[-1]["cpu_seconds"], before + cpu_seconds())
                _slim(path)
            except UserError as error:  # its folder is damaged
                state, reason = "failed", str(error)
        if state in ("pruned", "failed"):
            break
    values = [f["value"] for f in figures if f["value"] is not None]
    return Trial(
        trial.number,
        state,
        settings,
        mean(values) if values else None,
        rounds=max((int(f["rounds"]) for f in figures), default=0),
        best_round=max((int(f["best_round"]) for f in figures), default=0),
        cpu_seconds=sum(f["cpu_seconds"] for f in figures),
        seconds=sum(f["seconds"] for f in figures),
        reason=reason,
    )


def _watch(before: float, cpu: float, seconds: float, show: Watch | None) -> Watch:
    """Shows every round, and ends a run that has spent this much; 0: any. Its CPU seconds are those since `before`.

    Not before its first validation: without one, all that it has spent would be for nothing.
    """

    def watch(progress: Progress, plan: Plan) -> None:
        if show:
            show(progress, plan)
        spent = before + cpu_seconds(), sum(line.seconds for line in progress.history)
        if not any(line.valid for line in progress.history):
            return
        if progress.round < plan.rounds and ((cpu and spent[0] >= cpu) or (seconds and spent[1] >= seconds)):
            raise Stopped("out of time")

    return watch


def _pruned(trial: "Asked", select: str, other: Watch) -> Watch:
    """Reports every validation, and ends a trial that is behind the others at the same round."""
    reported = set(trial.storage.get_trial(trial._trial_id).intermediate_values)

    def watch(progress: Progress, plan: Plan) -> None:
        line = progress.history[-1]
        if line.valid and line.round not in reported:
            trial.report(line.valid[select], line.round)
        other(progress, plan)
        if line.valid and progress.round < plan.rounds and trial.should_prune():
            raise Stopped("pruned")

    return watch


def _figures(path: Path, select: str) -> dict[str, Any]:
    """The best validation of a run so far, and what it has spent."""
    folder = RunFolder.open(path)
    lines = folder.rounds()
    value, best = max(((line["valid"][select], -line["round"]) for line in lines if line["valid"]), default=(None, 0))
    spent = folder.summary or folder.spent
    return {"value": value, "best_round": -best, "rounds": len(lines)} | {
        key: spent.get(key, 0.0) for key in ("cpu_seconds", "seconds")
    }


def _slim(path: Path) -> None:
    """A finished trial needs no checkpoints; any other one keeps them to be resumed, unless they are large."""
    folder = RunFolder.open(path)
    size = sum(file.stat().st_size for file in folder.checkpoints.rglob("*") if file.is_file())
    if folder.summary is not None or size > LARGE:
        folder.drop_checkpoints()


def _write_down(study: "Study", trial: "Asked", found: Trial) -> None:
    from optuna.trial import TrialState

    trial.set_user_attr("found", dataclasses.asdict(found))
    if found.counts or found.state == "repeated":
        study.tell(trial, found.value)
    else:
        if found.state == "failed":
            trial.report(0.0, 0)  # so that the model learns to stay away
        study.tell(trial, state=TrialState.PRUNED)
