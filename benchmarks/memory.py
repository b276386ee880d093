"""Peak memory of one round in a process of its own: `python -m benchmarks.memory ml-1m 10`."""

import dataclasses
import json
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import FEDMF, Round, federation


def peak_mb() -> float:
    """Highest resident memory of this process so far.

    Linux hands ru_maxrss down from the process that started this one, however small this one is.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def in_fresh_process(data: str, epochs: int) -> dict[str, float]:
    """Peak memory after the imports, after reading the data and after a round."""
    command = [sys.executable, "-m", "benchmarks.memory", data, str(epochs)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.PIPE, text=True)
    out: dict[str, float] = json.loads(done.stdout)
    return out


if __name__ == "__main__":
    _, data, epochs = sys.argv
    peaks = {"imports_mb": peak_mb()}
    training = Round(dataclasses.replace(FEDMF, epochs=int(epochs)), federation(data))
    peaks["data_mb"] = peak_mb()
    training()
    print(json.dumps(peaks | {"round_mb": peak_mb()}))
