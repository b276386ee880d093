"""What server and node share of Flower: how a packet travels in its messages.

docs/decisions/0016-flower.md says what of Flower is used and what is not. The modules imported here and in `engine` and
`connection` are those of Flower 1.41, partly not its public ones, so the version is pinned.
"""

import logging
import os
import socket
from typing import cast

from tacit.errors import UserError

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

try:
    from flwr.app import Array, ArrayRecord, Message, RecordDict
except ImportError as error:
    raise UserError(f"real machines need Flower ({error}); install it with: pip install 'tacit[flower]'") from error

logging.getLogger("flwr").setLevel(logging.ERROR)
logging.getLogger("httpx").setLevel(logging.WARNING)

HEARTBEAT = 10  # seconds; Flower accepts no less, and calls a node gone after two of them


def content(blob: bytes) -> RecordDict:
    """A packet as what a message carries."""
    array = Array(dtype="uint8", shape=(len(blob),), stype="tacit.packet", data=blob)
    return RecordDict({"tacit": ArrayRecord({"packet": array})})


def blob_of(message: Message) -> bytes:
    """The packet in a message; whatever else a node sends gives no packet."""
    try:
        return bytes(cast(ArrayRecord, message.content["tacit"])["packet"].data)
    except (KeyError, ValueError, TypeError, AttributeError):
        return b""


def on_loopback(host: str) -> bool:
    """Whether an address cannot be reached from another machine."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError as error:
        raise UserError(f"there is no host '{host}' ({error.strerror})") from error
    return all(str(address[4][0]).startswith("127.") or address[4][0] == "::1" for address in found)
