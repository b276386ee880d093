"""Start, resume and read runs: what the command line and Python both call."""

import dataclasses
import math
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.config import RunConfig, build, config
from tacit.core.capabilities import Trimming, groups
from tacit.core.closed_form import ClosedForm
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.local import local_round
from tacit.core.method import Method
from tacit.core.payload import State
from tacit.core.rounds import Plan, Progress, federate, participation, participation_of, sample
from tacit.core.workers import cpu_seconds, workers_memory
from tacit.data.cohort import Federation
from tacit.data.downloads import Progress as DownloadProgress
from tacit.data.ragged import Ragged
from tacit.data.sources import load
from tacit.data.splits import Split, split
from tacit.errors import UserError
from tacit.evaluation.metrics import Metrics, all_of
from tacit.evaluation.protocol import Evaluator, by_activity, gap
from tacit.methods import find
from tacit.privacy.mechanisms import MECHANISMS, Mechanism, named
from tacit.privacy.secure_fleet import SecureFleet, check_sum
from tacit.privacy.secure_sum import honest
from tacit.privacy.shared_noise import SharedGaussian, for_budget
from tacit.runs.folder import RunFolder
from tacit.runs.life import Life

Watch = Callable[[Progress, Plan], None]  # told of every finished round


@dataclass(frozen=True)
class Summary:
    """The result of a run: summary.json."""

    method: str
    data: str
    protocol: str
    seed: int
    rounds: int
    best_round: int
    valid: Metrics
    test: Metrics
    test_sampled99: Metrics | None
    groups: dict[str, Metrics]  # of `test`, by users' activity and, where the method has any, by its groups of clients
    bytes_up: int
    bytes_down: int
    bytes_to_rank: float  # what a client downloads before it can rank, on average
    clients: int
    client_rounds: int  # trainings of a client, over all rounds
    seconds: float
    cpu_seconds: float
    peak_memory_mb: float
    epsilon: float | None
    scored_with: str
    users_evaluated: int
    users_too_short: int
    duplicates: int
    settings: dict[str, Any] = field(default_factory=dict)
    folder: str = ""
    group_bytes: dict[str, dict[str, int]] = field(default_factory=dict)  # clients; a client's bytes a round, by group
    ldp: dict[str, Any] | None = None  # the noise on uploads, and `epsilon_round`, what a round costs a client
    dp: dict[str, Any] | None = None  # the noise on secure sums, likewise
    bytes_kept: float | None = None  # what a client keeps for its next training, on average; None: not known here
    bytes_server: float | None = None  # the server's state
    gap: Metrics = field(default_factory=dict)  # of `groups` by activity, the largest of each metric minus the smallest


@dataclass(frozen=True)
class Recommendation:
    """One line of a list for a user."""

    item: str
    title: str
    score: float
    held_out: bool  # the item the user really chose next, hidden from training


@dataclass
class Run:
    """A run with everything it needs in memory."""

    config: RunConfig
    method: Method
    split: Split
    fleet: SimulatedFleet
    plan: Plan
    folder: RunFolder
    mechanism: Mechanism | SharedGaussian | None = None

    def go_on(self, watch: Watch | None = None) -> Summary:
        """Train from where the folder stands, then read the test set once, at the best round."""
        spent_since = clock()
        self.fleet.muster()
        server = self.method.init_server(self.fleet.federation)
        if found := self.folder.load("last"):
            server, clients = found
            self.fleet.store.load(clients)
        progress, spent = self.folder.progress(server)
        now_spent = partial(spent_since, spent)
        evaluator = Evaluator(self.split, all_of(self.config.select, *self.config.metrics))

        def record(progress: Progress, improved: bool) -> None:
            self.folder.log(progress.history[-1])
            due = progress.round % self.config.checkpoint_every == 0 or progress.round == self.plan.rounds
            if improved or (
                due and not isinstance(self.method, ClosedForm)
            ):  # a candidate that is no better need not be kept
                self.folder.save(progress, self.fleet.store.leaves, improved, now_spent())
            if watch:
                watch(progress, self.plan)

        def validate(server: State) -> Metrics:
            return evaluator(self.fleet.scores(server, "valid"), "valid").main

        budget = self.mechanism.epsilon if self.mechanism else None
        progress = federate(self.method, self.fleet, validate, self.plan, record, progress, budget)
        progress.server = {}  # some have a table for every client, and the best round's comes from its file
        best = self.load_best()
        activity = by_activity(self.split)
        test = evaluator(self.fleet.scores(best, "test"), "test", activity | self.groups())
        chosen = next((r for r in progress.history if r.round == progress.best_round), progress.history[-1])
        summary = Summary(
            method=self.config.method,
            data=self.config.data,
            protocol=self.config.protocol,
            seed=self.config.seed,
            rounds=progress.round,
            best_round=chosen.round,
            valid=chosen.valid or {},
            test=test.main,
            test_sampled99=test.sampled99,
            groups=test.groups,
            gap=gap([test.groups[name] for name in activity]),
            bytes_up=sum(r.bytes_up for r in progress.history),
            bytes_down=sum(r.bytes_down for r in progress.history),
            clients=self.fleet.federation.n_clients,
            client_rounds=sum(r.clients for r in progress.history),
            bytes_to_rank=self.bytes_to_rank(best),
            epsilon=progress.history[-1].epsilon,
            scored_with=self.method.scored_with,
            users_evaluated=test.users,
            users_too_short=self.split.too_short,
            duplicates=self.split.data.duplicates,
            settings=dataclasses.asdict(self.method),
            folder=str(self.folder.path),
            ldp=_stated(self.mechanism, Mechanism, cost=True),
            group_bytes=self.bytes_by_group(best),
            dp=_stated(self.mechanism, SharedGaussian, cost=True),
            bytes_kept=self.bytes_kept(),
            bytes_server=sum(leaf.nbytes for leaf in best.values()),
            **now_spent(),
        )
        self.folder.finish(dataclasses.asdict(summary))
        return summary

    def load_best(self) -> State:
        """Bring server and clients to the best round; gives the server's state."""
        found = self.folder.load("best")
        if found is None:
            raise UserError(f"{self.folder.path} has no finished round yet; tacit resume goes on with it")
        server, clients = found
        self.fleet.store.load(clients)
        return server

    def bytes_to_rank(self, server: State) -> float:
        """What a client downloads before it can rank, on average over a few hundred clients."""
        ids = sample(self.fleet.federation.n_clients, 256, self.config.seed, 0)
        down = self.method.downlink(server, ids)
        if isinstance(self.method, Trimming):
            return self.method.serving_bytes(down, self.fleet.federation.people(ids)) / len(ids)
        return down.nbytes() / len(ids)

    def bytes_kept(self) -> float:
        """What a client keeps for its next training, on average: all but what it has for ranking alone."""
        beside = {"trained", *(f"own_{name}" for name in self.method.own_leaves())}
        kept = sum(leaf.nbytes for name, leaf in self.fleet.store.leaves.items() if name not in beside)
        return kept / self.fleet.federation.n_clients

    def groups(self) -> dict[str, torch.Tensor]:
        """Masks over the users by the method's groups of clients."""
        members = self.fleet.federation.members
        out: dict[str, torch.Tensor] = {}
        for name, clients in groups(self.method, self.fleet.federation).items():
            users = members.values[clients.numpy()[members.rows]]
            out[name] = torch.zeros(self.split.n_users, dtype=torch.bool)
            out[name][torch.from_numpy(users)] = True
        return {name: users for name, users in out.items() if users.any()}

    def bytes_by_group(self, server: State) -> dict[str, dict[str, int]]:
        """How many clients a group has, and what one of them receives and sends in a round, tried on one."""
        out = {}
        federation = self.fleet.federation
        for name, clients in groups(self.method, federation).items():
            ids = clients.nonzero().flatten()
            if len(ids):
                one = ids[:1]
                data = self.method.data(federation, one, 1)
                down = self.method.downlink(server, one)
                up = local_round(self.method, self.fleet.store.read(data, training=True), down, data)[1]
                out[name] = {"clients": len(ids), "down": down.nbytes(), "up": up.nbytes()}
        return out

    def recommend(self, user_id: str, k: int = 10) -> list[Recommendation]:
        """The k best items the user has not touched, as its own device would rank them."""
        data = self.split.data
        user = data.user_index(user_id)
        if not len(self.split.train[user]):
            raise UserError(f"{self.folder.path} knows nothing of user '{user_id}': it was forgotten")
        scores = self.fleet.scores_of(self.load_best(), user, "test").clone()
        scores[torch.from_numpy(self.split.known("test")[user])] = -math.inf
        value, item = scores.topk(min(k, int((scores > -math.inf).sum())))
        hidden = set(self.split.test[user].tolist())
        return [
            Recommendation(str(data.item_ids[i]), data.title(i), v, i in hidden)
            for i, v in zip(item.tolist(), value.tolist(), strict=True)
        ]

    def recent(self, user_id: str, k: int = 5) -> list[str]:
        """Titles of the user's latest known items, the newest first."""
        data = self.split.data
        user = data.user_index(user_id)
        known = [*self.split.train[user].tolist(), *self.split.valid[user].tolist()]
        return [data.title(i) for i in reversed(known[-k:])]


def check(configuration: RunConfig) -> None:
    """Refuse before anything runs what would be refused at its start."""
    method = build(find(configuration.method), configuration.settings)
    if configuration.secure:
        check_sum(method)
    if configuration.ldp is not None or configuration.dp is not None:
        mechanism_of(configuration, method, _federation(configuration, method, None))


def start(configuration: RunConfig, out: Path | None = None, progress: DownloadProgress | None = None) -> Run:
    """Make the folder of a new run and everything in it, ready to go on."""
    method = build(find(configuration.method), configuration.settings)
    if configuration.secure:
        check_sum(method)
    federation = _federation(configuration, method, progress)
    if not federation.split.test.lengths.any():
        raise UserError(f"nobody in {configuration.data} has 3 interactions or more: there is nothing to evaluate on")
    mechanism = mechanism_of(configuration, method, federation)
    path = out or free_folder(configuration)
    folder = RunFolder.create(
        path,
        {
            "config": configuration.model_dump(),
            "settings": dataclasses.asdict(method),
            "ldp": _stated(mechanism, Mechanism),
            "dp": _stated(mechanism, SharedGaussian),
            "scored_with": method.scored_with,
            "fingerprint": federation.split.data.fingerprint(),
            "data": {
                "users": federation.n_users,
                "items": federation.n_items,
                "interactions": len(federation.split.data),
                "duplicates": federation.split.data.duplicates,
                "users_too_short": federation.split.too_short,
            },
            "versions": {
                "tacit": version("tacit"),
                "torch": torch.__version__,
                "numpy": version("numpy"),
                "python": platform.python_version(),
            },
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        },
    )
    return _assemble(configuration, method, federation, folder, mechanism)


def mechanism_of(configuration: RunConfig, method: Method, federation: Federation) -> Mechanism | SharedGaussian | None:
    """What a run was asked for, tried on a client of one user: what it cannot cover is refused before a start."""
    asked, shared = configuration.ldp, configuration.dp
    if asked is None and shared is None:
        return None
    if method.pooled:
        raise UserError(f"{configuration.method} is centralised: nobody uploads anything that --ldp could cover")
    plan = _plan(configuration, method)
    most = int(participation(method, plan, federation.n_clients, range(1, plan.rounds + 1)).max())
    mechanism: Mechanism | SharedGaussian
    if shared is not None:
        summed = honest(len(sample(federation.n_clients, plan.fraction, plan.seed, 1)))
        if shared.epsilon is None:
            mechanism = SharedGaussian(shared.clip, shared.noise or 0.0, summed, shared.delta)
        else:
            mechanism = for_budget(shared.clip, shared.epsilon, most, summed, shared.delta)
    elif asked is not None and asked.epsilon is not None:
        mechanism = MECHANISMS.find(asked.kind).for_target(asked.clip or 0.0, asked.epsilon, most, asked.delta)
    elif asked is not None:
        mechanism = named(asked.kind, asked.scale or 0.0, clip=asked.clip or 0.0, delta=asked.delta)
    alone = Federation(federation.split, Ragged(np.array([0, 1]), np.array([0])))
    trial = SimulatedFleet(method, alone, threads=1, protection=mechanism)
    for _ in trial.train(method.init_server(alone), torch.arange(1), 1, Traffic()):
        pass
    mechanism.epsilon(1)  # says so if the package it needs is missing
    return mechanism


def reopen(path: Path, progress: DownloadProgress | None = None) -> Run:
    """A run from its folder; refuses data that have changed since."""
    folder = RunFolder.open(path)
    written = folder.run
    configuration = config(**written["config"])
    method = build(find(configuration.method), written["settings"])
    federation = _federation(configuration, method, progress)
    if federation.split.data.fingerprint() != written["fingerprint"]:
        raise UserError(f"the data set {configuration.data} is not the one {path} was started with; start a new run")
    life = Life.of(folder)
    if life.forgotten or life.sequences:
        lived = life.apply(federation.split)
        groups = configuration.clients or lived.n_users
        federation = Federation.of_users(lived) if groups == lived.n_users else Federation.of_groups(lived, groups)
    mechanism: Mechanism | SharedGaussian | None = None
    if written.get("ldp"):
        mechanism = named(**written["ldp"])
    elif written.get("dp"):
        mechanism = SharedGaussian(**written["dp"])
    return _assemble(configuration, method, federation, folder, mechanism)


def _stated(mechanism: Mechanism | SharedGaussian | None, kind: type, cost: bool = False) -> dict[str, Any] | None:
    """A mechanism of that kind as it is written down."""
    if mechanism is None or not isinstance(mechanism, kind):
        return None
    return mechanism.stated() | ({"epsilon_round": mechanism.epsilon(1)} if cost else {})


def run(method: str = "tally", *, out: str | Path | None = None, watch: Watch | None = None, **options: Any) -> Summary:
    """Train and evaluate a method: `tacit.run("fedmf", data="ml-100k", protocol="strict", settings={"dim": 32})`."""
    return start(config(method=method, **options), Path(out) if out else None).go_on(watch)


def resume(folder: str | Path, watch: Watch | None = None) -> Summary:
    """Go on with a run that was stopped; a finished one is only read."""
    path = Path(folder)
    if summary := RunFolder.open(path).summary:
        return Summary(**summary)
    return reopen(path).go_on(watch)


def recommend(folder: str | Path, user: str, k: int = 10) -> list[Recommendation]:
    """The k best items for a user, from a run's best round."""
    return reopen(Path(folder)).recommend(user, k)


def clock() -> Callable[[dict[str, float]], dict[str, float]]:
    """Started now: what a run has spent, given what it had spent before."""
    began, cpu = time.perf_counter(), cpu_seconds()

    def spent(before: dict[str, float]) -> dict[str, float]:
        return {
            "seconds": before.get("seconds", 0.0) + time.perf_counter() - began,
            "cpu_seconds": before.get("cpu_seconds", 0.0) + cpu_seconds() - cpu,
            "peak_memory_mb": max(before.get("peak_memory_mb", 0.0), peak_memory_mb() + workers_memory() / 2**20),
        }

    return spent


def peak_memory_mb() -> float:
    """The most memory this process has held. Linux hands ru_maxrss down from the parent, so its own figure is read."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def free_folder(configuration: RunConfig) -> Path:
    """A new folder below `runs`, named after the run."""
    base = (
        f"{configuration.method.replace(':', '.')}-{configuration.data}-{configuration.protocol}-s{configuration.seed}"
    )
    number = 1
    while (path := Path("runs") / (base if number == 1 else f"{base}-{number}")).exists():
        number += 1
    return path


def _federation(configuration: RunConfig, method: Method, progress: DownloadProgress | None) -> Federation:
    data = load(configuration.data, configuration.min_interactions, progress)
    divided = split(data, configuration.protocol, configuration.seed)
    if method.pooled:
        return Federation.of_groups(divided, 1)
    if configuration.clients > data.n_users:
        raise UserError(f"clients={configuration.clients} is more than the {data.n_users:,} users of {data.name}")
    return (
        Federation.of_groups(divided, configuration.clients) if configuration.clients else Federation.of_users(divided)
    )


def _assemble(
    configuration: RunConfig,
    method: Method,
    federation: Federation,
    folder: RunFolder,
    mechanism: Mechanism | SharedGaussian | None,
) -> Run:
    fleet = (SecureFleet if configuration.secure else SimulatedFleet)(
        method,
        federation,
        chunk=configuration.chunk,
        threads=configuration.threads or None,
        folder=folder.path / "clients" if configuration.mapped else None,
        protection=mechanism,
        sums=not configuration.secure,
    )
    plan = _plan(configuration, method)
    return Run(configuration, method, federation.split, fleet, plan, folder, mechanism)


def _plan(configuration: RunConfig, method: Method) -> Plan:
    return Plan(
        rounds=method.length(configuration.rounds),
        seed=configuration.seed,
        **participation_of(method),
        select=configuration.select,
        evaluate_every=configuration.evaluate_every,
        patience=configuration.patience,
    )
