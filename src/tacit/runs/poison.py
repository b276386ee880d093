"""The malicious clients: let a few of a run's clients push an item, and see in whose first ten it ends up."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.aggregate import guarded_mean
from tacit.core.bounds import BOUND, bounded, limits_of, made_up, made_up_upload, overweight, usual
from tacit.core.capabilities import Telling
from tacit.core.fleet import Guard, SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Payload, State
from tacit.core.trained import Trained, singly, used
from tacit.data.cohort import Federation
from tacit.data.ragged import Ragged
from tacit.errors import UserError
from tacit.evaluation.metrics import all_of
from tacit.evaluation.protocol import Evaluator
from tacit.privacy.poison import POPULAR, attackers, histories, norm_of, poisoned, rare_item
from tacit.runs.audit import start_of
from tacit.runs.files import write_json
from tacit.runs.run import Run, reopen

FILE = "poison.json"  # beside the run
ATTACKS = ("none", "boosted", "honest norm", "fake users")
HONEST = 0.95  # quantile of honest clients' lengths and interactions: what attackers take on to look like them
K = 10


@dataclass(frozen=True)
class Defence:
    """What a server does."""

    name: str
    announced: bool = True  # nobody weighs more than announced; cells are those of a history
    guard: Guard = dataclasses.field(default_factory=Guard)


DEFENCES = (
    Defence("none", announced=False),
    Defence("announced"),
    Defence("trimmed", guard=Guard(robust="trimmed")),
)


@dataclass(frozen=True)
class Poisoning:
    """What came of an attack under a defence."""

    method: str
    data: str
    attack: str
    attackers: int
    clients: int
    defence: str
    target: int  # an item, by its number
    interactions: int  # that it has
    rounds: int  # that the attack lasted
    exposure: float  # ER@10: share of the honest users without the target in whose first ten it is
    ndcg: float  # NDCG@10 of the honest users, at test
    refused: int  # uploads that never reached a sum


def poison(
    folders: Iterable[Path], rounds: int = 5, start: str = "last", interactions: int = 6, bound: float = BOUND
) -> Iterator[Poisoning]:
    """Every attack by one client, by 1% and by a third of them, against every defence; kept in the run's folder too."""
    for folder in folders:
        run = reopen(folder)
        if run.method.pooled or run.config.secure or run.mechanism is not None:
            raise UserError(f"{folder} has no single bare uploads to poison; name a run without --secure and --ldp")
        everyone = run.fleet.federation.n_clients
        found = []
        clipping = Defence(f"bound {bound:g}", guard=Guard(bound=bound))
        defences = [d for d in (*DEFENCES[:2], clipping, *DEFENCES[2:]) if _fits(run, d)]
        for count in sorted({0, 1, max(round(everyone / 100), 1), everyone // 3}):
            for attack in ATTACKS[1:] if count else ATTACKS[:1]:
                for defence in defences[attack in ("none", "fake users") :]:  # which no check can tell from others
                    found.append(_Play(run, attack, count, defence, rounds, start, interactions).result())
                    write_json(run.folder.path / FILE, {"plays": [dataclasses.asdict(one) for one in found]})
                    yield found[-1]


def _fits(run: Run, defence: Defence) -> bool:
    trained = isinstance(run.method, Trained)
    return trained and not (defence.guard.robust and singly(run.method)) if defence.guard != Guard() else True


class _Play:
    """One attack against one defence."""

    def __init__(
        self, run: Run, attack: str, count: int, defence: Defence, rounds: int, start: str, interactions: int
    ) -> None:
        self.run, self.attack, self.defence = run, attack, defence
        real, seed = run.fleet.federation, run.config.seed
        counts = np.bincount(run.split.train.values, minlength=real.n_items)
        self.popular = np.argsort(-counts, kind="stable")[: min(POPULAR, real.n_items // 8)]
        self.target, self.interactions = rare_item(counts, interactions, seed), interactions
        self.bad = attackers(real.n_clients, count, seed)
        fake = attack == "fake users"
        self.federation = _with_fakes(real, self.bad, self.popular, self.target) if fake else real
        self.sizes = torch.from_numpy(self.federation.sizes.copy())
        if not fake:  # who may say how many interactions it has says many, but not more than honest ones do
            self.sizes[self.bad] = int(np.quantile(real.sizes, HONEST))
        self.start, self.rounds, self.refused = start, rounds, 0
        self.norm = 0.0

    def result(self) -> Poisoning:
        """Play the rounds, then rank."""
        run, method = self.run, self.run.method
        server, after = start_of(run, self.start)
        fleet = SimulatedFleet(
            method, self.federation, run.config.chunk, run.config.threads or None, store=run.fleet.store
        )
        ids, first = torch.arange(self.federation.n_clients), after + 1
        # a server that has been running knows what is usual; and closed forms have as many rounds as solutions
        last = after + 1 + self.rounds if after else method.length(self.rounds)
        for round in range(first, last + 1):
            asked = ids if method.asks(round) else ids[:0]
            traffic = Traffic()
            spoiled = self.attack != "none" and not (after and round == first)
            uploads = self._checked(fleet.train(server, asked, round, traffic), server, asked, round, traffic, spoiled)
            whole = guarded_mean(uploads, method.downlink(server, ids[:1]), self.defence.guard.robust)
            now = Moment(round, self.federation.seed)
            server = method.aggregate(server, used(method, whole, now), now) | usual(traffic.norms)
            if not isinstance(method, Trained) and round == run.folder.best_round:
                break  # the solution that validation chose
        exposure, ndcg = self._measured(fleet, server)
        return Poisoning(
            run.config.method, run.config.data, self.attack, len(self.bad), len(ids), self.defence.name, self.target,
            self.interactions, self.rounds if isinstance(method, Trained) else 1, exposure, ndcg, self.refused,
        )  # fmt: skip

    def _checked(
        self, uploads: Iterable[Payload], server: State, ids: Tensor, round: int, traffic: Traffic, spoiled: bool
    ) -> Iterator[Payload]:
        """What reaches the aggregation, behind the server's checks."""
        method, n_items = self.run.method, self.federation.n_items
        if not len(ids):
            yield from uploads
            return
        like = made_up_upload(method, server, 0, round, made_up(n_items))[1]
        bound = self.defence.guard.bound
        limits = limits_of(method, server, ids, round, self.federation, bound) if bound else None
        for up in self._with_poison(uploads, server, spoiled):
            down, sizes = method.downlink(server, up.ids), self.sizes[up.ids]
            if spoiled and self.defence.announced and bool(torch.isin(up.ids, self.bad).any()):
                reason = overweight(up, like, sizes)
                if not reason and isinstance(method, Telling):
                    reason = method.impossible(up, down, sizes, 1, n_items)
                if reason:
                    self.refused += len(up.ids)
                    continue
            if limits is not None:
                up, norms = bounded(up, down, limits)
                traffic.norms.append(norms)
            yield up

    def _with_poison(self, uploads: Iterable[Payload], server: State, spoiled: bool) -> Iterator[Payload]:
        """Honest uploads as they come, then the attackers'."""
        method, total = self.run.method, float(self.sizes.sum())
        theirs = []
        honest: list[Payload] = []
        for up in uploads:
            bad = torch.isin(up.ids, self.bad)
            if bool(bad.any()) and spoiled:
                theirs.append(up.only(bad.nonzero()[:, 0]))
            good = up.only((~bad).nonzero()[:, 0]) if spoiled else up
            if spoiled and self.attack == "honest norm":
                honest.append(good)
            yield good
        if honest:
            self.norm = norm_of(honest, [method.downlink(server, up.ids) for up in honest], HONEST)
        for up in theirs:
            if self.attack == "fake users":
                yield up
                continue
            weight = self.sizes[up.ids].float()
            if self.attack == "boosted" and not self.defence.announced:
                weight[:] = self.federation.n_items
            if "weight" in up and bool((up["weight"] == 1).all()):
                weight[:] = 1
            made = poisoned(
                up, method.downlink(server, up.ids), self.popular, self.target, weight, total, len(self.bad), self.norm
            )
            if made is None:
                raise UserError(
                    f"{method.name} uploads nothing that has a row for the target; this attack does not apply"
                )
            yield made

    def _measured(self, fleet: SimulatedFleet, server: State) -> tuple[float, float]:
        """ER@10 and NDCG@10 of the users that are nobody's puppets."""
        split, known = self.run.split, self.run.split.known("test")
        honest = torch.ones(split.n_users, dtype=torch.bool)
        members = self.federation.members
        for client in self.bad.tolist():
            honest[torch.from_numpy(members[client])] = False
        shown = without = 0

        def watched() -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal shown, without
            for users, scores in fleet.scores(server, "test"):
                for user, row in zip(users.tolist(), scores, strict=True):
                    if honest[user] and self.target not in known[user]:
                        rivals = row > row[self.target]
                        rivals[torch.from_numpy(known[user])] = False
                        without += 1
                        shown += int(rivals.sum()) < K
                yield users, scores

        evaluator = Evaluator(split, all_of("NDCG@10"))
        ndcg = evaluator(watched(), "test", {"honest": honest}).groups["honest"]["NDCG@10"]
        return shown / max(without, 1), ndcg


def _with_fakes(real: Federation, bad: Tensor, popular: NDArray[np.int64], target: int) -> Federation:
    """The federation in which the attackers' users have made-up histories."""
    split = real.split
    users = [user for client in bad.tolist() for user in real.members[client]]
    length = int(np.median(split.train.lengths))
    made = dict(zip(users, histories(len(users), popular, target, length, real.seed), strict=True))
    train = [made.get(user, split.train[user]) for user in range(split.n_users)]
    barred = [np.sort(made[user]) if user in made else split.barred[user] for user in range(split.n_users)]
    return dataclasses.replace(real, split=dataclasses.replace(split, train=_ragged(train), barred=_ragged(barred)))


def _ragged(lists: list[NDArray[np.int64]]) -> Ragged:
    return Ragged(np.concatenate([[0], np.cumsum([len(x) for x in lists])]), np.concatenate(lists))
