"""A run over nodes: wait for them, run the rounds, write everything down, go on after a crash."""

import dataclasses
import hashlib
import json
import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tacit.config import RunConfig, build
from tacit.core.payload import State
from tacit.core.rounds import Plan, Progress, federate, sample
from tacit.deploy.checks import made_up
from tacit.deploy.fleet import FlowerFleet, Grown, Link, Terms, TooFew
from tacit.deploy.job import Catalogue, Job, catalogue
from tacit.deploy.members import Member
from tacit.errors import UserError
from tacit.evaluation.metrics import Metrics
from tacit.methods import find
from tacit.privacy.secure_fleet import check_sum
from tacit.privacy.secure_sum import FEWEST
from tacit.runs.folder import RunFolder, write_json
from tacit.runs.run import Summary, Watch, clock, mechanism_of

log = logging.getLogger("tacit.server")


@dataclass(frozen=True)
class Asked:
    """What a server was started with."""

    config: RunConfig
    catalogue: Path
    nodes: int = 1  # wait for so many before the first round
    together: bool = False  # a client is a whole node
    terms: Terms = dataclasses.field(default_factory=Terms)
    wait: float = 3600.0  # seconds to wait for nodes
    tries: int = 10  # of a round with too few replies


def prepare(asked: Asked, path: Path, published: Catalogue | None = None) -> tuple[RunFolder, Job]:
    """The run's folder and its job: a new one, or the one that is there if it was started with the same options."""
    items, titles = published or catalogue(asked.catalogue)
    method = build(find(asked.config.method), asked.config.settings)
    if asked.config.secure:
        check_sum(method)
        if asked.nodes < FEWEST:
            raise UserError(f"a secure sum of {asked.nodes} nodes hides nothing: wait for --nodes {FEWEST} at least")
    if asked.config.dp is not None:
        raise UserError("noise that clients share in a secure sum is not there over nodes; --ldp is")
    settings = json.loads(json.dumps(dataclasses.asdict(method)))
    # how many clients there will be is not known yet: an ε is kept to by a client that takes part in every round
    noise = mechanism_of(asked.config, method, made_up(len(items)))
    written = {
        "config": asked.config.model_dump(),
        "settings": settings,
        "ldp": dataclasses.asdict(noise) if noise else None,
        "scored_with": method.scored_with,
        "fingerprint": hashlib.sha256("\n".join(items).encode()).hexdigest(),
        "nodes": {"together": asked.together},
    }
    if (path / "run.json").exists():
        folder = RunFolder.open(path)
        before = folder.run
        for key, value in written.items():
            if before.get(key) != json.loads(json.dumps(value)):
                raise UserError(f"{path} is a run with another {key}; name another --out, or start it as it was")
        started = before["started"]
    else:
        started = datetime.now().astimezone().isoformat()
        folder = RunFolder.create(
            path,
            written
            | {
                "data": {"items": len(items)},
                "versions": {
                    "tacit": version("tacit"),
                    "torch": torch.__version__,
                    "python": platform.python_version(),
                },
                "started": started,
            },
        )
    config = asked.config
    ldp = dataclasses.asdict(noise) if noise else None
    job = Job(
        config.method,
        settings,
        config.protocol,
        config.seed,
        items,
        titles,
        together=asked.together,
        ldp=ldp,
        secure=config.secure,
        run=started,
    )
    job.build((config.method,))
    return folder, job


def run(asked: Asked, folder: RunFolder, job: Job, link: Link, watch: Watch | None = None) -> Summary:
    """Run the rounds from where the folder stands, then test at the best one."""
    if folder.summary:
        return Summary(**folder.summary)
    spent_since = clock()
    method = job.build((job.method,))
    fleet = FlowerFleet(link, job, method, asked.terms, _members(folder), lambda found: _write(folder, found))
    if not fleet.gather(asked.nodes, asked.wait):
        raise UserError(f"fewer than {asked.nodes} nodes after {asked.wait:.0f} s; start them and try again")
    plan = Plan(
        rounds=method.length() if method.closed_form else asked.config.rounds or method.length(),
        seed=job.seed,
        fraction=method.fraction,
        traverse=method.traverse,
        select=asked.config.select,
        evaluate_every=asked.config.evaluate_every,
        patience=asked.config.patience,
    )

    def start() -> tuple[Progress, dict[str, float]]:
        found = folder.load("last")
        return folder.progress(found[0] if found else method.init_server(fleet.federation))

    progress, spent = start()
    fleet.best_round = lambda: progress.best_round
    if progress.round:
        log.info("going on after round %d", progress.round)
    last = fleet.snapshot()
    now_spent = partial(spent_since, spent)

    def record(progress: Progress, improved: bool) -> None:
        nonlocal last
        line = progress.history[-1]
        folder.log(line)
        folder.save(progress, {}, improved, now_spent())
        now = fleet.snapshot()
        _append(folder, {"round": line.round, "seconds": line.seconds, **now.since(last)})
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

    noise = job.noise()
    tries = asked.tries
    while True:
        before = progress.round
        try:
            progress = federate(method, fleet, validate, plan, record, progress, noise.epsilon if noise else None)
            break
        except Grown as error:
            log.info("%s from round %d on", error, progress.round + 1)
        except TooFew as error:
            tries = asked.tries if progress.round > before else tries - 1
            if tries <= 0:
                raise UserError(f"{error}; start the nodes and then the server again: it goes on") from error
            log.warning("%s; the round is tried again", error)
            progress, _ = start()  # an aggregation may have begun on the old state
            _gather_again(fleet, asked)
    return _finish(asked, folder, job, fleet, progress, now_spent)


def _gather_again(fleet: FlowerFleet, asked: Asked) -> None:
    time.sleep(1)
    if not fleet.gather(1, asked.wait):
        raise UserError(f"no node is there after {asked.wait:.0f} s; start them and then the server again: it goes on")


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
    chosen = next((r for r in progress.history if r.round == progress.best_round), progress.history[-1])
    for last in range(asked.tries - 1, -1, -1):
        try:
            test = fleet.evaluate(best, "test", chosen.round)
            break
        except TooFew as error:
            if not last:
                raise UserError(f"{error}; start the nodes and then the server again: it goes on") from error
            log.warning("%s; the test is tried again", error)
            _gather_again(fleet, asked)
    beside = fleet.snapshot().since(before)
    ids = sample(fleet.federation.n_clients, 256, job.seed, 0)
    summary = Summary(
        method=job.method,
        data=asked.config.data,
        protocol=job.protocol,
        seed=job.seed,
        rounds=progress.round,
        best_round=chosen.round,
        valid=chosen.valid or {},
        test=test.main,
        test_sampled99=test.sampled99,
        groups={},
        group_bytes={},
        bytes_up=sum(r.bytes_up for r in progress.history) + int(beside["bytes_up"]),
        bytes_down=sum(r.bytes_down for r in progress.history) + int(beside["bytes_down"]),
        clients=fleet.federation.n_clients,
        client_rounds=sum(r.clients for r in progress.history),
        bytes_to_rank=fleet.method.downlink(best, ids).nbytes() / len(ids),
        epsilon=progress.history[-1].epsilon,
        scored_with=fleet.method.scored_with,
        users_evaluated=test.users,
        users_too_short=fleet.too_short,
        duplicates=sum(m.duplicates for m in fleet.members),
        settings=job.settings,
        folder=str(folder.path),
        ldp=job.ldp | {"epsilon_round": noise.epsilon(1)} if (noise := job.noise()) and job.ldp else None,
        dp=None,
        bytes_server=sum(leaf.nbytes for leaf in best.values()),
        **spent(),
    )
    folder.finish(dataclasses.asdict(summary))
    return summary


def _append(folder: RunFolder, line: dict[str, Any]) -> None:
    with (folder.path / "wire.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _write(folder: RunFolder, members: list[Member]) -> None:
    write_json(folder.path / "nodes.json", {"members": [dataclasses.asdict(m) for m in members]})


def _members(folder: RunFolder) -> list[Member]:
    path = folder.path / "nodes.json"
    if not path.exists():
        return []
    return [
        Member(**m | {"sizes": tuple(m["sizes"]), "groups": tuple(m.get("groups", ()))})
        for m in json.loads(path.read_text())["members"]
    ]
