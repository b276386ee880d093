"""Nodes in this process behind a link without a network: the same bytes, none of the waiting."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tacit.data.interactions import Interactions, from_columns
from tacit.deploy.fleet import FlowerFleet, Terms
from tacit.deploy.job import Job
from tacit.deploy.node import Node

Spoil = Callable[[bytes], bytes | None]  # what a node really sends; None: nothing


class Direct:
    def __init__(self, nodes: dict[str, Node]) -> None:
        self.named = nodes
        self.gone: set[str] = set()
        self.spoil: dict[str, Spoil] = {}
        self.seen: list[tuple[str, bytes, bytes]] = []

    def nodes(self):
        return {i: None for i, name in enumerate(self.named) if name not in self.gone}

    def ask(self, messages, seconds):
        for i, blob in messages.items():
            name = list(self.named)[i]
            if name in self.gone:
                continue
            reply = self.named[name].answer(blob)
            if name in self.spoil:
                reply = self.spoil[name](reply)
            if reply is not None:
                self.seen.append((name, blob, reply))
                yield i, reply


def cut(data: Interactions, users: np.ndarray) -> Interactions:
    """The interactions of some users, as their own file would have them."""
    kept = np.isin(data.user, users)
    time = None if data.time is None else data.time[kept]
    groups = None if data.groups is None else dict(zip(data.user_ids.tolist(), data.groups.tolist(), strict=True))
    return from_columns("own", data.user_ids[data.user[kept]], data.item_ids[data.item[kept]], time, groups=groups)


def shards(data: Interactions, parts: int) -> list[Interactions]:
    """Neighbouring users on one node: numbers are then those of the simulation."""
    return [cut(data, users) for users in np.array_split(np.arange(data.n_users), parts)]


def job_of(data: Interactions, method: str, settings: dict | None = None, **options) -> Job:
    return Job(method, settings or {}, options.pop("protocol", "strict"), 0, tuple(data.item_ids.tolist()), **options)


def federation_of(folder: Path, data: Interactions, job: Job, parts: int = 3, **terms) -> tuple[FlowerFleet, Direct]:
    nodes = {f"n{i}": Node(own, folder / f"n{i}", f"n{i}", threads=1) for i, own in enumerate(shards(data, parts))}
    link = Direct(nodes)
    fleet = FlowerFleet(link, job, job.build(), Terms(**{"deadline": 5.0, **terms}))
    assert fleet.gather(parts, 5)
    return fleet, link


def items_file(path: Path, data: Interactions) -> Path:
    path.write_text("item\n" + "".join(f"{item}\n" for item in data.item_ids))
    return path
