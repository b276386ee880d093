"""The engine's four figures: against a plain loop, on two threads, on a larger data set, over more clients."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Round, in_turns
from benchmarks.memory import in_fresh_process
from benchmarks.plain import devices, plain_round
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Method, Moment
from tacit.core.workers import single_threaded_torch
from tacit.data.cohort import Federation

Figures = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    repeats: int = 5
    plain_clients: int = 60  # timed in the plain loop and scaled by samples; 0: all of them
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the clients, for linearity


def spread_over(round: Round, count: int) -> Tensor:
    """`count` of a round's clients, evenly over their order by length; 0 gives all."""
    by_length = round.ids[torch.from_numpy(np.argsort(round.fleet.federation.sizes[round.ids.numpy()], kind="stable"))]
    if not 0 < count < len(by_length):
        return by_length
    return by_length[((torch.arange(count) + 0.5) * len(by_length) / count).long()]


def difference(method: Method, federation: Federation, ids: Tensor) -> float:
    """Largest difference between engine and plain loop after a round on the same batches, tables and users."""
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    engine = method.aggregate(server, fleet.train(server, ids, 1, Traffic()), Moment(1, 0))["items"]
    with single_threaded_torch():
        same = devices(method, federation, ids, 1, same_batches=True)
        plain, users = plain_round(server["items"], same, method.lr)
    return max(float((engine - plain).abs().max()), float((fleet.store.leaves["user"][ids] - users).abs().max()))


def against_plain(method: Method, federation: Federation, effort: Effort) -> Figures:
    """CPU seconds of a round, the engine on one thread and the plain loop."""
    engine = Round(method, federation)
    ids = spread_over(engine, effort.plain_clients)
    loop = devices(method, federation, ids, 1, same_batches=False)
    samples = engine.interactions * (1 + method.negatives)
    scale = samples / sum(device.samples for device in loop)

    def plain() -> None:
        with single_threaded_torch():
            plain_round(engine.server["items"], loop, method.lr)

    times = in_turns({"engine": engine, "plain": plain}, effort.repeats)
    engine_cpu, plain_cpu = times["engine"].median_cpu, scale * times["plain"].median_cpu
    return {
        "clients": len(engine.ids),
        "samples": samples,
        "engine_cpu": engine_cpu,
        "engine_cpu_each": times["engine"].cpu,
        "plain_cpu": plain_cpu,
        "plain_cpu_each": [scale * seconds for seconds in times["plain"].cpu],
        "plain_clients": len(ids),  # timed; the rest is scaled by samples
        "plain_scale": scale,
        "ratio": plain_cpu / engine_cpu,
        "difference": difference(method, federation, ids),
    }


def larger(method: Method, small: Federation, large: Federation, effort: Effort) -> Figures:
    """CPU seconds of a round on a larger data set against the smaller, and its peak memory."""
    works = {"small": Round(method, small), "large": Round(method, large)}
    times = in_turns(works, min(effort.repeats, 3))
    cpu = {name: t.median_cpu for name, t in times.items()}
    return {
        "small_cpu": cpu["small"],
        "large_cpu": cpu["large"],
        "large_clients": len(works["large"].ids),
        "ratio": cpu["large"] / cpu["small"],
        "interactions_ratio": works["large"].interactions / works["small"].interactions,
        "large_cpu_each": times["large"].cpu,
        "memory": in_fresh_process(large.split.data.name, method.epochs),
    }


def linearity(method: Method, federation: Federation, effort: Effort) -> list[Figures]:
    """CPU microseconds per training interaction as more clients take part."""
    works = {str(s): Round(dataclasses.replace(method, fraction=s), federation) for s in effort.shares}
    times = in_turns(works, effort.repeats)
    return [
        {
            "share": float(share),
            "clients": len(work.ids),
            "interactions": work.interactions,
            "cpu": times[share].median_cpu,
            "us_per_interaction": 1e6 * times[share].median_cpu / work.interactions,
        }
        for share, work in works.items()
    ]
