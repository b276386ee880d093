"""A studio from the command line."""

import secrets
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from tacit.errors import UserError


def start(roots: Sequence[Path], host: str, port: int, experiments: Path, say: Callable[[str], None]) -> None:
    """Show these folders until Ctrl-C."""
    try:
        from tacit.serving.guard import LOOPBACK
        from tacit.serving.server import serve
        from tacit.studio.app import Studio, application
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is missing; pip install 'tacit[studio]' installs it") from error
    from tacit.studio.shelf import Shelf

    for root in roots:
        if root.exists() and not root.is_dir():
            raise UserError(f"{root} is not a folder; name folders that have runs in them")
    roots[0].mkdir(parents=True, exist_ok=True)
    if not experiments.is_dir():
        experiments = Path(str(files("tacit"))) / "experiments"  # those that came with the package
    made = Studio(Shelf(roots), experiments, secrets.token_urlsafe(18))
    hosts = LOOPBACK if host in LOOPBACK or host == "::1" else (*LOOPBACK, host)

    def said(chosen: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        say(f"tacit studio: http://{shown}:{chosen}/#token={made.token}")
        if hosts != LOOPBACK:
            say(f"anybody who reaches {host}:{chosen} can read the runs; changes and people need the token")
        say("Ctrl-C ends it")

    serve(application(made, hosts), host, port, made.stop, said)
    if running := made.shelf.still_running():
        say(f"{running} runs that were started here go on; tacit studio shows them again")
