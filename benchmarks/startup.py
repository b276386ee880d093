"""CPU-seconds until a command has answered, beside an empty Python and `import torch`; the least of a few tries."""

import os
import subprocess
import sys
import time

TRIES = 3
COMMANDS = {  # the most CPU-seconds that each may take
    "-c pass": None,
    "-c 'import torch'": None,
    "tacit --help": 0.4,
    "tacit data list": 0.4,
    "tacit keys --help": 0.4,
    "tacit methods": 2.0,
}


def seconds(words: list[str]) -> tuple[float, float]:
    """(CPU-seconds, seconds) of a process of its own."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.perf_counter() - began


def words(command: str) -> list[str]:
    """The command as arguments of Python."""
    first, *rest = command.split(" ", 1)
    return ["-m", "tacit", *rest[0].split()] if first == "tacit" else ["-c", rest[0].strip("'")]


def main() -> None:
    print(f"{'command':20} {'CPU s':>6} {'s':>6} {'at most':>8}")
    late = []
    for command, most in COMMANDS.items():
        cpu, wall = min(seconds(words(command)) for _ in range(TRIES))
        print(f"{command:20} {cpu:6.2f} {wall:6.2f} {most or '':>8}")
        if most is not None and cpu > most:
            late.append(command)
    sys.exit(f"too slow: {', '.join(late)}" if late else 0)


if __name__ == "__main__":
    main()
