"""A run over nodes: wait for them, run the rounds, write everything down, continue after a crash."""

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tacit.config import RunConfig
from tacit.core.bounds import made_up
from tacit.core.capabilities import Sharing
from tacit.core.fleet import Guard
from tacit.core.payload import State
from tacit.core.rounds import Progress, RoundRecord, chosen, federate, participation, sample
from tacit.deploy.board import Board
from tacit.deploy.fleet import FlowerFleet, Grown, Link, Terms, TooFew
from tacit.deploy.job import Catalogue, Job, catalogue
from tacit.deploy.members import Member
from tacit.errors import UserError
from tacit.evaluation.metrics import Metrics
from tacit.privacy.secure_sum import FEWEST
from tacit.runs.assembly import description, fitted, mechanism_of, method_of, plan_of
from tacit.runs.files import append, from_json, read_tensors, sync, to_json, write_json, write_tensors
from tacit.runs.folder import RunFolder
from tacit.runs.run import Watch
from tacit.runs.summary import Summary, clock, summarise

log = logging.getLogger("tacit.server")

LONGEST_PAUSE = 30.0  # seconds between two tries of a round


@dataclass(frozen=True)
class Asked:
    """What a server was started with."""

    config: RunConfig
    catalogue: Path
    nodes: int = 1  # wait for this many before the first round
    together: bool = False  # a client is a whole node
    terms: Terms = dataclasses.field(default_factory=Terms)
    wait: float = 0.0  # seconds without a finished round after which the server gives up; 0: never


def prepare(asked: Asked, path: Path, published: Catalogue | None = None) -> tuple[RunFolder, Job]:
    """The run's folder and its job: a new one, or the one that is there if it was started with the same options."""
    items, titles = published or catalogue(asked.catalogue)
    config = asked.config
    method, _ = fitted(method_of(config), len(items), ordered=True)  # nodes have times, as far as is known here
    if config.secure and asked.nodes < FEWEST:
        raise UserError(f"a secure sum of {asked.nodes} nodes hides nothing: wait for at least --nodes {FEWEST}")
    if ":" in config.select:
        raise UserError(f"--select {config.select} is invalid here: nodes compute only tacit's own metrics")
    if config.protocol == "everything":
        raise UserError("protocol 'everything' withholds nothing to choose a round by; use --protocol strict")
    if config.protocol == "fileorder":
        raise UserError("protocol 'fileorder' repeats the order of one file, which no node has; use --protocol strict")
    if config.dp is not None:
        raise UserError("noise shared by clients in a secure sum is not available over nodes; use --ldp")
    if config.secure and isinstance(method, Sharing):
        raise UserError(f"the noise of {method.name} is added by the server over nodes; leave out --secure")
    # how many clients there will be is not known yet: an ε is kept to by a client that takes part in every round
    mechanism = mechanism_of(config, method, made_up(len(items)))
    fingerprint = hashlib.sha256("\n".join(items).encode()).hexdigest()
    made = description(
        config, method, mechanism, fingerprint, {"items": len(items)}, nodes={"together": asked.together}
    )
    written = json.loads(to_json(made))
    if (path / "run.json").exists():
        folder = RunFolder.open(path)
        before = folder.run
        before["config"] = RunConfig(**before["config"]).model_dump()  # with what has become an option since
        for key in [key for key in written if key not in ("data", "versions", "started")]:
            if json.loads(to_json(before.get(key))) != written[key]:
                raise UserError(f"{path} is a run with another {key}; name another --out, or start it as it was")
        written = before
        folder.lock()
    else:
        folder = RunFolder.create(path, written)
    job = Job(
        config.method,
        written["settings"],
        config.protocol,
        config.seed,
        items,
        titles,
        together=asked.together,
        ldp=written["ldp"],
        secure=config.secure,
        run=written["started"],
    )
    job.build((config.method,))
    return folder, job


def run(
    asked: Asked, folder: RunFolder, job: Job, link: Link, watch: Watch | None = None, board: Board | None = None
) -> Summary:
    """Run the rounds from where the folder stands, then test at the best one."""
    with folder.writer():
        if folder.summary:
            return Summary(**folder.summary)
        return _run(asked, folder, job, link, watch, board or Board())


def _run(asked: Asked, folder: RunFolder, job: Job, link: Link, watch: Watch | None, board: Board) -> Summary:
    method = job.build((job.method,))
    fleet = FlowerFleet(
        link, job, method, asked.terms, members(folder), lambda found: write_members(folder, found), board=board
    )
    fleet.select = asked.config.select
    fleet.guard = Guard(asked.config.bound, asked.config.robust)
    if not fleet.gather(asked.nodes - sum(m.removed for m in fleet.members), asked.wait):
        raise UserError(f"fewer than {asked.nodes} nodes after {asked.wait:.0f} s; start them and try again")
    plan = plan_of(asked.config, method)

    def start() -> tuple[Progress, dict[str, float]]:
        found = folder.load("last")
        progress, before = folder.progress(found[0] if found else method.init_server(fleet.federation))
        _take_trained(folder, progress)
        return progress, before

    progress, before = start()
    spent = clock(before)
    fleet.best_round = lambda: progress.best_round
    board.state, board.method, board.round, board.rounds = "training", job.method, progress.round, plan.rounds
    if progress.round:
        log.info("continuing after round %d", progress.round)
    last = fleet.snapshot()

    def record(progress: Progress, improved: bool) -> None:
        nonlocal last
        line = progress.history[-1]
        folder.log(line)
        folder.save(progress, {}, spent())  # every round: nodes may not be asked for one again
        board.round = line.round
        now = fleet.snapshot()
        append(folder.path / "wire.jsonl", to_json({"round": line.round, "seconds": line.seconds, **now.since(last)}))
        last = now
        log.info(
            "round %d: %d clients, %.1f s, valid %s",
            line.round,
            line.clients,
            line.seconds,
            "-" if line.valid is None else f"{plan.select} {line.valid[plan.select]:.4f}",
        )
        if watch:
            watch(progress, plan)

    def validate(server: State) -> Metrics:
        return fleet.evaluate(server, "valid", progress.round + 1).main

    mechanism = job.mechanism()
    times = participation(method, plan, fleet.federation.n_clients, _asked_before(folder))

    def asking(round: int) -> None:
        """A round that is asked for again is one more upload of its clients, whatever becomes of it."""
        append(folder.path / "asked.jsonl", to_json(round))
        sync(folder.path / "asked.jsonl")
        times[chosen(method, plan, len(times), round)] += 1

    def budget(taken: int) -> float:
        assert mechanism is not None
        return mechanism.epsilon(max(taken, int(times.max())))

    if mechanism is not None:
        fleet.asking = asking
    patient = _Patience(fleet, asked.wait)
    while True:
        reached = progress.round
        try:
            progress = federate(
                method, fleet, validate, plan, record, progress, budget if mechanism else None, _keep_trained(folder)
            )
            break
        except Grown as error:
            log.info("%s from round %d on", error, progress.round + 1)
        except TooFew as error:
            patient.after(error, progress.round > reached)
            progress, _ = start()  # an aggregation may have begun on the old state
    return _finish(asked, folder, job, fleet, progress, spent)


class _Patience:
    """Waits for a quorum after a round that failed, ever longer while nothing else happens."""

    def __init__(self, fleet: FlowerFleet, most: float) -> None:
        self.fleet, self.most = fleet, most
        self.since, self.times = time.monotonic(), 0

    def after(self, error: TooFew, went_on: bool) -> None:
        """Return when it can be tried again; a UserError where that takes longer than the operator has patience."""
        if went_on:
            self.since, self.times = time.monotonic(), 0
        log.warning("%s; trying again", error)
        time.sleep(min(2.0**self.times, LONGEST_PAUSE))
        self.times += 1
        left = self.since + self.most - time.monotonic() if self.most else 0.0
        if left < 0 or not self.fleet.regather(left):
            raise UserError(f"{error}; start the nodes and then the server again: it continues") from error


def _finish(
    asked: Asked,
    folder: RunFolder,
    job: Job,
    fleet: FlowerFleet,
    progress: Progress,
    spent: Callable[[], dict[str, float]],
) -> Summary:
    found = folder.load("best")
    assert found is not None
    best, before = found[0], fleet.snapshot()
    patient = _Patience(fleet, asked.wait)
    while True:
        try:
            test = fleet.evaluate(best, "test", progress.best_round or progress.round)
            break
        except TooFew as error:
            patient.after(error, went_on=False)
    beside = fleet.snapshot().since(before)
    ids = sample(fleet.federation.n_clients, 256, job.seed, 0)
    summary = summarise(
        asked.config,
        fleet.method,
        folder.path,
        progress,
        best,
        test,
        job.mechanism(),
        spent(),
        (int(beside["bytes_up"]), int(beside["bytes_down"])),
        clients=fleet.federation.n_clients,
        bytes_to_rank=fleet.method.downlink(best, ids).nbytes() / len(ids),
        users_too_short=fleet.too_short,
        duplicates=sum(m.duplicates for m in fleet.members),
    )
    folder.finish(dataclasses.asdict(summary))
    fleet.board.state = "finished"
    return summary


def _keep_trained(folder: RunFolder) -> Callable[[Progress], None]:
    """Before nodes evaluate: a trained round is on disk, and nobody has to be asked for it again."""

    def keep(progress: Progress) -> None:
        write_tensors(folder.path / "trained.safetensors", progress.server)
        write_json(folder.path / "trained.json", dataclasses.asdict(cast(RoundRecord, progress.trained)))

    return keep


def _take_trained(folder: RunFolder, progress: Progress) -> None:
    """Bring a run to the round that was trained and not evaluated, where there is one."""
    try:
        line = RoundRecord(**from_json((folder.path / "trained.json").read_text()))
        if line.round == progress.round + 1:
            progress.server, progress.trained = read_tensors(folder.path / "trained.safetensors"), line
            log.info("round %d is already trained", line.round)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError) as error:
        log.warning("what was trained last cannot be read (%s); the round is repeated", error)


def _asked_before(folder: RunFolder) -> list[int]:
    """The rounds that clients were asked for, as often as they were."""
    path = folder.path / "asked.jsonl"
    try:
        return [int(line) for line in path.read_text().split()] if path.exists() else []
    except ValueError as error:
        raise UserError(
            f"{path} is damaged, and with it how often clients were asked ({error}); "
            "restore it from a copy, or start a new run"
        ) from error


def write_members(folder: RunFolder, members: list[Member]) -> None:
    """Keep who is in a run."""
    write_json(folder.path / "nodes.json", {"members": [dataclasses.asdict(m) for m in members]})


def members(folder: RunFolder) -> list[Member]:
    """Who is in a run."""
    path = folder.path / "nodes.json"
    if not path.exists():
        return []
    try:
        return [
            Member(**m | {"sizes": tuple(m["sizes"]), "groups": tuple(m.get("groups", ()))})
            for m in json.loads(path.read_text())["members"]
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy, or start a new run") from error


def remove(path: Path, name: str) -> int:
    """Take a node out of a run for good; gives how many stay."""
    folder = RunFolder.open(path)
    with folder.writer():
        found = members(folder)
        if name not in [m.name for m in found if not m.removed]:
            known = ", ".join(m.name for m in found if not m.removed) or "nobody"
            raise UserError(f"there is no node '{name}' in {path}; there is {known}")
        found = [dataclasses.replace(m, removed=m.removed or m.name == name) for m in found]
        write_members(folder, found)
    return sum(not m.removed for m in found)
