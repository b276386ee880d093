"""One node of three pushes an item: what it gets with one upload for all its clients, and with one for each.

    python -m benchmarks.poisoned [--data ml-100k] [--honest 8] [--rounds 2]

Nodes and server are the real ones, in one process and without a network. After the honest rounds the last node sends,
from the same state for every row, what `tacit audit --poison` calls boosted: the target's row as far as it likes, the
weight that it announced and, where it folds, whatever it likes about how far its clients moved.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.core.bounds import BOUND, USUAL, usual
from tacit.core.fleet import Guard, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, State, decode
from tacit.data.interactions import Interactions, from_columns
from tacit.data.sources import load
from tacit.deploy.fleet import FlowerFleet, Terms
from tacit.deploy.job import Job
from tacit.deploy.node import Node
from tacit.deploy.wire import Packet, unpack
from tacit.privacy.poison import POPULAR, poisoned, rare_item

RESULTS = Path(__file__).parent / "results" / "poisoned.json"
NODES, K = 3, 10
FAR = 1e6  # how far the node says that its clients moved


class Single(FlowerFleet):
    """A server that asks for every client's own upload."""

    def _folds(self, like: Payload) -> bool:
        return False


class Link:
    """Nodes in this process; `spoil` is what the last one sends in place of its reply."""

    def __init__(self, nodes: list[Node]) -> None:
        self.named, self.spoil = nodes, lambda asked, reply: reply

    def nodes(self) -> dict[int, str | None]:
        return {place: node.name for place, node in enumerate(self.named)}

    def ask(self, messages: Mapping[int, bytes], seconds: Any) -> Iterator[tuple[int, bytes]]:
        for place, blob in messages.items():
            reply = self.named[place].answer(blob)
            yield place, self.spoil(blob, reply) if place == NODES - 1 else reply


def shard(data: Interactions, users: np.ndarray) -> Interactions:
    mine = np.isin(data.user, users)
    times = None if data.time is None else data.time[mine]
    return from_columns("own", data.user_ids[data.user[mine]], data.item_ids[data.item[mine]], times)


def attack(data: Interactions, sizes: torch.Tensor, target: int) -> Callable[[bytes, bytes], bytes]:
    """What a node that owns the last third of the clients sends to have the target in all lists."""
    popular = np.argsort(-np.bincount(data.item, minlength=data.n_items), kind="stable")[:POPULAR]
    total = float(sizes.sum())

    def spoil(asked: bytes, reply: bytes) -> bytes:
        packet = unpack(reply)
        if packet.kind != "trained":
            return reply
        up, down = decode(packet.body), decode(unpack(asked).body)
        first, weight = torch.arange(1), sizes[down.ids].sum()[None]
        made = poisoned(up.only(first), down.only(first), popular, target, weight, total, 1, 0.0)
        assert made is not None
        fields = dict(made.fields)
        if len(up.ids) > 1:  # the same from every client
            fields = {n: Each(torch.cat([f.dense()] * len(up.ids)), f.private) for n, f in fields.items()}
            fields["weight"] = Each(sizes[up.ids], False)
        said = {n: Each(torch.full_like(f.dense(), FAR), False) for n, f in up.fields.items() if n.startswith(USUAL)}
        return Packet(packet.kind, packet.head, Payload(up.ids, fields | said).encode()).pack()

    return spoil


def play(fleet: FlowerFleet, server: State, first: int, rounds: int) -> State:
    """The server's state after these rounds with all clients."""
    for round in range(first, first + rounds):
        traffic = Traffic()
        uploads = fleet.train(server, torch.arange(fleet.federation.n_clients), round, traffic)
        server = fleet.method.aggregate(server, uploads, Moment(round, 0)) | usual(traffic.norms)
    return server


def exposure(link: Link, server: State, target: int) -> float:
    """ER@10 over the users of the honest nodes who do not have the target."""
    shown = without = 0
    for node in link.named[:-1]:
        assert node.work is not None
        known = node.work.shard.federation.split.known("test")
        for users, scores in node.work.fleet.scores(server, "test"):
            for user, row in zip(users.tolist(), scores, strict=True):
                if target not in known[user]:
                    rivals = row > row[target]
                    rivals[torch.from_numpy(known[user])] = False
                    without, shown = without + 1, shown + (int(rivals.sum()) < K)
    return shown / max(without, 1)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--data", default="ml-100k")
    asked.add_argument("--honest", type=int, default=8)
    asked.add_argument("--rounds", type=int, default=2)
    options = asked.parse_args()
    torch.set_num_threads(1)
    data = load(options.data)
    target = rare_item(np.bincount(data.item, minlength=data.n_items), 6, 0)
    job = Job("fedmf", {}, "strict", 0, tuple(map(str, data.item_ids)))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        parts = np.array_split(np.arange(data.n_users), NODES)
        nodes = [Node(shard(data, own), Path(folder) / f"n{i}", f"n{i}", threads=1) for i, own in enumerate(parts)]
        link = Link(nodes)
        fleet = FlowerFleet(link, job, job.build(), Terms())
        assert fleet.gather(NODES, 60)
        fleet.guard, fleet.best_round = Guard(BOUND), lambda: options.honest
        start = play(fleet, fleet.method.init_server(fleet.federation), 1, options.honest)
        spoil = attack(data, torch.from_numpy(fleet.federation.sizes).float(), target)
        for bad, kind, bound in (
            (False, FlowerFleet, BOUND),
            (True, Single, BOUND),
            (True, FlowerFleet, BOUND),
            (True, Single, 0.0),
            (True, FlowerFleet, 0.0),
        ):
            fleet = kind(link, job, fleet.method, fleet.terms, fleet.members)
            assert fleet.gather(NODES, 60)
            fleet.guard, fleet.best_round = Guard(bound), lambda: options.honest
            link.spoil = spoil if bad else lambda asked, reply: reply
            server = play(fleet, dict(start), options.honest + 1, options.rounds)
            link.spoil = lambda asked, reply: reply
            moved = float((server["items"][target] - start["items"][target]).norm())
            found.append(
                {
                    "uploads": "single" if kind is Single else "one",
                    "attack": bad,
                    "bound": bound,
                    "exposure": exposure(link, server, target),
                    "target_moved": moved,
                    "refused": fleet.count.refused,
                }
            )
            print(json.dumps(found[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({**vars(options), "target": target, "plays": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
