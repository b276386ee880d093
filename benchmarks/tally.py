"""What tally gives and costs: every data set beside its parts, revisions against retraining, growth.

python -m benchmarks.tally table [--data filmtrust,ml-100k] [--seeds 0,1,2] [--methods tally,ease,gfcf,popularity]
python -m benchmarks.tally revise [--data ml-1m] [--users 50]
python -m benchmarks.tally grow [--items 2500,5000,10000,20000] [--users N] [--inputs K]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

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
from tacit.runs.summary import peak_memory_mb

RESULTS = Path(__file__).parent / "results"
DATA = ["filmtrust", "douban-book", "lastfm-2k", "anime-5k", "amazon-beauty", "ml-100k", "ml-1m"]
SHOWN = (("hr", 4), ("ndcg", 4), ("seconds", 0), ("cpu_seconds", 0), ("peak_gb", 2), ("folder_gb", 2))


def fit(method: Tally, federation: Federation) -> tuple[State, float, int]:
    """(server after the upload and one solution, CPU seconds, bytes sent)."""
    fleet, traffic, began = SimulatedFleet(method, federation), Traffic(), time.process_time()
    server = method.init_server(federation)
    everyone = torch.arange(federation.n_clients)
    for round in range(1, 2 + bool(method.inputs)):
        server = method.aggregate(server, fleet.train(server, everyone, round, traffic), Moment(round, 0))
    return server, time.process_time() - began, traffic.bytes_up


def revise(data: str, users: int) -> dict[str, object]:
    """Forget users one after another, compare with a fit that never saw them, then take them in again.

    Fits stand between the revisions, so that both meet the same machine.
    """
    method = Tally(ridge=(0.3,), blend=(0.3,))
    divided = split(load(data), "strict")
    server, seconds, _ = fit(method, Federation.of_users(divided))
    training = [seconds]
    start = {name: server[name].clone() for name in ("B", "E")}
    chosen = rng.generator(0, "revise").permutation(divided.n_users)[:users].tolist()
    forget, back = [], []
    for place, user in enumerate(chosen):
        began = time.process_time()
        server = method.revise(server, divided.orders(user), ())
        forget.append(time.process_time() - began)
        if place == users // 2:
            training.append(fit(method, Federation.of_users(divided))[1])
    kept = np.setdiff1d(np.arange(divided.n_users), chosen)
    fresh, seconds, _ = fit(method, Federation(divided, Ragged(np.arange(len(kept) + 1), kept)))
    training.append(seconds)
    forgotten = {name: float((server[name] - fresh[name]).abs().max()) for name in ("B", "E")}
    del fresh
    for user in chosen:
        began = time.process_time()
        server = method.revise(server, (), divided.orders(user))
        back.append(time.process_time() - began)
    returned = {name: float((server[name] - start[name]).abs().max()) for name in ("B", "E")}
    training.append(fit(method, Federation.of_users(divided))[1])
    lengths = divided.train.lengths[chosen]
    return {
        "data": data,
        "users": users,
        "interactions_a_user": {"mean": float(lengths.mean()), "max": int(lengths.max())},
        "threads": torch.get_num_threads(),
        "training_cpu_seconds": training,
        "forget_cpu_seconds": {"mean": mean(forget), "median": median(forget), "max": max(forget)},
        "update_cpu_seconds": {"mean": mean(back), "median": median(back), "max": max(back)},
        "training_over_forget": {"mean": mean(training) / mean(forget), "median": mean(training) / median(forget)},
        "training_over_update": {"mean": mean(training) / mean(back), "median": mean(training) / median(back)},
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


def grow(items: int, users: int, inputs: int) -> dict[str, object]:
    """One fit and one test evaluation of every user, one time scale, no EASE part."""
    method = Tally(windows=(20,), decays=(0.9,), ridge=(1.0,), blend=(0.0,), inputs=inputs)
    began = time.perf_counter(), time.process_time()
    divided = split(generated(items, users), "strict")
    federation = Federation.of_users(divided)
    row: dict[str, object] = {
        "items": divided.n_items,
        "users": divided.n_users,
        "interactions": len(divided.data),
        "inputs": inputs,
        "threads": torch.get_num_threads(),
    }
    row |= _spent("split", began)
    began = time.perf_counter(), time.process_time()
    server, _, sent = fit(method, federation)
    row |= _spent("fit", began) | {"fit_peak_memory_mb": peak_memory_mb(), "bytes_up_a_client": sent / divided.n_users}
    print(json.dumps(row), file=sys.stderr, flush=True)
    began = time.perf_counter(), time.process_time()
    result = Evaluator(divided)(SimulatedFleet(method, federation).scores(server, "test"), "test")
    return row | _spent("test", began) | {"HR@10": result.main["HR@10"], "peak_memory_mb": peak_memory_mb()}


def _spent(what: str, began: tuple[float, float]) -> dict[str, float]:
    return {f"{what}_seconds": time.perf_counter() - began[0], f"{what}_cpu_seconds": time.process_time() - began[1]}


def each_alone(sizes: list[str], users: str, inputs: int) -> list[dict[str, object]]:
    """Every size in a process of its own: memory is that size's, not the largest so far."""
    rows = []
    for size in sizes:
        number = users or str(10 * int(size))
        asked = [sys.executable, "-m", "benchmarks.tally", "size", "--items", size, "--users", number]
        done = subprocess.run([*asked, "--inputs", str(inputs)], stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout))
    return rows


def table(data: list[str], seeds: list[int], methods: list[str]) -> list[dict[str, Any]]:
    """One run each under `strict`, tally by the bare command; runs that are in the results file are not repeated."""
    path = RESULTS / "tally-table.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    done = {(row["data"], row["method"], row["seed"]) for row in rows}
    for name, seed, method in product(data, seeds, methods):
        if (name, method, seed) not in done:
            rows.append(measured(name, method, seed))
            path.write_text(json.dumps(rows, indent=2) + "\n")
    for name, method in product(data, methods):
        runs = [row for row in rows if (row["data"], row["method"]) == (name, method) and row["seed"] in seeds]
        if runs:
            figures = " | ".join(f"{mean(run[key] for run in runs):.{digits}f}" for key, digits in SHOWN)
            print(f"| {name} | {method} | {len(runs)} | {figures} |")
    return rows


def measured(data: str, method: str, seed: int) -> dict[str, Any]:
    """A run in a process of its own: test metrics, time, processor time, memory and the run folder's size."""
    with TemporaryDirectory() as place:
        asked = [sys.executable, "-m", "tacit", "run", method, "--data", data, "--seed", str(seed), "--json"]
        asked += ["--out", f"{place}/run"] + ([] if method == "tally" else ["--no-sanity"])
        load, began = os.getloadavg()[0], time.perf_counter()
        process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        summary = json.loads(process.stdout.read().splitlines()[-1])
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(asked)} failed")
        size = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    return {
        "data": data,
        "method": method,
        "seed": seed,
        "hr": summary["test"]["HR@10"],
        "ndcg": summary["test"]["NDCG@10"],
        "best_round": summary["best_round"],
        "seconds": time.perf_counter() - began,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_gb": used.ru_maxrss / 1e6,
        "folder_gb": size / 1e9,
        "load_before": load,
    }


def main() -> None:
    """Measure and write benchmarks/results/tally-*.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "revise", "grow", "size"])
    parser.add_argument("--data", default="", help="table: several, with commas (all); revise: one (ml-1m)")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default="tally,ease,gfcf,popularity")
    parser.add_argument("--users", default="", help="revise: how many (50); grow: of each size (ten for every item)")
    parser.add_argument("--items", default="2500,5000,10000,20000")
    parser.add_argument("--inputs", type=int, default=0, help="grow: items that histories are made of; 0: all")
    parser.add_argument("--name", default="", help="of the results file; what is measured by default")
    asked = parser.parse_args()
    found: object
    if asked.what == "size":
        print(json.dumps(grow(int(asked.items), int(asked.users), asked.inputs)))
        return
    RESULTS.mkdir(exist_ok=True)
    if asked.what == "table":
        seeds = [int(seed) for seed in asked.seeds.split(",")]
        table(asked.data.split(",") if asked.data else DATA, seeds, asked.methods.split(","))
        return
    if asked.what == "revise":
        found = revise(asked.data or "ml-1m", int(asked.users or 50))
    else:
        found = each_alone(asked.items.split(","), asked.users, asked.inputs)
    (RESULTS / f"tally-{asked.name or asked.what}.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
