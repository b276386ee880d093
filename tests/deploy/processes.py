"""A federation of real processes on this machine, over TLS and with keys."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import tacit
from deploy.direct import items_file
from tacit.data.interactions import Interactions
from tacit.deploy import keys

PATHS = [str(Path(tacit.__file__).parents[1]), str(Path(__file__).parents[1])]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(PATHS)}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def csv(path: Path, data: Interactions) -> Path:
    rows = zip(data.user_ids[data.user], data.item_ids[data.item], data.time, strict=True)
    path.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    return path


class Place:
    """Where a federation runs: its files, its processes, and what they said."""

    def __init__(self, path: Path, data: Interactions, own: dict[str, Interactions]) -> None:
        self.path, self.port = path, free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        self.hold = path / "hold"
        self.hold.mkdir()
        items_file(path / "items.csv", data)
        for name, interactions in own.items():
            csv(path / f"{name}.csv", interactions)
        keys.make(path / "keys", ["127.0.0.1"], list(own))

    def start(self, name: str, *words, **environment) -> subprocess.Popen:
        command = [sys.executable, "-m", "tacit", *map(str, words)]
        with (self.path / f"{name}.out").open("a") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=ENVIRONMENT | environment, cwd=self.path)
        self.processes[name] = process
        return process

    def said(self, name: str) -> str:
        return (self.path / f"{name}.out").read_text()

    def node(self, name: str) -> subprocess.Popen:
        where = ["--server", f"127.0.0.1:{self.port}", "--folder", self.path / f"{name}.node", "--threads", 1]
        more = ["--keys", self.path / "keys" / "nodes" / name, "--allow", "deploy.held:Held"]
        return self.start(name, "node", self.path / f"{name}.csv", *where, *more, TACIT_TEST_HOLD=str(self.hold))

    def server(self, method: str, out: str, nodes: int, *more) -> subprocess.Popen:
        where = ["--catalogue", self.path / "items.csv", "--out", self.path / out, "--port", self.port]
        secure = ["--keys", self.path / "keys" / "server", "--nodes", nodes]
        return self.start("server", "server", method, *where, *secure, *more)

    def finished(self) -> None:
        assert self.processes["server"].wait() == 0, self.said("server")

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].send_signal(signal.SIGKILL)
        for name in names:
            self.processes.pop(name).wait()

    def wait_for(self, name: str, text: str, times: int = 1) -> None:
        """Until a process has said something so often; fails where it has ended, and never because time has passed."""
        while self.said(name).count(text) < times:
            assert self.processes[name].poll() is None, self.said(name)
            time.sleep(0.05)

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
