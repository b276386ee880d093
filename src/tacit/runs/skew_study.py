"""PFedCLR's study of user embedding skew: the same users with averaging, without it, and with a buffer against it."""

import csv
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.config import config
from tacit.core.rounds import Plan, Progress, sample
from tacit.core.trained import Trained
from tacit.evaluation.skew import Accumulated, Balance, Sum, balance
from tacit.runs.experiments import slug
from tacit.runs.run import Run, Watch, start

CLIENTS = 256  # whose skew is measured in a round, at most
PFEDCLR = {"epochs": 10, "optimizer": "adam", "lr": 0.01, "table_lr": 0.0, "init": 0.01}  # its setting of FedMF
GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "with averaging": ("fedmf", PFEDCLR | {"scored_with": "own", "aggregated": 0.6}),
    "alone": ("localmf", PFEDCLR),
    "AF": ("pfedclr", {"variant": "af"}),
    "CF": ("pfedclr", {"variant": "cf"}),
    "PFedCLR": ("pfedclr", {}),
}


@dataclass(frozen=True)
class Group:
    """One way of training the same users."""

    name: str
    balances: list[Balance | None]  # by round; None where nothing is averaged, or ranked with the server's table
    vectors: NDArray[np.float32]  # (rounds, users, d)
    valid: list[float]  # HR@10 by round
    sums: Sequence[Sum | None] = ()  # Lemma 3.3 by round, where there are balances


def study(
    out: Path, data: str, users: int, rounds: int, begin: Callable[[str], Watch] | None = None, **options: Any
) -> list[Group]:
    """Train all groups and write `skew.jsonl`, one line per round, and `trajectories.csv`, one per user and round."""
    groups = []
    for name, (method, settings) in GROUPS.items():
        asked = config(method=method, data=data, rounds=rounds, settings=settings, checkpoint_every=rounds, **options)
        run = start(asked, out / slug(name))
        groups.append(_follow(name, run, _followed(run, users), begin(name) if begin else None))
    with (out / "skew.jsonl").open("w") as file:
        for group in groups:
            for number, (valid, *found) in enumerate(zip(group.valid, group.balances, group.sums, strict=True), 1):
                terms = {name: x for one in found if one for name, x in dataclasses.asdict(one).items()}
                file.write(json.dumps({"group": group.name, "round": number, "valid HR@10": valid, **terms}) + "\n")
    _write_trajectories(out / "trajectories.csv", groups, _followed(run, users), run)
    return groups


def apart(one: Group, other: Group) -> list[float]:
    """By round, the mean over users of the distance between their vectors, against the length of the first."""
    gap = np.linalg.norm(one.vectors - other.vectors, axis=2)
    return [float(x) for x in (gap / np.maximum(np.linalg.norm(one.vectors, axis=2), 1e-12)).mean(1)]


def _followed(run: Run, users: int) -> Tensor:
    return sample(run.split.n_users, max(users, 2), run.config.seed, 0)[:users]


def _follow(name: str, run: Run, users: Tensor, watch: Watch | None) -> Group:
    balances: list[Balance | None] = []
    vectors: list[NDArray[np.float32]] = []
    valid: list[float] = []
    sums: list[Sum | None] = []
    rate = run.method.lr if isinstance(run.method, Trained) else 0.0
    accumulated = Accumulated(rate)
    measured = sample(run.split.n_users, CLIENTS, run.config.seed, 0)
    label = run.fleet.federation.people(measured).history()[:, 0]  # (N, M)

    def follow(progress: Progress, plan: Plan) -> None:
        leaves = run.fleet.store.leaves
        vectors.append(leaves["user"][users].numpy().copy())
        found = progress.history[-1].valid
        valid.append(found["HR@10"] if found else float("nan"))
        if "own_items" in leaves:
            terms = (leaves["user"][measured], leaves["own_items"][measured], progress.server["items"], label)
            balances.append(balance(*terms, rate))
            sums.append(accumulated.add(*terms))
        else:
            balances.append(None)
            sums.append(None)
        if watch:
            watch(progress, plan)

    run.go_on(follow)
    return Group(name, balances, np.stack(vectors), valid, sums)


def _write_trajectories(path: Path, groups: list[Group], users: Tensor, run: Run) -> None:
    """All vectors of a user, from all groups, on one plane by t-SNE, as the paper's figures show them."""
    from sklearn.manifold import TSNE

    rounds = len(groups[0].valid)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "group", "round", "x", "y"])
        for place, user in enumerate(users.tolist()):
            together = np.concatenate([group.vectors[:, place] for group in groups])  # (groups · rounds, d)
            perplexity = min(30.0, (len(together) - 1) / 3)
            plane = TSNE(2, perplexity=perplexity, init="pca", random_state=run.config.seed).fit_transform(together)
            for number, (x, y) in enumerate(plane.tolist()):
                group = groups[number // rounds].name
                user_id = str(run.split.data.user_ids[user])
                writer.writerow([user_id, group, number % rounds + 1, f"{x:.4f}", f"{y:.4f}"])


def every(rounds: int) -> list[int]:
    """The rounds a person reads: the first, a few between, the last."""
    return sorted({1, *(torch.linspace(1, rounds, 11).round().long().tolist())})
