"""Virtual nodes on Ray, through Flower's simulation engine: a simulation across processes or machines.

A virtual node carries a shard of the users of a data set and is a `Node` like a real one. Any of Ray's workers may be
handed its next message, so that its private state is in its folder, which all of them must reach.
"""

import dataclasses
import importlib.util
import time
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tacit.data.interactions import Interactions
from tacit.data.sources import load
from tacit.deploy.node import Node
from tacit.deploy.server import Asked, prepare, run
from tacit.errors import UserError
from tacit.evaluation.protocol import validated
from tacit.runs.run import Summary, Watch

REFRESH = 0.05  # seconds between two looks for replies


def simulate(asked: Asked, path: Path, cpus: float = 1.0, watch: Watch | None = None, **ray: Any) -> Summary:
    """Run `asked.nodes` virtual nodes over shards of its data set; `ray` is what Ray is started with."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("virtual nodes need Ray; install it with: pip install 'tacit[ray]'")
    if asked.config.secure:
        raise UserError("virtual nodes keep nothing in memory between messages; simulate it with tacit run --secure")
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from tacit.deploy.flower import blob_of, content

    config = asked.config
    data = load(config.data, config.min_interactions)
    if not 1 <= asked.nodes <= data.n_users:
        raise UserError(f"{config.data} has {data.n_users:,} users: nodes={asked.nodes} is too many")
    validated(data.n_users, config.seed, config.evaluate_users)  # refused before anything starts
    titles = None if data.titles is None else tuple(map(str, data.titles))
    # a worker that starts has everything to read before it can say who it is; and no virtual node is a stranger
    terms = dataclasses.replace(asked.terms, greeting=asked.terms.deadline, most_users=data.n_users)
    asked = dataclasses.replace(asked, terms=terms)
    folder, job = prepare(asked, path, (tuple(map(str, data.item_ids)), titles))
    users = data.n_users  # a number: what `answer` refers to goes to every worker
    where = str((path / "nodes").resolve())
    outcome: list[Summary | BaseException] = []
    client, server = ClientApp(), ServerApp()

    def answer(message: Message, context: Context) -> Message:
        number, total = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
        node = _node(config.data, config.min_interactions, where, number, total, config.method)
        node.validated = _some(users, config.seed, config.evaluate_users, number, total)
        return Message(content(node.answer(blob_of(message))), reply_to=message)

    def main(grid: Grid, context: Context) -> None:
        try:
            outcome.append(run(asked, folder, job, OverGrid(grid), watch))
        except BaseException as error:
            outcome.append(error)

    client.train()(answer)  # called, not as decorators: these are typed only where Flower is installed
    server.main()(main)
    run_simulation(
        server, client, asked.nodes, backend_config={"client_resources": {"num_cpus": cpus}, "init_args": ray}
    )
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class OverGrid:
    """Flower's grid as a link to nodes."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def nodes(self) -> dict[int, str | None]:
        """All of them, from the start."""
        return dict.fromkeys(self.grid.get_node_ids())

    def ask(self, messages: Mapping[int, bytes], seconds: Mapping[int, float]) -> Iterator[tuple[int, bytes]]:
        """Send, and yield replies as they come until all are there or the time is up."""
        from flwr.app import Message, MessageType

        from tacit.deploy.flower import blob_of, content

        most = max(seconds.values())
        until = time.monotonic() + most
        made = [Message(content(blob), node, MessageType.TRAIN, ttl=most + 600) for node, blob in messages.items()]
        waiting = set(self.grid.push_messages(made))
        while waiting:
            late = time.monotonic() > until
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    yield reply.metadata.src_node_id, blob_of(reply)
            if late:
                return
            time.sleep(REFRESH)


def names(total: int) -> list[str]:
    """What virtual nodes are called: in the order of their users, so that these have the numbers of `tacit run`."""
    return [f"n{number:0{len(str(total - 1))}d}" for number in range(total)]


@lru_cache(maxsize=8)
def _some(users: int, seed: int, asked: int | None, number: int, total: int) -> Tensor | None:
    """Whom of a node's users validation ranks for, None: all; over all nodes those of `tacit run`."""
    some = validated(users, seed, asked)
    mine = np.array_split(np.arange(users), total)[number]
    return None if some is None else some[(some >= int(mine[0])) & (some <= int(mine[-1]))]


@lru_cache(maxsize=8)
def _node(data: str, least: int, folder: str, number: int, total: int, method: str) -> Node:
    """A node in this worker; what it has in memory is no newer than its folder, which it looks at first."""
    whole, name = _whole(data, least), names(total)[number]
    users = np.array_split(np.arange(whole.n_users), total)[number]
    own = whole.only((whole.user >= users[0]) & (whole.user <= users[-1]))
    own = dataclasses.replace(own, titles=None, repeats=None)
    return Node(own, Path(folder) / name, name, threads=1, allow=(method,))


@cache
def _whole(data: str, least: int) -> Interactions:
    return load(data, least)
