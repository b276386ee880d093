"""The command line: a file for each group of commands, and every command a few calls into the library."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point: bad input ends with one sentence and exit code 2, Ctrl-C with 130, a closed pipe silently."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        from tacit.cli.app import call

        sys.exit(call())
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: within an import the end at once, for torch swallows it there and goes on with half of NumPy."""
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt
