"""The command line: a file for each group of commands, and every command a few calls into the library."""

import sys


def main() -> None:
    """Entry point: bad input ends with one sentence and exit code 2, Ctrl-C with 130, a closed pipe silently."""
    try:
        from tacit.cli.app import call

        sys.exit(call())
    except KeyboardInterrupt:
        sys.exit(130)
