"""Validation's share of a run's CPU: `python -m benchmarks.validation [--before SRC]`.

`SRC` is the `src` folder of another version of tacit, whose figures then stand beside those of this one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROUNDS = 7  # after one to warm up
SOURCES = Path(__file__).parents[1] / "src"


def main() -> None:
    """Measure each version in a process of its own, on one thread."""
    parser = argparse.ArgumentParser(prog="benchmarks.validation", description=__doc__)
    parser.add_argument("--methods", default="fedmf,fedncf")
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--before", type=Path, help="the src folder of another version")
    parser.add_argument("--here", help=argparse.SUPPRESS)  # the method that this process measures
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measured(args.here, args.data)))
        return
    for method in args.methods.split(","):
        for name, sources in {"before": args.before, "now": SOURCES}.items():
            if sources is None:
                continue
            paths = os.pathsep.join(map(str, (sources.resolve(), Path(__file__).parents[1])))
            command = [sys.executable, "-m", "benchmarks.validation", "--here", method, "--data", args.data]
            there = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=there)
            train, valid, value = json.loads(done.stdout)
            share = valid / (train + valid)
            print(
                f"{method:8} {name:6}  a round {1e3 * train:5.0f} ms, its validation {1e3 * valid:5.1f} ms of CPU: "
                f"{share:4.0%};  NDCG@10 {value:.6f}"
            )


def measured(name: str, data: str) -> tuple[float, float, float]:
    """CPU seconds of a round and of its validation, medians, and what the last one found."""
    import torch

    from tacit.core.fleet import SimulatedFleet, Traffic
    from tacit.core.method import Moment
    from tacit.core.rounds import sample
    from tacit.core.trained import Trained
    from tacit.data.cohort import Federation
    from tacit.data.sources import load
    from tacit.data.splits import split
    from tacit.evaluation.protocol import Evaluator
    from tacit.methods import find

    torch.set_num_threads(1)
    method, federation = find(name)(), Federation.of_users(split(load(data), "strict"))
    assert isinstance(method, Trained), "what does not train has no rounds to compare"
    fleet, evaluator = SimulatedFleet(method, federation, threads=1, sums=True), Evaluator(federation.split)
    options = {"sampled_too": False} if "sampled_too" in Evaluator.__call__.__annotations__ else {}
    server, trained, validated, value = method.init_server(federation), [], [], 0.0
    for round in range(1, ROUNDS + 2):
        start = time.process_time()
        ids = sample(federation.n_clients, method.fraction, 0, round)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
        middle = time.process_time()
        value = evaluator(fleet.scores(server, "valid"), "valid", **options).main["NDCG@10"]
        trained.append(middle - start)
        validated.append(time.process_time() - middle)
    return median(trained[1:]), median(validated[1:]), value


if __name__ == "__main__":
    main()
