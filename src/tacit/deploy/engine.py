"""The server's end: Flower's SuperLink inside this process.

Of its HTTP interface nodes reach the fleet's paths alone. Those that start runs and register keys are never served: the
server does both in its own process.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, cast

import uvicorn
from flwr.app import Message, MessageType
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    NodeStatus,
    TaskType,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from tacit.deploy.flower import HEARTBEAT, blob_of, content, on_loopback
from tacit.errors import UserError

log = logging.getLogger("tacit.server")

LOOK = 1.0  # seconds between two looks at who of those asked is still there
MOST_ADDRESSES = 1000  # whose rejected requests are counted
MOST_REQUEST = 32 << 20  # bytes of one HTTP request; Flower cuts arrays into pieces of 5 MB

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class FleetOnly:
    """An ASGI application that lets through what a node needs, and bodies of a reasonable size."""

    def __init__(self, app: Any, rejected: dict[str, int], keys: Collection[bytes] | None = None) -> None:
        """`rejected` counts, by address, the requests whose key is not known; `keys` are those that are, None: any."""
        self.app, self.rejected, self.keys = app, rejected, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not scope["path"].startswith("/v1/fleet/"):
            await _refuse(send, 404)
        elif not length.isdigit() or int(length) > MOST_REQUEST:  # without a length a body could be endless
            await _refuse(send, 413)
        elif self.keys is not None and not _signed(headers, self.keys):  # before a stranger's body is taken in
            await self._noting(scope, send)(_answer(401))
            await send(_END)
        else:
            await self.app(scope, receive, self._noting(scope, send))

    def _noting(self, scope: Scope, send: Send) -> Send:
        async def noted(message: MutableMapping[str, Any]) -> None:
            refused = message["type"] == "http.response.start" and message["status"] >= 400
            if refused and scope["path"].endswith("activate-node"):
                self._reject((scope.get("client") or ("?",))[0])
            await send(message)

        return noted

    def _reject(self, address: str) -> None:
        if address not in self.rejected:
            log.warning("%s is rejected: its key is not known here, or the node is already connected", address)
            if len(self.rejected) >= MOST_ADDRESSES:
                self.rejected.pop(next(iter(self.rejected)))
        self.rejected[address] = self.rejected.get(address, 0) + 1


_END: MutableMapping[str, Any] = {"type": "http.response.body", "body": b""}


def _answer(status: int) -> MutableMapping[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]}


async def _refuse(send: Send, status: int) -> None:
    await send(_answer(status))
    await send(_END)


def _signed(headers: Mapping[bytes, bytes], keys: Collection[bytes]) -> bool:
    """Whether one of these keys signed the time of a request; Flower looks at the time itself."""
    key, signature, at = (
        headers.get(name.lower().encode(), b"")
        for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
    )
    try:
        public = b64decode(key, validate=True)
        return public in keys and verify_signature(bytes_to_public_key(public), at, b64decode(signature, validate=True))
    except ValueError:
        return False


class Engine:
    """A SuperLink in this process, seen as a link to nodes."""

    def __init__(
        self,
        host: str,
        port: int,
        certificate: Path | None = None,
        key: Path | None = None,
        nodes: Mapping[str, bytes] | None = None,
        rejected: dict[str, int] | None = None,
    ) -> None:
        """`nodes` are the public keys that may connect, by name; without a certificate only loopback is served."""
        secure = certificate is not None
        if not secure and not on_loopback(host):
            raise UserError(f"without TLS a server serves this machine only; {host} needs --keys")
        config = SuperLinkLifespanConfig(
            control_address="",
            health_server_address=None,
            host=host,
            port=port,
            insecure=not secure,
            certificates=None,
            superexec_auth_secret=os.urandom(32),
            authn_plugin=NoOpControlAuthnPlugin(),
            event_log_plugin=None,
            fleet_event_log_plugin=None,
            enable_event_log=False,
            artifact_provider=None,
            enable_supernode_auth=secure,
            fleet_api_type="grpc-rere",
            fleet_api_address=None,
            simulation=False,
            ssl_ca_certfile=None,
            ssl_certfile=None,
            ssl_keyfile=None,
            database=FLWR_IN_MEMORY_DB_NAME,
            isolation="process",
            runtime_dependency_install=False,
        )
        app = create_app(config, cast(Any, _Quiet))
        self.state = app.state.linkstate_factory.state()
        self._names: dict[int, str] = {}
        for name, public in (nodes or {}).items():
            self._names[self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public, HEARTBEAT)] = name
        self.secure = secure
        self.rejected: dict[str, int] = {} if rejected is None else rejected
        self._server = uvicorn.Server(
            uvicorn.Config(
                FleetOnly(app, self.rejected, set((nodes or {}).values()) if secure else None),
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
            )
        )
        self._open()
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve([self._socket])), daemon=True)
        self._alive = threading.Event()

    def _open(self) -> None:
        """A run of Flower's, and the task that it counts as alive."""
        self.run_id = self.state.create_run(
            "tacit", "1", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        self._task = self.state.get_run_info(run_ids=[self.run_id])[0].primary_task_id
        self.state.claim_task(self._task)
        self.state.activate_task(self._task)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, SUPERLINK_NODE_ID, self._task

    def __enter__(self) -> "Engine":
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the server's end of Flower did not start")
            time.sleep(0.02)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._alive.set()
        self._server.should_exit = True
        self._thread.join(5)

    @property
    def port(self) -> int:
        """The port that is really listened on."""
        return int(self._socket.getsockname()[1])

    def _beat(self) -> None:
        while not self._alive.wait(HEARTBEAT):
            self.state.acknowledge_task_heartbeat(self._task)

    def nodes(self) -> dict[int, str | None]:
        """The nodes that sent a heartbeat lately."""
        return {node: self._names.get(node) for node in self.state.get_nodes(self.run_id)}

    def ask(self, messages: Mapping[int, bytes], seconds: float | Mapping[int, float]) -> Iterator[tuple[int, bytes]]:
        """Send, and yield replies as they come until all are there or each node's time is up."""
        now = time.monotonic()
        limits = seconds if isinstance(seconds, Mapping) else dict.fromkeys(messages, seconds)
        until = {node: now + limits[node] for node in messages}
        born = self._born(messages)
        waiting = {self._push(node, blob, limits[node]): node for node, blob in messages.items()}
        coming: dict[int, Message] = {}  # announced, and their pieces are on the way
        looked = now
        while waiting or coming:
            now = time.monotonic()  # whoever reads replies takes its time: look once more afterwards
            late = {node for node in until if now > until[node]}
            for reply in self.state.get_message_res(set(waiting), self.run_id):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                self.state.delete_messages({reply.metadata.reply_to_message_id})
                if reply.has_error():  # Flower's own words on a node that is gone
                    log.warning("no reply from node %s: %.200s", self._names.get(node, node), reply.error.reason)
                else:
                    coming[node] = reply
            # a node that dies while it sends must not keep the others waiting
            for node, reply in list(coming.items()):
                blob = self._pull(reply)
                if blob is not None:
                    del coming[node]
                    yield node, blob
            if now - looked > LOOK and (waiting or coming):
                looked, alive = now, self._born({*waiting.values(), *coming})
                late |= {node for node in {*waiting.values(), *coming} if alive.get(node) != born.get(node)}
            for name in [name for name, node in waiting.items() if node in late]:
                del waiting[name]
                self.state.delete_messages({name})
            for node in late & set(coming):
                with contextlib.suppress(Exception):
                    self.state.object_store.delete(coming[node].metadata.message_id)
                del coming[node]
            time.sleep(0.02)

    def _born(self, nodes: Iterable[int]) -> dict[int, str]:
        """When those of these nodes that are there came: one that was restarted has lost what it was asked."""
        found = self.state.get_node_info(node_ids=list(nodes), statuses=[NodeStatus.ONLINE])
        return {info.node_id: info.last_activated_at for info in found}

    def _push(self, node: int, blob: bytes, seconds: float) -> str:
        # what is not answered in time is deleted; Flower's own clock must never expire first
        message = Message(content(blob), node, MessageType.TRAIN, ttl=seconds + 600)
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            session = self.state.start_session(self.run_id)
            bare = message_from_proto(message_to_proto(remove_content_from_message(message)))
            stored, missing = self.state.store_message_and_object_tree(bare, get_object_tree(message), session)
            if stored:
                objects = get_all_nested_objects(message)
                for name in missing:
                    self.state.store_object(self.run_id, session, name, objects[name].deflate())
            return str(message.metadata.message_id)

    def _pull(self, reply: Message) -> bytes | None:
        """The packet of a reply; None where pieces are missing. What cannot be read is not a packet."""
        store, name = self.state.object_store, reply.metadata.message_id
        try:
            parts: dict[str, bytes] = {}
            for tree in iterate_object_tree(store.get_object_tree(name)):
                if not (content := store.get(tree.object_id)):
                    if content is None:
                        raise LookupError(tree.object_id)
                    return None
                parts[tree.object_id] = content
            blob = blob_of(cast(Message, inflate_object_from_contents(name, parts)))
        except Exception as error:  # whatever a node sent, the server lives on
            log.warning("a reply of node %s cannot be read: %s", reply.metadata.src_node_id, type(error).__name__)
            blob = b""
        with contextlib.suppress(Exception):
            store.delete(name)
        return blob


class _Quiet:
    """What Flower would start beside its HTTP interface: nothing."""

    def __init__(self, config: object, state: object) -> None:
        pass

    def startup(self) -> None:
        """Nothing."""

    def shutdown(self) -> None:
        """Nothing."""
