"""What a secure sum costs: one of the size of MovieLens-100K's table, and how the cost of a client grows with others.

python -m benchmarks.secure table [--clients 566] [--values 26913]
python -m benchmarks.secure grow [--clients 100,400,1600] [--values 26913]
"""

import argparse
import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import machine
from tacit.privacy.fixed_point import FixedPoint
from tacit.privacy.secure_sum import DROPOUTS, STAGES, Stage, simulate

RESULTS = Path(__file__).parent / "results"
BOUND = 2.0**20


def one_sum(clients: int, values: int, drops: Stage | None = None) -> dict[str, Any]:
    """The whole protocol with everybody's work in one process; 30% drop out at a stage, or nobody."""
    drawn = np.random.default_rng(0)
    vectors = drawn.normal(size=(16, values))  # the clients' own would need gigabytes
    gone = drawn.permutation(clients)[: int(DROPOUTS * clients)].tolist() if drops else []
    point = FixedPoint(BOUND, clients)
    words = [point.encode(v) for v in vectors]
    wall, cpu = time.perf_counter(), time.process_time()
    done = simulate(range(clients), ((i, words[i % 16]) for i in range(clients)), {drops: gone} if drops else {})
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    times = np.bincount([i % 16 for i in done.clients], minlength=16)
    error = np.abs(point.decode(done.total) - times @ vectors).max()
    return {
        "clients": clients,
        "values": values,
        "dropouts": len(gone),
        "at": drops,
        "neighbours": done.degree,
        "threshold": done.threshold,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "cpu_ms_a_client": 1000 * cpu / clients,
        "bytes_up_a_client": done.bytes_up / clients,
        "bytes_down_a_client": done.bytes_down / clients,
        "bytes_beside_the_vector": (done.bytes_up + done.bytes_down - 8 * values * len(done.clients)) / clients,
        "largest_error": float(error),
        "step": point.step,
    }


def grow(sizes: list[int], values: int) -> dict[str, Any]:
    """The same sum with more and more clients, and what twice as many of them add to a client's cost."""
    rows = [one_sum(n, values) for n in sizes]
    added = [
        (b["cpu_ms_a_client"] - a["cpu_ms_a_client"]) / math.log2(b["clients"] / a["clients"])
        for a, b in pairwise(rows)
    ]
    return {"rows": rows, "cpu_ms_a_client_added_by_a_doubling": added}


def main() -> None:
    """Measure and write benchmarks/results/secure-*.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "grow"])
    parser.add_argument("--clients", default="")
    parser.add_argument(
        "--values", type=int, default=1682 * 16 + 1, help="of a client: a table of width 16 and a weight"
    )
    asked = parser.parse_args()
    found: object
    if asked.what == "table":
        clients = int(asked.clients or 566)
        found = [one_sum(clients, asked.values, drops) for drops in (None, *STAGES)]
    else:
        found = grow([int(n) for n in (asked.clients or "100,400,1600").split(",")], asked.values)
    content = {"machine": machine(), "measured": found}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"secure-{asked.what}.json").write_text(json.dumps(content, indent=2) + "\n")
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
