"""The second of the two loops: the server's rounds."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tacit import rng
from tacit.core.bounds import usual
from tacit.core.capabilities import Budgeted, Sharing
from tacit.core.closed_form import ClosedForm
from tacit.core.fleet import Fleet, Traffic
from tacit.core.method import Method, Moment
from tacit.core.payload import State
from tacit.core.trained import Trained, used


@dataclass
class RoundRecord:
    """A line of rounds.jsonl."""

    round: int
    seconds: float
    loss: float | None
    valid: dict[str, float] | None
    bytes_up: int
    bytes_down: int
    clients: int
    epsilon: float | None = None


@dataclass
class Progress:
    """Where a run stands: enough, with the fleet's private state, to go on."""

    server: State
    round: int = 0
    best_round: int = 0
    best: float = -math.inf
    history: list[RoundRecord] = field(default_factory=list)
    trained: RoundRecord | None = (
        None  # of the next round, whose training is in `server` and which is not validated yet
    )


class Recorder(Protocol):
    """Told of every finished round; a run folder writes it down."""

    def __call__(self, progress: Progress, improved: bool) -> None:
        """One round is finished; `improved` on the best validation so far."""


@dataclass(frozen=True)
class Plan:
    """How long to run and how to choose."""

    rounds: int
    seed: int
    fraction: float = 1.0
    traverse: bool = False  # every client once before anyone a second time
    select: str = "NDCG@10"  # the validation metric that chooses the reported round
    evaluate_every: int = 1  # 0: never
    patience: int = 0  # stop after this many evaluations without a better one; 0: never


def participation_of(method: Method) -> dict[str, Any]:
    """How many clients take part in a round, and in which order: the settings of a method that trains."""
    return {"fraction": method.fraction, "traverse": method.traverse} if isinstance(method, Trained) else {}


def federate(
    method: Method,
    fleet: Fleet,
    validate: Callable[[State], dict[str, float]],
    plan: Plan,
    record: Recorder,
    progress: Progress,
    budget: Callable[[int], float] | None = None,
    trained: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Run rounds from where `progress` stands to the end of the plan; `trained` is told of each before it is validated.

    `budget` is the ε that a client has spent after taking part in this many rounds; written down is the largest of all
    clients. Without it a method states its own, if it has one.
    """
    everyone = fleet.federation.n_clients
    taken = participation(method, plan, everyone, [r.round for r in progress.history if r.bytes_up])
    while progress.round < plan.rounds and not (_out_of_patience(progress, plan) or _settled(method, progress, plan)):
        round = progress.round + 1
        began = time.perf_counter()
        # 1. choose clients
        ids = chosen(method, plan, everyone, round)
        # 2. they train and upload; the server sums as uploads arrive
        traffic = Traffic()
        if progress.trained is None:
            now = Moment(round, plan.seed)
            uploads = fleet.train(progress.server, ids, round, traffic)
            progress.server = method.aggregate(progress.server, used(method, uploads, now), now)
            progress.server = progress.server | usual(traffic.norms)
            loss = None if math.isnan(traffic.loss) else traffic.loss
            moved = traffic.bytes_up, traffic.bytes_down, traffic.clients
            progress.trained = RoundRecord(round, 0.0, loss, None, *moved)
            trained(progress)
        # 3. validate
        due = plan.evaluate_every > 0 and (round % plan.evaluate_every == 0 or round == plan.rounds)
        valid = validate(progress.server) if due else None
        improved = valid is not None and valid[plan.select] > progress.best
        if improved and valid is not None:
            progress.best, progress.best_round = valid[plan.select], round
        # 4. write down
        progress.round, line, progress.trained = round, progress.trained, None
        if line.bytes_up:
            taken[ids] += 1
        # validation may have moved bytes, too
        line.bytes_up, line.bytes_down = max(line.bytes_up, traffic.bytes_up), max(line.bytes_down, traffic.bytes_down)
        line.seconds = time.perf_counter() - began
        line.valid, line.epsilon = valid, _epsilon(method, round, int(taken.max()), budget)
        progress.history.append(line)
        record(progress, improved)
    return progress


def _epsilon(method: Method, round: int, taken: int, budget: Callable[[int], float] | None) -> float | None:
    if budget is not None and not isinstance(method, Sharing):  # whose shares are of what it states itself
        return budget(taken)
    return method.spent(round) if isinstance(method, Budgeted) else None


def chosen(method: Method, plan: Plan, clients: int, round: int) -> Tensor:
    """The clients of a round, ascending; none where the server works alone."""
    if not method.asks(round):
        return torch.arange(0)
    return (queue if plan.traverse else sample)(clients, plan.fraction, plan.seed, round)


def participation(method: Method, plan: Plan, clients: int, rounds: Iterable[int]) -> Tensor:
    """(n_clients,) how many of these rounds each client takes part in."""
    taken = torch.zeros(clients, dtype=torch.int64)
    for round in rounds:
        taken[chosen(method, plan, clients, round)] += 1
    return taken


def sample(clients: int, fraction: float, seed: int, round: int) -> Tensor:
    """The clients of a round, ascending: a fraction of all, or a number where `fraction` is above 1."""
    count = _count(clients, fraction)
    if count >= clients:
        return torch.arange(clients)
    return torch.from_numpy(rng.drawn(seed, "sample", round, clients, slice(0, count)))


def queue(clients: int, fraction: float, seed: int, round: int) -> Tensor:
    """The same where rounds go through all clients in a random order, and through another one after that.

    The last round of an epoch has the clients that are left.
    """
    count = _count(clients, fraction)
    rounds = -(-clients // max(count, 1))
    epoch, place = divmod(round - 1, max(rounds, 1))
    return torch.from_numpy(rng.drawn(seed, "queue", epoch, clients, slice(place * count, (place + 1) * count)))


def _count(clients: int, fraction: float) -> int:
    return round_up(fraction * clients) if fraction <= 1 else min(int(fraction), clients)


def round_up(value: float) -> int:
    """The next whole number, forgiving rounding errors such as 0.07 · 100 = 7.000000000000001."""
    return max(1, math.ceil(value - 1e-9))


def _settled(method: Method, progress: Progress, plan: Plan) -> bool:
    values = [r.valid[plan.select] for r in progress.history if r.valid is not None]
    return isinstance(method, ClosedForm) and len(values) == progress.round and method.settled(values)


def _out_of_patience(progress: Progress, plan: Plan) -> bool:
    evaluated = [r for r in progress.history if r.valid is not None and r.round > progress.best_round]
    return plan.patience > 0 and len(evaluated) >= plan.patience
