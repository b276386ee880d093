"""What the commands `server`, `node` and `recommend` do."""

import contextlib
import logging
import logging.handlers
import math
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tacit.config import RunConfig
from tacit.core.bounds import BOUND, boundable
from tacit.data.imported import read_file
from tacit.data.interactions import Interactions
from tacit.deploy.board import Board
from tacit.deploy.fleet import Terms
from tacit.deploy.forget import forget as forget_here
from tacit.deploy.forget import refuse
from tacit.deploy.lists import recommend as recommend_here
from tacit.deploy.lists import served
from tacit.deploy.monitor import Monitor
from tacit.deploy.node import Node
from tacit.deploy.replies import plain
from tacit.deploy.server import Asked, prepare, run
from tacit.deploy.vault import Vault
from tacit.errors import UserError
from tacit.runs.assembly import method_of
from tacit.runs.run import Recommendation, Summary

MOST_LOG = 5_000_000  # bytes
MOST_LINE = 2_000  # letters

Source = tuple[Path, str, str, str | None]  # file, and its columns of users, items and times


def guarded(asked: RunConfig) -> RunConfig:
    """The same with clients' changes bounded, where the server sees single ones and they are changes of tables.

    A server faces strangers, one of whom could otherwise push an item into everybody's list; a simulation has none.
    """
    if asked.secure or asked.ldp is not None or asked.robust or not boundable(method_of(asked)):
        return asked
    return asked.model_copy(update={"bound": BOUND})


def server(
    asked: RunConfig,
    catalogue: Path,
    out: Path,
    listen: tuple[str, int],
    keys_folder: Path | None,
    insecure: bool,
    *,
    pages: tuple[str, int] = ("127.0.0.1", 0),
    terms: dict[str, Any],
    **options: Any,
) -> Summary:
    """Run rounds over nodes to the end; `pages` is where its status is shown."""
    import_module("tacit.deploy.flower")  # says in a sentence that Flower is missing, where it is
    from tacit.deploy import keys
    from tacit.deploy.engine import Engine

    _say_insecure(keys_folder, insecure)
    if not 0 <= listen[1] <= 65535:
        raise UserError(f"--port {listen[1]} is not a port; choose one from 1 to 65535, or 0 for any free one")
    _speak()
    what = Asked(asked, catalogue, terms=Terms(**terms), **options)
    folder, job = prepare(what, out)
    secure: dict[str, Any] = {}
    if keys_folder is not None:
        for file in ("server.crt", "server.key"):
            if not (keys_folder / file).exists():
                raise UserError(f"there is no {keys_folder / file}; tacit keys DIR --host NAME makes it in DIR/server")
        secure = {
            "certificate": keys_folder / "server.crt",
            "key": keys_folder / "server.key",
            "nodes": keys.allowed(keys_folder),
        }
    log, board = logging.getLogger("tacit.server"), Board()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is written last is written
    with _logged(out / "server.log"), Engine(*listen, **secure, rejected=board.rejected) as engine:
        for name in secure.get("nodes", ()):
            board.of(name)
        if keys_folder is not None:
            board.certificate_days = keys.warn(keys_folder / "server.crt", log)
        with Monitor(board, out, engine.nodes, *pages):
            log.info("listening on %s:%d", listen[0], engine.port)
            return run(what, folder, job, engine, board=board)


def node(
    source: Source,
    address: str,
    folder: Path,
    keys_folder: Path | None,
    insecure: bool,
    *,
    name: str | None,
    allow: tuple[str, ...],
    threads: int,
    secure: bool = False,
    max_epsilon: float | None = None,
) -> None:
    """Answer a server until the process is told to end."""
    import_module("tacit.deploy.flower")  # says in a sentence that Flower is missing, where it is
    _say_insecure(keys_folder, insecure)
    _speak()
    vault = Vault(folder)
    bound = math.inf if max_epsilon is None else max_epsilon
    stop = threading.Event()
    with vault.held() as alone:
        if not alone:
            raise UserError(f"another node runs in {folder}; stop it, or name another --folder")
        here = Node(_read(source), folder, name, threads, allow, secure, keys_folder, bound)
        vault.write_json("source.json", [str(Path(source[0]).resolve()), *source[1:], list(allow)])
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        with _logged(folder / "node.log"):
            _serve(address, here, keys_folder, stop)


def _serve(address: str, here: Node, keys_folder: Path | None, stop: threading.Event) -> None:
    from tacit.deploy import keys
    from tacit.deploy.connection import serve

    if keys_folder is not None:
        keys.warn(keys_folder / "ca.crt", logging.getLogger("tacit.node"))
    serve(
        address,
        here.answer,
        None if keys_folder is None else keys_folder / "ca.crt",
        None if keys_folder is None else keys.own(keys_folder / "node.key"),
        stop=stop,
    )


def virtual(asked: RunConfig, out: Path, nodes: int, deadline: float, cpus: float, ray: str | None) -> Summary:
    """Run rounds over virtual nodes to the end."""
    import_module("tacit.deploy.flower")  # says in a sentence that Flower is missing, where it is
    from tacit.deploy.virtual import simulate

    _speak()
    what = Asked(asked, Path(), nodes, terms=Terms(deadline=deadline), wait=deadline)
    options: dict[str, Any] = {"address": ray} if ray else {}
    return simulate(what, out, cpus, **options)


def recommend(folder: Path, user: str, k: int) -> tuple[list[str], list[Recommendation]]:
    """(titles of the user's latest items, the k best others), only from a node's folder and file."""
    written = Vault(folder).json("source.json")
    if not (isinstance(written, list) and len(written) == 5 and isinstance(written[4], list)):
        raise UserError(f"{folder} does not say where its interactions are; start `tacit node` with it once")
    refuse(Vault(folder), user)
    path, *columns, allow = written
    data = _read((Path(path), *columns))
    found = recommend_here(folder, data, user, k, tuple(allow))
    titles = _titles(folder)
    mine = np.flatnonzero(data.user == data.user_index(user))
    if data.time is not None:
        mine = mine[np.argsort(data.time[mine], kind="stable")]
    recent = [str(data.item_ids[i]) for i in data.item[mine][::-1][:5]]
    return [titles.get(item, item) for item in recent], found


def forget(folder: Path, user: str) -> bool:
    """Forget a user of a node, running or not; False where that was done before."""
    if not Vault.is_one(folder):
        raise UserError(f"{folder} is not a node's folder; nobody was forgotten")
    vault = Vault(folder)
    written = vault.json("source.json")
    source = Path(written[0]) if isinstance(written, list) and len(written) == 5 else None
    if source is not None and source.exists():
        data = _read((source, *written[1:4]))
        known = (vault.json(str(path.relative_to(folder))) for path in folder.glob("jobs/*/roster.json"))
        if not any(user in roster["users"] for roster in known):
            data.user_index(user)  # or says who is there
    return forget_here(folder, user)


def _titles(folder: Path) -> dict[str, str]:
    vault = Vault(folder)
    job = vault.json(f"jobs/{served(vault)}/job.json")
    return dict(zip(job["items"], job["titles"], strict=True)) if job["titles"] else {}


def _read(source: Source) -> Interactions:
    return read_file(*source)


def _say_insecure(keys_folder: Path | None, insecure: bool) -> None:
    if keys_folder is None and not insecure:
        raise UserError("name the keys with --keys (tacit keys makes them), or ask for --insecure on this machine only")


def _speak() -> None:
    """What happens, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("tacit")
    log.setLevel(logging.INFO)
    log.handlers = [handler]
    log.propagate = False


class _OneLine(logging.Formatter):
    """Whatever text a server or a node sends, it cannot start a log line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The message in one line, and not an endless one."""
        record.message = plain(record.message[:MOST_LINE])
        return super().formatMessage(record)


class _Rotating(logging.handlers.RotatingFileHandler):
    """A full disk costs log lines and nothing else."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: whatever matters on a full disk is said by what could not be saved."""

    def _open(self) -> Any:
        file = super()._open()
        Path(self.baseFilename).chmod(0o600)  # its owner's alone, however often it is started
        return file


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """What happens, in a file as well, which is put aside when it is large; the latest five are kept."""
    try:
        path.touch(mode=0o600)
        handler = _Rotating(path, maxBytes=MOST_LOG, backupCount=5, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; fix that and try again") from error
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("tacit")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        with contextlib.suppress(OSError):  # lines that a full disk does not take
            handler.close()
