"""A federation under fire: five nodes and a server as processes over TLS, and something breaks every few rounds.

    python -m benchmarks.soak [--rounds 200] [--every 4] [--seed 0] [--folder DIR]

Nodes and the server are killed and started again, stopped for seconds, cut off by TCP resets, and run out of disk
(RLIMIT_FSIZE, set from outside). Every round needs all nodes (--least 1). At the end the state must be that of a run
that nothing disturbed, and every round that was once finished must be there as it was.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

import tacit
from tacit.config import config
from tacit.core.bounds import BOUND
from tacit.data.imported import read_file
from tacit.deploy import keys
from tacit.deploy.fleet import Terms
from tacit.deploy.node import Node
from tacit.deploy.server import Asked, prepare, run
from tacit.runs.folder import RunFolder

RESULTS = Path(__file__).parent / "results" / "soak.json"
NODES, USERS, ITEMS = 5, 8, 60
SETTINGS = {"dim": 4, "epochs": 1, "fraction": 1.0}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(tacit.__file__).parents[1])}
METHOD = "pfedclr"  # has private state on the nodes as well


class Direct:
    """Nodes in this process: what a run gives that nothing disturbs."""

    def __init__(self, nodes: list[Node]) -> None:
        self.named = nodes

    def nodes(self) -> dict[int, str | None]:
        return {place: node.name for place, node in enumerate(self.named)}

    def ask(self, messages: Mapping[int, bytes], seconds: Mapping[int, float]) -> Iterator[tuple[int, bytes]]:
        for place, blob in messages.items():
            yield place, self.named[place].answer(blob)


class Line:
    """What a node is connected through, and what can be cut."""

    def __init__(self, to: int) -> None:
        self.to, self.listening = to, socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            inside, _ = self.listening.accept()
            try:
                outside = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                inside.close()
                continue
            self.open = [s for s in self.open if s.fileno() >= 0] + [inside, outside]
            for source, sink in ((inside, outside), (outside, inside)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RD)  # wakes the thread that carries the other way
        source.close()

    def reset(self) -> None:
        """RST on every connection, both ways."""
        for end in self.open:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)  # its thread wakes and closes it: with no time to linger, by RST
        self.open = []


class Place:
    """The federation's files and processes."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.names = [f"n{i}" for i in range(NODES)]
        self.run = folder / "run"
        rng = np.random.default_rng(0)
        (folder / "items.csv").write_text("item\n" + "".join(f"i{i:03d}\n" for i in range(ITEMS)))
        for number, name in enumerate(self.names):
            lines = ["user,item,time"]
            for user in range(USERS):
                liked = rng.choice(ITEMS, 12, replace=False)
                lines += [f"u{number}{user},i{item:03d},{time}" for time, item in enumerate(liked)]
            (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        keys.make(folder / "keys", ["127.0.0.1"], self.names)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port: int = found.getsockname()[1]
        self.lines = {name: Line(self.port) for name in self.names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """A node, or the server."""
        if name == "server":
            words: list[object] = ["server", METHOD, "--catalogue", "items.csv", "--out", "run", "--port", self.port]
            words += ["--keys", "keys/server", "--nodes", NODES, "--rounds", self.rounds, "--least", 1]
            words += ["--evaluate-every", 10, "--deadline", 60, "--status-port", 0]
            words += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        else:
            words = ["node", f"{name}.csv", "--time", "time", "--server", f"127.0.0.1:{self.lines[name].port}"]
            words += ["--folder", f"{name}.node", "--keys", f"keys/nodes/{name}", "--threads", 1]
        command = [sys.executable, "-m", "tacit", *map(str, words)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, env=ENVIRONMENT
        )
        self.processes[name] = process
        threading.Thread(target=self._hear, args=(name, process.stdout), daemon=True).start()

    def _hear(self, name: str, said: IO[bytes]) -> None:
        """Keep what a process says: through a pipe, which no limit of its files concerns."""
        with (self.folder / f"{name}.out").open("ab", buffering=0) as out:
            for line in said:
                out.write(line)

    def kill(self, name: str) -> None:
        """End a process without a word of warning."""
        self.processes[name].kill()
        self.processes[name].wait()

    def limit(self, name: str, most: int) -> None:
        """No file of this process may be larger."""
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.processes[name].pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def finished(self) -> dict[int, str]:
        """The rounds that count, as they were written down."""
        index = self.run / "checkpoints" / "index.json"
        if not index.exists():
            return {}
        last = int(json.loads(index.read_text()).get("round", 0))
        lines = (self.run / "rounds.jsonl").read_text().splitlines()
        return {int(json.loads(line)["round"]): line for line in lines[:last]}


def faults(place: Place, rng: random.Random) -> dict[str, Callable[[], None]]:
    """What can happen; each comes back when the cause is over."""

    def one() -> str:
        return rng.choice(place.names)

    def killed(name: str) -> None:
        place.kill(name)
        time.sleep(rng.uniform(0, 3))
        place.start(name)

    def stopped() -> None:
        name = one()
        place.processes[name].send_signal(signal.SIGSTOP)
        time.sleep(rng.choice([1, 3, 8, 25]))
        place.processes[name].send_signal(signal.SIGCONT)

    def full(name: str, most: int) -> None:
        place.limit(name, most)
        time.sleep(rng.uniform(1, 4))
        place.limit(name, resource.RLIM_INFINITY)

    return {
        "node killed": lambda: killed(one()),
        "node stopped": stopped,
        "node's disk full": lambda: full(one(), rng.choice([0, 200])),
        "connections reset": lambda: place.lines[one()].reset(),
        "server killed": lambda: killed("server"),
        "server's disk full": lambda: full("server", rng.choice([0, 1000])),
    }


def soak(place: Place, every: int, seed: int) -> dict[str, Any]:
    """Run it to the end; gives what happened."""
    rng = random.Random(seed)
    happens = faults(place, rng)
    happened: Counter[str] = Counter()
    seen: dict[int, str] = {}
    lost: list[str] = []
    ends = 0
    for name in [*place.names, "server"]:
        place.start(name)
    began, due = time.monotonic(), rng.randint(1, every)
    while True:
        for round, line in place.finished().items():
            if seen.setdefault(round, line) != line:
                lost.append(f"round {round} was {seen[round]} and is {line}")
                seen[round] = line
        if (code := place.processes["server"].poll()) == 0:
            break
        if code == 1:
            raise RuntimeError((place.folder / "server.out").read_text()[-2000:])
        if code is not None:
            ends += 1  # a sentence about the disk; what keeps services up starts it again
            time.sleep(1)
            place.start("server")
        for name in place.names:
            if place.processes[name].poll() is not None:
                ends += 1
                place.start(name)
        if len(seen) >= due and len(seen) < place.rounds - 1:
            what = rng.choice(list(happens))
            happened[what] += 1
            print(f"{time.monotonic() - began:7.1f} s  round {len(seen)}: {what}", flush=True)
            happens[what]()
            due = len(seen) + rng.randint(1, 2 * every - 1)
        time.sleep(0.2)
    lost += [f"round {round} is gone" for round in sorted(set(seen) - set(place.finished()))]
    return {
        "seconds": time.monotonic() - began,
        "faults": dict(happened),
        "processes_started_again": ends,
        "lost": lost,
    }


def undisturbed(place: Place) -> Path:
    """The same run, in this process and with nothing in its way."""
    nodes = [
        Node(read_file(place.folder / f"{name}.csv", "user", "item", "time"), place.folder / f"{name}.calm", name, 1)
        for name in place.names
    ]
    made = config(method=METHOD, data="items", rounds=place.rounds, settings=SETTINGS, evaluate_every=10, bound=BOUND)
    asked = Asked(made, place.folder / "items.csv", NODES, terms=Terms(least=1.0))
    folder, job = prepare(asked, place.folder / "calm")
    run(asked, folder, job, Direct(nodes))
    return folder.path


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=200)
    asked.add_argument("--every", type=int, default=4, help="rounds between two faults, on average")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--folder", type=Path)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        place = Place(folder, options.rounds)
        try:
            found = soak(place, options.every, options.seed)
        finally:
            for process in place.processes.values():
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        states = [RunFolder.open(path).load("last") for path in (place.run, undisturbed(place))]
        ours, theirs = (state[0] for state in states if state)
        apart = max(float((ours[n].double() - theirs[n].double()).abs().max()) for n in theirs)
        clients = {record["clients"] for record in RunFolder.open(place.run).rounds()}
        tracebacks = sum(path.read_text().count("Traceback") for path in folder.glob("server.out"))
    found |= {"rounds": options.rounds, "largest_difference": apart, "server_tracebacks": tracebacks}
    print(json.dumps(found, indent=2))
    assert not found["lost"], "rounds that were finished are lost"
    assert clients == {NODES * USERS}, "somebody was left out of a round"
    assert apart < 1e-4, "the state is another than without faults"
    assert not tracebacks, "the server ended with a traceback"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
