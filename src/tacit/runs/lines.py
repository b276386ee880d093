"""One line per round, for a pipe, a log or a notebook."""

import sys

from tacit.core.rounds import Plan, Progress


def line(progress: Progress, plan: Plan) -> str:
    """Where a run stands: `round 3/100  valid NDCG@10 0.0712`."""
    valid = next((r.valid for r in reversed(progress.history) if r.valid), None)
    note = f"  valid {plan.select} {valid[plan.select]:.4f}" if valid else ""
    return f"round {progress.round}/{plan.rounds}{note}"


def lines(progress: Progress, plan: Plan) -> None:
    """Print it to standard error: `tacit.run("fedmf", watch=tacit.lines)`."""
    print(line(progress, plan), file=sys.stderr, flush=True)
