"""What a million clients cost: `python -m benchmarks.million`.

Made-up users (`benchmarks.crowd`) are imported, and FedMF, PFedRec and tally run on them, each in a process of its own
on one thread: CPU seconds and peak memory of the import, the start, a round of as many clients for every number of
users, a validation, a checkpoint, and of tally as a whole. What is said for a client or an interaction should not
depend on how many others there are.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.crowd import crowd
from benchmarks.memory import peak_mb

ROUNDS = 3  # the first, with everything still cold, is left out
SETTINGS: dict[str, dict[str, Any]] = {"fedmf": {}, "pfedrec": {"scored_with": "server"}}

TALLY = {"windows": "1,20", "decays": "1,0.9", "inputs": 1000, "ridge": 1, "blend": 0.5}  # one solution, no choice


def main() -> None:
    """Measure and write the figures down."""
    parser = argparse.ArgumentParser(prog="benchmarks.million", description=__doc__)
    parser.add_argument("--users", default="10000,100000,1000000", help="numbers of users (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=10_000, help="of a round (default: %(default)s)")
    parser.add_argument("--work", default="import,fedmf,pfedrec,tally", help="what to measure (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("crowd"), help="where data and results go")
    parser.add_argument("--here", help=argparse.SUPPRESS)  # the work and users of this process
    args = parser.parse_args()
    os.environ["TACIT_CACHE"] = str(args.folder.resolve() / "cache")
    if args.here:
        work, users = args.here.split(":")
        print(json.dumps(here(work, int(users), args.clients, args.folder) | {"peak_mb": peak_mb()}))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for users in map(int, args.users.split(",")):
        if not (args.folder / f"{users}.parquet").exists():
            crowd(users, args.folder / f"{users}.parquet")
        for work in args.work.split(","):
            figures = in_fresh_process(work, users, args.clients, args.folder)
            print(f"{users:>9,} users, {work}: {json.dumps(figures)}", flush=True)
            with (args.folder / "figures.jsonl").open("a") as file:
                file.write(json.dumps({"users": users, "work": work} | figures) + "\n")


def in_fresh_process(work: str, users: int, clients: int, folder: Path) -> dict[str, Any]:
    """The figures of one piece of work."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.million", "--here", f"{work}:{users}"]
    command += ["--clients", str(clients), "--folder", str(folder)]
    one = {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | one)
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def here(work: str, users: int, clients: int, folder: Path) -> dict[str, Any]:
    """The same in this process."""
    if work == "import":
        return importing(folder / f"{users}.parquet", f"crowd{users}")
    return tally(users) if work == "tally" else rounds(work, users, clients)


def importing(path: Path, name: str) -> dict[str, Any]:
    """CPU seconds, and microseconds an interaction."""
    from tacit.data.imported import import_file

    cpu, wall = time.process_time(), time.perf_counter()
    data = import_file(path, name, replace=True)
    cpu = time.process_time() - cpu
    return {"cpu": cpu, "wall": time.perf_counter() - wall, "interactions": len(data), "us_each": 1e6 * cpu / len(data)}


def rounds(method: str, users: int, clients: int) -> dict[str, Any]:
    """A start, and the medians of a few rounds: CPU seconds of training, of validation and of a checkpoint."""
    import torch

    from tacit.config import config
    from tacit.core.fleet import Traffic
    from tacit.core.method import Moment
    from tacit.core.rounds import Progress, sample
    from tacit.evaluation.protocol import Evaluator, validated
    from tacit.runs.run import start

    torch.set_num_threads(1)
    out: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        began = time.process_time()
        settings = SETTINGS[method] | {"fraction": clients}
        asked = config(method=method, data=f"crowd{users}", threads=1, mapped=True, settings=settings)
        run = start(asked, Path(place) / "run")
        federation, evaluator = run.fleet.federation, Evaluator(run.split)
        server, some = run.method.init_server(federation), validated(users, 0, min(users, 10_000))
        out["start_cpu"] = time.process_time() - began
        spent: dict[str, list[float]] = {"round": [], "validation": [], "checkpoint": []}
        trained = 0
        for number in range(1, ROUNDS + 1):
            marks = [time.process_time()]
            ids = sample(federation.n_clients, clients, 0, number)
            uploads = run.fleet.train(server, ids, number, Traffic())
            server = run.method.aggregate(server, uploads, Moment(number, 0))
            marks.append(time.process_time())
            evaluator(run.fleet.scores(server, "valid", some), "valid", sampled_too=False)
            marks.append(time.process_time())
            run.folder.save(Progress(server, number), run.fleet.store.kept(), {})
            marks.append(time.process_time())
            for name, (before, after) in zip(spent, pairwise(marks), strict=True):
                spent[name] += [after - before] if number > 1 else []
            trained = int(federation.sizes[ids.numpy()].sum())
        out |= {f"{name}_cpu": median(values) for name, values in spent.items()}
        out["checkpoint_mb"] = sum(f.stat().st_size for f in Path(place).rglob(f"round-{ROUNDS:06d}/*")) / 1e6
        out |= {"us_interaction": 1e6 * out["round_cpu"] / trained, "us_client": 1e6 * out["round_cpu"] / len(ids)}
    return out


def tally(users: int) -> dict[str, Any]:
    """A whole run to its test on everybody: CPU seconds until each round was over, and of the test."""
    from tacit.config import config
    from tacit.runs.run import start

    marks = [time.process_time()]
    with TemporaryDirectory() as place:
        run = start(config(method="tally", data=f"crowd{users}", threads=1, settings=TALLY), Path(place) / "run")
        marks.append(time.process_time())
        summary = run.go_on(lambda progress, plan: marks.append(time.process_time()))
        marks.append(time.process_time())
    each = [after - before for before, after in pairwise(marks)]
    start_cpu, count, sums, *solutions, test = each
    return {
        "start_cpu": start_cpu, "count_cpu": count, "sums_cpu": sums, "solutions_cpu": sum(solutions), "test_cpu": test,
        "cpu": sum(each), "us_interaction": 1e6 * (count + sums) / len(run.split.train.values),
        "us_tested": 1e6 * test / summary.users_evaluated, "NDCG@10": summary.test["NDCG@10"],
        "server_mb": (summary.bytes_server or 0) / 1e6,
    }  # fmt: skip


if __name__ == "__main__":
    main()
