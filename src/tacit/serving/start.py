"""A service from the command line."""

from collections.abc import Callable
from pathlib import Path

from tacit.errors import UserError


def start(folder: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Answer for a run or a node until Ctrl-C."""
    try:
        from tacit.serving.app import application
        from tacit.serving.guard import LOOPBACK
        from tacit.serving.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is missing; pip install 'tacit[studio]' installs it") from error
    import torch

    from tacit.serving.source import source_of

    torch.set_num_threads(1)  # a thread a question, not several threads a product
    source = source_of(folder)
    here = host in LOOPBACK or host == "::1"

    def said(chosen: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        say(f"tacit serve: http://{shown}:{chosen}/docs")
        if not here:
            say(f"anybody who reaches {host}:{chosen} can ask for any user; put your own access control before it")
        say("Ctrl-C ends it")

    serve(application(source, LOOPBACK if here else ()), host, port, said=said)
