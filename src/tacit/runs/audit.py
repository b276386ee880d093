"""The curious server: continue a run for a few rounds, look at every upload as it arrives, and attack it.

The audited clients take part in every one of these rounds and nobody else does. What they send is what the fleet hands
to the method's aggregation: behind the mechanism that protects it, and as a sum alone where sums are secure.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.config import RunConfig, config
from tacit.core.closed_form import ClosedForm
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Payload, State
from tacit.core.rounds import sample
from tacit.core.trained import used
from tacit.data.cohort import Federation
from tacit.errors import UserError, unknown
from tacit.privacy.attacks import ATTACKS, Clues, Marks, Success, clues, item_tables, sent_tables, success
from tacit.privacy.secure_fleet import SecureFleet, check_sum
from tacit.privacy.secure_sum import honest
from tacit.privacy.shared_noise import SharedGaussian
from tacit.runs.assembly import mechanism_of
from tacit.runs.files import append, to_json
from tacit.runs.run import Run, client_store, reopen

STARTS = ("last", "best", "start")

FILE = "audit.jsonl"

POPULARITY = "popularity"  # the reference: the same guess for everybody


@dataclass(frozen=True)
class Audit:
    """What came of one run under one protection."""

    method: str
    data: str
    protection: str
    epsilon_round: float | None  # what a round costs a client; None: nothing is promised
    after: int  # rounds of the run before the first that was looked at
    rounds: int
    clients: int
    k: int
    attacks: dict[str, Success] = field(default_factory=dict)
    refused: str = ""  # why there is nothing to see
    folder: str = ""  # of the run


def audit(
    folders: Iterable[Path],
    protections: Sequence[dict[str, Any]] = (),
    rounds: int = 5,
    clients: int = 100,
    k: int = 10,
    start: str = "last",
) -> Iterator[Audit]:
    """Each run as it was made, then under each of the protections: options of a run (`ldp`, `secure`, `dp`).

    Popularity comes first for every data set: the server may know it from elsewhere, and it needs no upload.
    """
    if start not in STARTS:
        raise unknown("start of an audit", start, STARTS)
    known: set[tuple[str, str, int]] = set()
    for folder in folders:
        run = reopen(folder)
        if run.method.pooled:
            raise UserError(f"{run.config.method} is centralised: whoever runs it has the interactions themselves")
        everyone = run.fleet.federation.n_clients
        ids = sample(everyone, clients, run.config.seed, 0) if 1 < clients < everyone else torch.arange(everyone)
        if (place := (run.config.data, run.config.protocol, run.config.seed)) not in known:
            known.add(place)
            yield replace(_popularity(run, ids, k), folder=str(folder))
        for options in ({}, *protections):
            yield replace(_under(run, options, ids, rounds, k, start), folder=str(folder))


def write_down(found: Audit) -> None:
    """Beside the run, for whoever draws it; where nothing can be written the audit is still one."""
    with suppress(UserError):
        append(Path(found.folder) / FILE, to_json(asdict(found)))


def _under(run: Run, options: dict[str, Any], ids: Tensor, rounds: int, k: int, start: str) -> Audit:
    """A run under its own protection, or under another."""
    bare: dict[str, Any] = {"ldp": None, "secure": False, "dp": None}
    asked = config(**run.config.model_dump() | (bare | options if options else {}))
    federation = run.fleet.federation
    server, after = start_of(run, start)
    found = Audit(asked.method, asked.data, described(asked), None, after, 0, len(ids), k)
    try:
        if asked.secure:
            check_sum(run.method)
        mechanism = mechanism_of(asked, run.method, federation) if options else run.mechanism
        if isinstance(mechanism, SharedGaussian):
            mechanism = replace(mechanism, contributors=honest(len(ids)))
        fleet = (SecureFleet if asked.secure else SimulatedFleet)(
            run.method, federation, asked.chunk, asked.threads or None, store=run.fleet.store, protection=mechanism
        )
        seen = list(observe(fleet, server, ids, after, rounds))
    except UserError as error:
        return replace(found, refused=str(error))
    if not seen:
        return replace(found, refused=f"{asked.method} uploads nothing that has a row per item")
    truth, counted = real_items(federation, ids)
    attacks = {
        name: success(attack(seen).expand(len(ids), -1).double().numpy(), truth, counted, k)
        for name, attack in ATTACKS.items()
    }
    # a method's own ε is of noise that the server adds: by then it has seen the uploads
    cost = mechanism.epsilon(1) if mechanism else None
    return replace(found, epsilon_round=cost, rounds=len(seen), attacks=attacks)


def observe(fleet: SimulatedFleet, server: State, ids: Tensor, after: int, rounds: int) -> Iterator[Clues]:
    """The clues of each round, for the clients in the order of `ids`, or for all of them at once from a sum.

    A table that the server did not send under the same name is compared with what the same client uploaded in the round
    before, and at first with the mean of all uploads.
    """
    method = fleet.method
    earlier: State = {}
    for round in range(after + 1, after + rounds + 1):
        if not method.asks(round):
            return
        seen = _Seen(fleet, server, ids)
        uploads = seen.watched(fleet.train(server, ids, round, Traffic()))
        now = Moment(round, fleet.federation.seed)
        server = method.aggregate(server, used(method, uploads, now), now)
        earlier = seen.close(earlier)
        if seen.found:
            yield seen.clues()


class _Seen:
    """What a round's uploads show. Clues are taken at once where the base is known: a matrix of all items is large."""

    def __init__(self, fleet: SimulatedFleet, server: State, ids: Tensor) -> None:
        self.items = fleet.federation.n_items
        self.method, self.server, self.ids = fleet.method, server, ids
        self.found: list[tuple[Tensor, Clues]] = []
        self.waiting: list[tuple[Tensor, State]] = []

    def watched(self, uploads: Iterable[Payload]) -> Iterator[Payload]:
        """The uploads as they go by."""
        for up in uploads:
            tables = item_tables(up, self.items)
            single = up.ids[:1].ge(0).all()  # or the sum of everybody, who were sent the same
            known = sent_tables(self.method.downlink(self.server, up.ids if single else self.ids[:1]), self.items)
            if tables and all(n in known and known[n].shape[1:] == x.shape[1:] for n, x in tables.items()):
                self.found.append((up.ids, clues(tables, known)))
            elif tables:
                self.waiting.append((up.ids, tables))
            yield up

    def close(self, earlier: State) -> State:
        """Take the clues of uploads that had to wait for the others'; gives these uploads."""
        if not self.waiting:
            return {}
        who = torch.cat([some for some, _ in self.waiting])
        order = who.argsort()
        tables = {n: torch.cat([x[n] for _, x in self.waiting])[order] for n in self.waiting[0][1]}
        several = len(who) > 1
        bases = {n: earlier.get(n, x.mean(0, keepdim=True) if several else x.new_zeros(())) for n, x in tables.items()}
        self.found.append((who[order], clues(tables, bases)))
        return tables

    def clues(self) -> Clues:
        """Of all clients, in the order of their numbers."""
        order = torch.cat([who for who, _ in self.found]).argsort()
        parts = [(c.moved, c.along, c.lies) for _, c in self.found]
        return Clues(*(torch.cat(column)[order] for column in zip(*parts, strict=True)))


def start_of(run: Run, start: str) -> tuple[State, int]:
    """The server's state and the rounds behind it; the clients' is in the run's fleet."""
    federation = run.fleet.federation
    if start == "start" or isinstance(run.method, ClosedForm):  # which uploads only in the first rounds
        run.fleet.store = client_store(run.config, run.method, federation, run.folder)
        return run.method.init_server(federation), 0
    found = run.folder.load(start)
    if found is None:
        raise UserError(f"{run.folder.path} has no checkpoint to continue from; --at start looks at the first rounds")
    server, clients = found
    run.fleet.store.load(clients)
    return server, run.folder.best_round if start == "best" else run.folder.last_round


def real_items(federation: Federation, ids: Tensor) -> tuple[Marks, Marks]:
    """(C, M) the items that the clients train on, and which cells count: held-out items are neither."""
    split = federation.split
    truth = np.zeros((len(ids), federation.n_items), dtype=bool)
    counted = np.ones_like(truth)
    for place, client in enumerate(ids.tolist()):
        for user in federation.members[client]:
            counted[place, split.valid[user]] = counted[place, split.test[user]] = False
            truth[place, split.train[user]] = True
    return truth, counted | truth


def described(asked: RunConfig) -> str:
    """A protection in a few words."""
    parts = ["secure sum"] if asked.secure else []
    for chosen in (asked.ldp, asked.dp):
        if chosen is not None:
            told = {n: v for n, v in chosen.model_dump(exclude={"kind", "delta"}).items() if v is not None}
            parts.append(" ".join([getattr(chosen, "kind", "shared"), *(f"{n} {v:g}" for n, v in told.items())]))
    return ", ".join(parts) or "none"


def _popularity(run: Run, ids: Tensor, k: int) -> Audit:
    """How far one gets with nothing but the number of users of each item."""
    counts = np.bincount(run.split.train.values, minlength=run.split.n_items).astype(np.float64)
    truth, counted = real_items(run.fleet.federation, ids)
    guess = success(np.broadcast_to(counts, truth.shape), truth, counted, k)
    return Audit(f"({POPULARITY})", run.config.data, "", None, 0, 0, len(ids), k, {POPULARITY: guess})
