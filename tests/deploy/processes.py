"""A federation of real processes on this machine."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from deploy.direct import items_file, shards
from tacit.data.interactions import Interactions

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


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

    def __init__(self, path: Path, data: Interactions, nodes: int, secure: bool = False) -> None:
        self.path, self.secure, self.port = path, secure, free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        items_file(path / "items.csv", data)
        self.names = [f"n{i}" for i in range(nodes)]
        for name, own in zip(self.names, shards(data, nodes), strict=True):
            csv(path / f"{name}.csv", own)
        if secure:
            named = [word for name in self.names for word in ("--node", name)]
            self.tacit("keys", path / "keys", "--host", "127.0.0.1", *named)

    def tacit(self, *words) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "tacit", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=self.path)

    def start(self, name: str, *words) -> subprocess.Popen:
        command = [sys.executable, "-m", "tacit", *map(str, words)]
        with (self.path / f"{name}.out").open("a") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=ENVIRONMENT, cwd=self.path)
        self.processes[name] = process
        return process

    def said(self, name: str) -> str:
        return (self.path / f"{name}.out").read_text()

    def node(self, name: str, *more) -> subprocess.Popen:
        safe = ["--keys", self.path / "keys" / "nodes" / name] if self.secure else ["--insecure", "--name", name]
        where = ["--server", f"127.0.0.1:{self.port}", "--folder", self.path / f"{name}.node", "--threads", "1"]
        return self.start(name, "node", self.path / f"{name}.csv", *where, *safe, *more)

    def server(self, method: str, *more) -> subprocess.Popen:
        safe = ["--keys", self.path / "keys" / "server"] if self.secure else ["--insecure"]
        where = ["--catalogue", self.path / "items.csv", "--out", self.path / "run", "--port", self.port]
        return self.start("server", "server", method, *where, *safe, "--nodes", len(self.names), *more)

    def finished(self, seconds: float = 1800) -> None:
        code = self.processes["server"].wait(seconds)
        assert code == 0, self.said("server")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def wait_for(self, name: str, text: str, seconds: float = 1200, times: int = 1) -> None:
        until = time.monotonic() + seconds
        while self.said(name).count(text) < times:
            assert time.monotonic() < until, f"no '{text}' from {name}:\n{self.said(name)}"
            assert self.processes[name].poll() is None, self.said(name)
            time.sleep(0.05)

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(10)
