"""From a configuration to the parts of a run: method, federation, mechanism, plan and what run.json says of them."""

import dataclasses
import platform
import shutil
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from tacit.config import RunConfig, build
from tacit.core.capabilities import Fitting, Sharing
from tacit.core.closed_form import ClosedForm
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.memory import installed, needed
from tacit.core.method import Method
from tacit.core.rounds import Plan, participation, participation_of, sample
from tacit.core.trained import Trained, singly
from tacit.core.workers import cores
from tacit.data.cohort import Federation
from tacit.data.downloads import Progress as DownloadProgress
from tacit.data.interactions import Interactions
from tacit.data.ragged import Ragged
from tacit.data.sources import load
from tacit.data.splits import Split, split
from tacit.errors import UserError
from tacit.methods import find
from tacit.privacy.mechanisms import MECHANISMS, Mechanism, named
from tacit.privacy.secure_fleet import check_sum
from tacit.privacy.secure_sum import honest
from tacit.privacy.shared_noise import SharedGaussian, for_budget

Protecting: TypeAlias = Mechanism | SharedGaussian


def method_of(asked: RunConfig) -> Method:
    """The method with its settings; one that cannot do what was asked is refused."""
    method = build(find(asked.method), asked.settings)
    twice = asked.settings.get("rounds")
    if None not in (twice, asked.rounds) and str(twice) != str(asked.rounds):
        raise UserError(f"rounds is given twice, --rounds {asked.rounds} and --set rounds={twice}; leave one out")
    if asked.secure:
        check_sum(method)
        method = method.with_shared_noise() if isinstance(method, Sharing) else method
    if asked.robust and (singly(method) or not isinstance(method, Trained)):
        reason = singly(method) or "its uploads are added up"
        raise UserError(
            f"{method.name} does not average uploads, so {asked.robust} has nothing to replace ({reason}); leave it out"
        )
    return method


def fitted(method: Method, n_items: int, ordered: bool) -> tuple[Method, str]:
    """The method with what it leaves to the data chosen, and what that is."""
    return method.fitted(n_items, ordered) if isinstance(method, Fitting) else (method, "")


def check(asked: RunConfig, own: Interactions | None = None) -> None:
    """Refuse before anything runs what would be refused at its start."""
    method = method_of(asked)
    if asked.ldp is not None or asked.dp is not None:
        mechanism_of(asked, method, federation_of(asked, method, None, own))


def check_room(asked: RunConfig, method: Method, federation: Federation, out: Path) -> None:
    """Refuse what this machine has no room for, in memory or, mapped, on the disk of the run's folder."""
    takes = needed(method, federation, asked.chunk, asked.threads or cores())
    if asked.mapped:
        where = next(place for place in (out, *out.absolute().parents) if place.exists())
        if takes.clients > (free := shutil.disk_usage(where).free):
            own = "--set scored_with=server ranks without tables of clients' own"
            raise UserError(
                f"the clients' state of {asked.method} on {asked.data} would take about {takes.clients / 1e9:,.0f} GB "
                f"of disk, and {where} has {free / 1e9:,.0f} GB; {own if method.own_leaves() else 'free some'}"
            )
    there = installed()
    if there is None:
        return
    total = takes.total - (takes.clients if asked.mapped else 0)
    if total <= there:
        return
    if takes.clients > takes.work and not asked.mapped:
        way = "--mapped keeps its clients' state on disk"
    elif takes.work > takes.server:
        way = "fewer negatives, a smaller dim or --threads 1 need less"
    else:
        way = "a smaller dim or fewer items (--min-interactions) need less"
    raise UserError(
        f"{asked.method} on {asked.data} with these settings would take about {total / 1e9:,.0f} GB of memory, and "
        f"this machine has {there / 1e9:,.0f} GB; {way}"
    )


def idle(asked: RunConfig, method: Method) -> str:
    """What was asked for and has no effect; empty: everything has."""
    own = method.length(asked.rounds)
    if asked.rounds not in (None, own):
        many = f"{own} rounds" if own > 1 else "one round"
        return f"{asked.method} has {many} of its own, one for each solution it tries: rounds={asked.rounds} is ignored"
    return ""


def plan_of(asked: RunConfig, method: Method) -> Plan:
    """How long to run and how to choose."""
    rounds = method.length(asked.rounds)
    unchosen = isinstance(method, ClosedForm) and not method.validated
    return Plan(
        rounds=rounds,
        seed=asked.seed,
        **participation_of(method),
        select=asked.select,
        evaluate_every=0 if asked.protocol == "everything" else rounds if unchosen else asked.evaluate_every,
        patience=asked.patience,
    )


def federation_of(
    asked: RunConfig, method: Method, progress: DownloadProgress | None, own: Interactions | None = None
) -> Federation:
    """The data set, or `own` data in its place, split and handed out to its clients."""
    data = load(asked.data, asked.min_interactions, progress) if own is None else own
    if asked.clients > data.n_users and not method.pooled:
        raise UserError(f"clients={asked.clients} is more than the {data.n_users:,} users of {data.name}")
    divided = split(data, asked.protocol, asked.seed)
    return clients_of(asked, method, divided if asked.tested else divided.untested())


def clients_of(asked: RunConfig, method: Method, divided: Split) -> Federation:
    """Users as clients: one each, this many groups, or all in one place."""
    groups = 1 if method.pooled else asked.clients
    return Federation.of_groups(divided, groups) if groups else Federation.of_users(divided)


def mechanism_of(asked: RunConfig, method: Method, federation: Federation) -> Protecting | None:
    """What a run was asked for, tried on a client of one user: what it cannot cover is refused before a start."""
    own, shared = asked.ldp, asked.dp
    if isinstance(method, Sharing) and (own is not None or shared is not None):
        raise UserError(f"{method.name} has noise of its own; leave out --ldp and --dp")
    if isinstance(method, Sharing) and method.noise == "clients":
        if federation.n_clients < federation.n_users:
            raise UserError(f"the noise of {method.name} in a secure sum is for one user a client; leave out --clients")
        return SharedGaussian(1.0, method.ratio, honest(federation.n_clients), method.delta, "system")
    if own is None and shared is None:
        return None
    if method.pooled:
        raise UserError(f"{asked.method} is centralised: there are no uploads for --ldp to cover")
    plan = plan_of(asked, method)
    most = int(participation(method, plan, federation.n_clients, range(1, plan.rounds + 1)).max())
    mechanism: Protecting
    if shared is not None:
        summed = honest(len(sample(federation.n_clients, plan.fraction, plan.seed, 1)))
        if shared.epsilon is None:
            mechanism = SharedGaussian(shared.clip, shared.noise or 0.0, summed, shared.delta)
        else:
            mechanism = for_budget(shared.clip, shared.epsilon, most, summed, shared.delta)
    elif own is not None and own.epsilon is not None:
        mechanism = MECHANISMS.find(own.kind).for_target(own.clip or 0.0, own.epsilon, most, own.delta)
    elif own is not None:
        mechanism = named(own.kind, own.scale or 0.0, clip=own.clip or 0.0, delta=own.delta)
    alone = Federation(federation.split, Ragged(np.array([0, 1]), np.array([0])))
    trial = SimulatedFleet(method, alone, threads=1, protection=mechanism)
    for _ in trial.train(method.init_server(alone), torch.arange(1), 1, Traffic()):
        pass
    mechanism.epsilon(1)  # says so if the package it needs is missing
    return mechanism


def written_mechanism(run: dict[str, Any]) -> Protecting | None:
    """The mechanism that run.json states."""
    if run.get("ldp"):
        return named(**run["ldp"])
    return SharedGaussian(**run["dp"]) if run.get("dp") else None


def stated(mechanism: Protecting | None, cost: bool = False) -> dict[str, Any]:
    """A mechanism as it is written down: on uploads under `ldp`, on secure sums under `dp`."""
    out: dict[str, Any] = {"ldp": None, "dp": None}
    if mechanism is not None:
        kind = "ldp" if isinstance(mechanism, Mechanism) else "dp"
        out[kind] = mechanism.stated() | ({"epsilon_round": mechanism.epsilon(1)} if cost else {})
    return out


def description(
    asked: RunConfig,
    method: Method,
    mechanism: Protecting | None,
    fingerprint: str,
    data: dict[str, int],
    **more: Any,
) -> dict[str, Any]:
    """run.json: what decides a run, then figures of its data, versions and when it was started."""
    return {
        "config": asked.model_dump(),
        "settings": dataclasses.asdict(method),
        **stated(mechanism),
        "scored_with": method.scored_with,
        "fingerprint": fingerprint,
        **more,
        "data": data,
        "versions": {
            "tacit": version("tacit"),
            "torch": torch.__version__,
            "numpy": version("numpy"),
            "python": platform.python_version(),
        },
        "started": datetime.now().astimezone().isoformat(),
    }
