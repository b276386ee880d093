"""uvicorn, so that it ends at once on Ctrl-C, open streams or not, and says one sentence where it cannot begin."""

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from tacit.errors import UserError


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stop: asyncio.Event | None) -> None:
        super().__init__(config)
        self._stop = stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Streams are told first: uvicorn would wait for them."""
        if self._stop is not None:
            self._stop.set()
        super().handle_exit(sig, frame)


def serve(
    app: Any, host: str, port: int, stop: asyncio.Event | None = None, said: Callable[[int], None] = lambda port: None
) -> None:
    """Answer until Ctrl-C; `said` is told the port once it is taken, 0 takes any that is free."""
    place = listening(host, port)
    said(place.getsockname()[1])
    options: dict[str, Any] = {
        "log_level": "error",
        "access_log": False,
        "timeout_graceful_shutdown": 1,
        "lifespan": "off",
    }
    server = _Server(uvicorn.Config(app, server_header=False, date_header=False, **options), stop)
    try:
        server.run(sockets=[place])
    except KeyboardInterrupt:  # uvicorn hands it on once all is closed
        pass
    finally:
        place.close()


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address, or a sentence."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is not a port; choose one from 1 to 65535, or 0 for any free one")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        place = socket.socket(family, socket.SOCK_STREAM)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((host, port))
        place.listen(2048)  # whoever asks before uvicorn is ready waits
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return place
