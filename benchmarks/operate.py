"""The first hour of docs/deploy.md on this machine, word for word: how long it takes until a federation is seen.

    python -m benchmarks.operate

The blocks of the page are run in one shell; `tacit status` is asked after each until it shows what the page says.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tacit

RESULTS = Path(__file__).parent / "results" / "operate.json"
PAGE = Path(__file__).parents[1] / "docs" / "deploy.md"


def blocks() -> list[str]:
    """What the page tells to type."""
    hour = PAGE.read_text().split("## First hour")[1].split("\n## ")[0]
    return re.findall(r"```bash\n(.*?)```", hour, re.DOTALL)


def main() -> None:
    files, made, start, look, kill, again = blocks()
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "bin").mkdir()
        command = Path(temporary) / "bin" / "tacit"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tacit "$@"\n')
        command.chmod(0o755)
        path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
        source = {"PATH": path, "PYTHONPATH": str(Path(tacit.__file__).parents[1])}
        shell = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, cwd=temporary, env=os.environ | source, start_new_session=True, text=True
        )
        assert shell.stdin is not None

        def typed(block: str) -> float:
            assert shell.stdin is not None
            shell.stdin.write(block)
            shell.stdin.flush()
            return time.monotonic()

        def until(seen: Callable[[dict[str, Any]], bool], began: float) -> float:
            while time.monotonic() - began < 600:
                words = [str(command), "status", "runs/shops", "--json"]
                asked = subprocess.run(words, cwd=temporary, env=os.environ | source, capture_output=True, check=False)
                if asked.returncode == 0 and seen(json.loads(asked.stdout)):
                    return time.monotonic() - began
                time.sleep(0.2)
            raise TimeoutError("tacit status does not show it")

        def up(shown: dict[str, Any]) -> list[str]:
            return [name for name, one in shown["nodes"].items() if one["up"]]

        try:
            began = typed(files + made + start)
            found = {"three_up_and_a_round": until(lambda s: len(up(s)) == 3 and s["round"] > 0, began)}
            typed(look)
            found["killed_shown_as_down"] = until(lambda s: "shop-b" not in up(s), typed(kill))
            found["back_after_restart"] = until(lambda s: "shop-b" in up(s), typed(again))
            typed(look)
            time.sleep(5)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    assert found["three_up_and_a_round"] < 120
    assert found["killed_shown_as_down"] < 30


if __name__ == "__main__":
    main()
