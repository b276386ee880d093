"""A server and nodes on this machine, over TLS and with keys: what a round costs, and how much of it is Flower's.

    python -m benchmarks.federation [--nodes 3] [--rounds 3] [--method fedmf] [--data ml-100k] [--folder DIR]

Every node has a file of its own with a third of the users. Afterwards the same run is simulated and compared, and a
node recommends to one of its users while no server is there.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from tacit.data.sources import load
from tacit.runs.folder import RunFolder
from tacit.runs.run import run as simulate

RESULTS = Path(__file__).parent / "results" / "federation.json"
SETTINGS = {"fedmf": ["optimizer=sgd", "table_lr=1000", "lr=1", "epochs=3", "fraction=0.2"]}


def tacit(*words: object) -> list[str]:
    return [sys.executable, "-m", "tacit", *map(str, words)]


def files(folder: Path, name: str, nodes: int) -> list[str]:
    """The catalogue, and a file for each node; gives a user of the first."""
    data = load(name)
    with (folder / "items.csv").open("w") as file:
        file.write("item,title\n")
        for place, item in enumerate(data.item_ids):
            title = data.title(place).replace('"', '""')
            file.write(f'{item},"{title}"\n')
    for number, users in enumerate(np.array_split(np.arange(data.n_users), nodes)):
        mine = np.flatnonzero(np.isin(data.user, users))
        times = np.zeros(len(mine)) if data.time is None else data.time[mine]
        with (folder / f"n{number}.csv").open("w") as file:
            file.write("user,item,time\n")
            for row, time in zip(mine, times, strict=True):
                file.write(f"{data.user_ids[data.user[row]]},{data.item_ids[data.item[row]]},{time}\n")
    return [str(data.user_ids[0])]


def federation(folder: Path, method: str, data: str, nodes: int, rounds: int, settings: list[str]) -> dict[str, float]:
    """Run it, print what the server and one node say, and compare with the simulation."""
    (user,) = files(folder, data, nodes)
    names = [f"n{i}" for i in range(nodes)]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    keys = folder / "keys"
    subprocess.run(
        tacit("keys", keys, "--host", "127.0.0.1", *(w for n in names for w in ("--node", n))),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    started = []
    chosen = [word for pair in settings for word in ("--set", pair)]
    try:
        for name in names:
            own = ["--folder", folder / name, "--keys", keys / "nodes" / name, "--threads", 1]
            with (folder / f"{name}.log").open("w") as log:
                command = tacit("node", folder / f"{name}.csv", "--server", f"127.0.0.1:{port}", *own)
                started.append(subprocess.Popen(command, stdout=log, stderr=log))
        where = ["--catalogue", folder / "items.csv", "--out", folder / "run", "--port", port]
        secure = ["--keys", keys / "server", "--nodes", nodes, "--rounds", rounds]
        subprocess.run(tacit("server", method, *where, *secure, *chosen), check=True)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)
    print(f"\nthe server is gone; node n0 recommends to user {user} from its own disk:")
    subprocess.run(tacit("recommend", folder / "n0", "--user", user, "-k", 5), check=True)

    pairs = dict(pair.split("=") for pair in settings)
    bound = RunFolder.open(folder / "run").run["config"]["bound"]
    expected = simulate(
        method, data=data, rounds=rounds, settings=pairs, threads=1, bound=bound, out=folder / "simulated"
    )
    last = [RunFolder.open(folder / f).load("last") for f in ("run", "simulated")]
    ours, theirs = (found[0] for found in last if found)
    difference = max(float((ours[n].double() - theirs[n].double()).abs().max()) for n in theirs)
    summary = RunFolder.open(folder / "run").summary or {}
    lines = [json.loads(line) for line in (folder / "run" / "wire.jsonl").read_text().splitlines()]
    mean = {key: float(np.mean([line[key] for line in lines])) for key in lines[0]}
    return {
        "nodes": nodes,
        "rounds": rounds,
        "seconds_per_round": mean["seconds"],
        "waited_per_round": mean["waited"],
        "nodes_worked_per_round": mean["worked"],
        "flower_per_round": mean["waited"] - mean["worked"],
        **flower_alone(keys, names, int(mean["bytes_down"]), int(mean["bytes_up"])),
        "bytes_up_per_round": mean["bytes_up"],
        "bytes_down_per_round": mean["bytes_down"],
        "largest_difference_from_simulation": difference,
        "test_ndcg10": summary["test"]["NDCG@10"],
        "simulated_ndcg10": expected.test["NDCG@10"],
    }


def flower_alone(keys: Path, names: list[str], down: int, up: int, rounds: int = 5) -> dict[str, float]:
    """What Flower takes for the messages of a round, both ends in this process and nobody training."""
    from tacit.deploy.connection import serve
    from tacit.deploy.engine import Engine
    from tacit.deploy.keys import allowed, own

    replies = {b"t": bytes(max(1, up // len(names))), b"e": b"metrics"}  # uploads; next to nothing after ranking
    stop = threading.Event()
    with Engine(
        "127.0.0.1", 0, keys / "server" / "server.crt", keys / "server" / "server.key", allowed(keys / "server")
    ) as engine:
        nodes = [
            threading.Thread(
                target=serve,
                args=(f"127.0.0.1:{engine.port}", lambda blob: replies[blob[:1]]),
                kwargs={"root": keys / "ca.crt", "key": own(keys / "nodes" / name / "node.key"), "stop": stop},
            )
            for name in names
        ]
        for node in nodes:
            node.start()
        while len(engine.nodes()) < len(names):
            time.sleep(0.05)
        spent = []
        for _ in range(rounds + 1):
            began, cpu = time.perf_counter(), time.process_time()
            for kind in (b"t", b"e"):  # half of the bytes go down before training, half before ranking
                blob = kind + bytes(down // (2 * len(names)))
                assert len(list(engine.ask(dict.fromkeys(engine.nodes(), blob), 600))) == len(names)
            spent.append((time.perf_counter() - began, time.process_time() - cpu))
        stop.set()
        for node in nodes:
            node.join()
    seconds, cpu = np.median(spent[1:], axis=0)  # the first round has everything to import
    return {"flower_alone_seconds": float(seconds), "flower_alone_cpu_seconds": float(cpu)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--method", default="fedmf")
    asked.add_argument("--data", default="ml-100k")
    asked.add_argument("--nodes", type=int, default=3)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--set", action="append", dest="settings")
    asked.add_argument("--folder", type=Path)
    options = asked.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    settings = options.settings or SETTINGS.get(options.method, [])
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found = federation(folder, options.method, options.data, options.nodes, options.rounds, settings)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    for name, value in found.items():
        print(f"{name:38} {value:,.6g}")


if __name__ == "__main__":
    main()
