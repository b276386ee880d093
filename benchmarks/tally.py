"""What tally costs: revisions against retraining, and growth with items and interactions.

python -m benchmarks.tally revise [--data ml-1m] [--users 50]
python -m benchmarks.tally grow [--items 2500,5000,10000,20000]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from tacit import rng
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import State
from tacit.data.cohort import Federation
from tacit.data.interactions import Interactions, from_columns
from tacit.data.ragged import Ragged
from tacit.data.sources import load
from tacit.data.splits import split
from tacit.evaluation.protocol import Evaluator
from tacit.methods.tally import Tally
from tacit.runs.run import peak_memory_mb

RESULTS = Path(__file__).parent / "results"


def fit(method: Tally, federation: Federation) -> tuple[State, float, int]:
    """(server after one upload and one solution, CPU seconds, bytes sent)."""
    fleet, traffic, began = SimulatedFleet(method, federation), Traffic(), time.process_time()
    server = method.init_server(federation)
    server = method.aggregate(server, fleet.train(server, torch.arange(federation.n_clients), 1, traffic), Moment(1, 0))
    return server, time.process_time() - began, traffic.bytes_up


def revise(data: str, users: int) -> dict[str, object]:
    """Forget users one after another, compare with a fit that never saw them, then take them in again."""
    method = Tally(ridge=(0.3,), blend=(0.3,))
    divided = split(load(data), "strict")
    trained, training, _ = fit(method, Federation.of_users(divided))
    start = {name: trained[name].clone() for name in ("B", "E")}
    chosen = rng.generator(0, "revise").permutation(divided.n_users)[:users].tolist()
    nothing = np.zeros(0, dtype=np.int64)
    server, costs = trained, []
    for user in chosen:
        began = time.process_time()
        server = method.revise(server, divided.train[user], nothing)
        costs.append(time.process_time() - began)
    kept = [u for u in range(divided.n_users) if u not in set(chosen)]
    fresh, _, _ = fit(method, Federation(divided, Ragged(np.arange(len(kept) + 1), np.array(kept))))
    forgotten = {name: float((server[name] - fresh[name]).abs().max()) for name in ("B", "E")}
    del fresh
    back = []
    for user in chosen:
        began = time.process_time()
        server = method.revise(server, nothing, divided.train[user])
        back.append(time.process_time() - began)
    returned = {name: float((server[name] - start[name]).abs().max()) for name in ("B", "E")}
    return {
        "data": data,
        "users": users,
        "training_cpu_seconds": training,
        "forget_cpu_seconds": {"mean": float(np.mean(costs)), "median": float(np.median(costs)), "max": max(costs)},
        "update_cpu_seconds": {"mean": float(np.mean(back)), "median": float(np.median(back)), "max": max(back)},
        "training_over_forget": training / float(np.mean(costs)),
        "training_over_update": training / float(np.mean(back)),
        "difference_after_forgetting": forgotten,
        "difference_after_return": returned,
        "peak_memory_mb": peak_memory_mb(),
    }


def generated(items: int, users: int, length: int = 50) -> Interactions:
    """Users with `length` distinct items each, popularity falling as 1 / rank^0.8."""
    generator = rng.generator(0, "grow")
    weight = np.cumsum(1 / np.arange(1, items + 1) ** 0.8)
    drawn = np.searchsorted(weight / weight[-1], generator.random(users * length))
    user = np.repeat(np.arange(users), length)
    return from_columns("generated", user, drawn, np.tile(np.arange(length, dtype=np.float64), users))


def grow(sizes: list[int]) -> list[dict[str, object]]:
    """One fit and one test evaluation at each size, ten users for every item, one time scale."""
    method = Tally(windows=(20,), decays=(0.9,), ridge=(1.0,), blend=(0.0,))
    rows: list[dict[str, object]] = []
    for items in sizes:
        began = time.perf_counter()
        divided = split(generated(items, 10 * items), "strict")
        federation = Federation.of_users(divided)
        made = time.perf_counter() - began
        began = time.perf_counter()
        server, cpu, sent = fit(method, federation)
        fitted = time.perf_counter() - began
        fleet = SimulatedFleet(method, federation)
        began = time.perf_counter()
        result = Evaluator(divided)(fleet.scores(server, "test"), "test")
        row: dict[str, object] = {
            "items": divided.n_items,
            "users": divided.n_users,
            "interactions": len(divided.data),
            "seconds_to_split": made,
            "seconds_to_fit": fitted,
            "cpu_seconds_to_fit": cpu,
            "seconds_to_test": time.perf_counter() - began,
            "bytes_up_per_client": sent / divided.n_users,
            "HR@10": result.main["HR@10"],
            "peak_memory_mb": peak_memory_mb(),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Measure and write benchmarks/results/tally-*.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["revise", "grow"])
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--items", default="2500,5000,10000,20000")
    asked = parser.parse_args()
    found = (
        revise(asked.data, asked.users) if asked.what == "revise" else grow([int(n) for n in asked.items.split(",")])
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"tally-{asked.what}.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
