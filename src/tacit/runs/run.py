"""Start, resume and read runs: what the command line and Python both call."""

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tacit.config import RunConfig, config, rebuild
from tacit.core.capabilities import groups
from tacit.core.closed_form import ClosedForm
from tacit.core.fleet import Guard, SimulatedFleet
from tacit.core.local import local_round
from tacit.core.method import Method
from tacit.core.payload import State
from tacit.core.rounds import Plan, Progress, federate, sample
from tacit.core.store import ClientStore
from tacit.core.workers import torch_threads
from tacit.data.cohort import Federation
from tacit.data.downloads import Progress as DownloadProgress
from tacit.data.frames import kind_of, named
from tacit.data.interactions import Interactions
from tacit.data.splits import Split
from tacit.errors import UserError
from tacit.evaluation.metrics import Metrics, all_of
from tacit.evaluation.protocol import Evaluator, Result, by_activity, gap, validated
from tacit.methods import find
from tacit.privacy.secure_fleet import SecureFleet
from tacit.runs.assembly import (
    Protecting,
    check_room,
    clients_of,
    description,
    federation_of,
    fitted,
    idle,
    mechanism_of,
    method_of,
    plan_of,
    written_mechanism,
)
from tacit.runs.folder import RunFolder
from tacit.runs.life import Life
from tacit.runs.saving import Saver
from tacit.runs.summary import Summary, clock, summarise

__all__ = ["Recommendation", "Run", "Summary", "Watch", "reopen", "resume", "run", "start"]

Watch = Callable[[Progress, Plan], None]  # told of every finished round


class Stopped(Exception):
    """Raised by a watch that has seen enough: the round is saved, and the run can be resumed."""


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
    mechanism: Protecting | None = None
    revision: int = 0  # of the folder when it was opened
    chosen: str = ""  # what the method left to the data, said once
    idle: str = ""  # what was asked for and has no effect, said once

    def go_on(self, watch: Watch | None = None) -> Summary:
        """Train from where the folder stands, then read the test set once, at the best round."""
        with self.folder.writer():
            if summary := self.folder.summary:
                return Summary(**summary)
            with torch_threads(self.fleet.threads):
                return self._go_on(watch)

    def _go_on(self, watch: Watch | None) -> Summary:
        self.fleet.muster()
        server = self.method.init_server(self.fleet.federation)
        if found := self.folder.load("last"):
            server, clients = found
            self.fleet.store.load(clients)
        progress, before = self.folder.progress(server)
        spent = clock(before)
        saver = Saver(self.folder, self.config.checkpoint_every, self.fleet.store.kept, spent)
        evaluator = Evaluator(self.split, all_of(self.config.select, *self.config.metrics))
        some = validated(self.split.n_users, self.split.seed, self.config.evaluate_users)

        def record(progress: Progress, improved: bool) -> None:
            self.folder.log(progress.history[-1])
            saver.offer(progress, improved)
            try:
                if watch:
                    watch(progress, self.plan)
            except (KeyboardInterrupt, Stopped):  # within a round clients are in two states, here they are in one
                saver.save(progress)
                raise

        def validate(server: State) -> Metrics:
            return evaluator(self.fleet.scores(server, "valid", some), "valid", sampled_too=False).main

        budget = self.mechanism.epsilon if self.mechanism else None
        progress = federate(self.method, self.fleet, validate, self.plan, record, progress, budget)
        saver.save(progress)
        best = self._at_best(progress)
        activity = by_activity(self.split)
        test = Result({})
        if self.split.evaluates and self.config.tested:
            test = evaluator(self.fleet.scores(best, "test"), "test", activity | self.groups())
            self.folder.keep_hits(test)
        everyone, to_rank = self.fleet.federation.n_clients, self.bytes_to_rank(best)
        moved = sum(r.bytes_down for r in progress.history)
        # a closed form's clients have what they rank with after all rounds: everybody downloads it once
        later = max(0, round(everyone * to_rank) - moved) if isinstance(self.method, ClosedForm) else 0
        summary = summarise(
            self.config,
            self.method,
            self.folder.path,
            progress,
            best,
            test,
            self.mechanism,
            spent(),
            (0, later),
            clients=everyone,
            bytes_to_rank=to_rank,
            users_too_short=self.split.too_short,
            duplicates=self.split.data.duplicates,
            group_bytes=self.bytes_by_group(best),
            bytes_kept=self.bytes_kept(),
            gap=gap([test.groups[name] for name in activity]),
        )
        self.folder.finish(dataclasses.asdict(summary), extensible=not isinstance(self.method, ClosedForm))
        return summary

    def _at_best(self, progress: Progress) -> State:
        """Bring server and clients to the best round; one without a checkpoint is trained again from the one before."""
        if progress.best_round in (0, progress.round):
            return progress.server
        progress.server = {}  # some have a table for every client
        server, kept = self.load_best(), self.folder.best_round
        if kept < progress.best_round:
            plan = dataclasses.replace(self.plan, rounds=progress.best_round, patience=0)
            again = Progress(server, kept)
            server = federate(self.method, self.fleet, lambda _: {plan.select: 0.0}, plan, _nothing, again).server
            self.folder.save_best(server, self.fleet.store.kept())
        return server

    def load_best(self) -> State:
        """Bring server and clients to the best checkpoint; gives the server's state."""
        found = self.folder.load("best")
        if found is None:
            raise self.folder.without_checkpoint()
        server, clients = found
        self.fleet.store.load(clients)
        return server

    def bytes_to_rank(self, server: State) -> float:
        """What a client downloads before it can rank, on average over a few hundred clients."""
        ids = sample(self.fleet.federation.n_clients, 256, self.config.seed, 0)
        return self.method.downlink(server, ids).nbytes() / len(ids)

    def bytes_kept(self) -> float:
        """What a client keeps for its next training, on average: all but what it needs only for ranking."""
        beside = {"trained", *(f"own_{name}" for name in self.method.own_leaves())}
        kept = sum(leaf.nbytes for name, leaf in self.fleet.store.rows.items() if name not in beside)
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


def start(
    configuration: RunConfig,
    out: Path | None = None,
    progress: DownloadProgress | None = None,
    own: Interactions | None = None,
    keep: bool = True,
    **more: Any,
) -> Run:
    """Make the folder of a new run and everything in it, ready to train; with `keep` its `own` data, too."""
    if configuration.protocol == "everything":
        raise UserError("protocol 'everything' withholds nothing to evaluate on; tacit train trains on everything")
    method = method_of(configuration)
    if own is not None:
        own = own.at_least(configuration.min_interactions)
    federation = federation_of(configuration, method, progress, own)
    method, chosen = fitted(method, federation.n_items, federation.split.data.time is not None)
    if not federation.split.evaluates:
        raise UserError(f"nobody in {configuration.data} has 3 interactions or more: there is nothing to evaluate on")
    made = begin(configuration, method, federation, out, keep and own is not None, **more)
    return dataclasses.replace(made, chosen=chosen, idle=idle(configuration, method))


def begin(
    configuration: RunConfig, method: Method, federation: Federation, out: Path | None, keep: bool, **more: Any
) -> Run:
    """The folder of a new run, described, and the run; `more` is written down with it."""
    check_room(configuration, method, federation, out or Path("runs"))
    mechanism = mechanism_of(configuration, method, federation)
    divided = federation.split
    some = validated(federation.n_users, federation.seed, configuration.evaluate_users)
    figures = {
        "users": federation.n_users,
        "items": federation.n_items,
        "interactions": len(divided.data),
        "duplicates": divided.data.duplicates,
        "users_too_short": divided.too_short,
        "users_in_validation": federation.n_users if some is None else len(some),
    }
    written = description(configuration, method, mechanism, divided.data.fingerprint(), figures, **more)
    folder = RunFolder.create(out or free_folder(configuration), written, divided.data if keep else None)
    return _run(configuration, method, federation, folder, mechanism)


def reopen(path: Path, progress: DownloadProgress | None = None) -> Run:
    """A run from its folder; refuses data that have changed since."""
    folder = RunFolder.open(path)
    revision, written = folder.revision, folder.run
    configuration = config(**written["config"])
    method = rebuild(find(configuration.method), written["settings"])
    kept = folder.data
    federation = federation_of(configuration, method, progress, kept)
    if kept is None and federation.split.data.fingerprint() != written["fingerprint"]:
        raise UserError(f"the data set {configuration.data} is not the one {path} was started with; start a new run")
    life = Life.of(folder)
    if life.forgotten or life.sequences:
        federation = clients_of(configuration, method, life.apply(federation.split))
    made = _run(configuration, method, federation, folder, written_mechanism(written))
    return dataclasses.replace(made, revision=revision)


def run(
    method: str = "tally",
    *,
    data: Any = "ml-100k",
    out: str | Path | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Summary:
    """Train and evaluate a method: `tacit.run("fedmf", data="ml-100k", protocol="strict", settings={"dim": 32})`.

    `data` is a data set's name, a `tacit.Data`, or what `tacit.Data.of` takes.
    """
    name, own = named(data)
    asked = config(method=method, data=name, **options)
    started = start(asked, Path(out) if out else None, own=own, frames=kind_of(data))
    if started.idle:
        warnings.warn(started.idle, stacklevel=2)
    return started.go_on(watch)


def resume(folder: str | Path, watch: Watch | None = None, rounds: int | None = None) -> Summary:
    """Resume a run that was stopped; a finished one is only read, unless more `rounds` are asked for."""
    path = Path(folder)
    if rounds is not None:
        extend(path, rounds)
    if summary := RunFolder.open(path).summary:
        return Summary(**summary)
    return reopen(path).go_on(watch)


def extend(path: Path, rounds: int) -> None:
    """Let a run have `rounds` rounds in all; it is then resumed like one that was stopped."""
    folder = RunFolder.open(path)
    with folder.writer():
        written = folder.run
        asked = config(**written["config"])
        method = rebuild(find(asked.method), written["settings"])
        longer = asked.model_copy(update={"rounds": rounds})
        planned, done = plan_of(asked, method).rounds, folder.last_round
        if rounds == planned:
            return
        if plan_of(longer, method).rounds != rounds:
            raise UserError(f"{asked.method} has {planned} rounds of its own; {path} cannot have more")
        if rounds < max(planned, done):
            raise UserError(f"{path} has {max(planned, done)} rounds already; ask for more than that")
        if folder.revision or (folder.summary and not done):
            why = "has been revised since it was trained" if folder.revision else "has no checkpoint to continue from"
            raise UserError(f"{path} {why}; start a new run with --rounds {rounds}")
        if any(own is not None and own.epsilon is not None for own in (asked.ldp, asked.dp)):
            raise UserError(f"the noise of {path} was chosen for its ε after {planned} rounds; start a new run")
        if folder.summary and done < planned:
            raise UserError(f"{path} ended after {done} rounds by its patience; start a new run without --patience")
        folder.extend(rounds)


def free_folder(configuration: RunConfig) -> Path:
    """A new folder below `runs`, named after the run."""
    base = (
        f"{configuration.method.replace(':', '.')}-{configuration.data}-{configuration.protocol}-s{configuration.seed}"
    )
    number = 1
    while (path := Path("runs") / (base if number == 1 else f"{base}-{number}")).exists():
        number += 1
    return path


def _nothing(progress: Progress, improved: bool) -> None:
    """These rounds were written down when they were run first."""


def client_store(asked: RunConfig, method: Method, federation: Federation, folder: RunFolder) -> ClientStore:
    """Clients as they begin; mapped into files of its own, for a reader must not write into those of a live run."""
    if not asked.mapped:
        return ClientStore(method, federation)
    with TemporaryDirectory(prefix="clients-", dir=folder.path, ignore_cleanup_errors=True) as place:
        return ClientStore(method, federation, Path(place))  # what is mapped needs its name no more


def _run(
    asked: RunConfig, method: Method, federation: Federation, folder: RunFolder, mechanism: Protecting | None
) -> Run:
    fleet = (SecureFleet if asked.secure else SimulatedFleet)(
        method,
        federation,
        chunk=asked.chunk,
        threads=asked.threads or None,
        store=client_store(asked, method, federation, folder),
        protection=mechanism,
        sums=not asked.secure,
        guard=Guard(asked.bound, asked.robust),
    )
    return Run(asked, method, federation.split, fleet, plan_of(asked, method), folder, mechanism)
