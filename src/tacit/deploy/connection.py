"""A node's end: it asks the server for messages and answers them. It runs no code that a server sends."""

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from tacit.deploy.flower import HEARTBEAT, blob_of, content, on_loopback
from tacit.errors import UserError

log = logging.getLogger("tacit.node")

QUICK = 0.02  # seconds between two questions after an answer; a server that is silent is asked ever more rarely
PATIENCE = 2.5 * HEARTBEAT  # a node that was killed is let in again once the old one counts as gone


class Refusal(UserError):
    """The server knows neither this node nor its key."""


def serve(
    address: str,
    answer: Callable[[bytes], bytes],
    root: Path | None = None,
    key: ec.EllipticCurvePrivateKey | None = None,
    poll: float = 0.3,
    stop: threading.Event | None = None,
) -> None:
    """Answer the server at `address` until told to stop; where it is away, reconnect when it is back.

    Without `root`, the certificate that signs the server's, the connection is plain and only loopback will do.
    """
    host = address.rsplit(":", 1)[0].strip("[]")
    if root is None and not on_loopback(host):
        raise UserError(f"without TLS a node talks to this machine only; {host} needs --keys")
    if root is not None and not root.exists():
        raise UserError(f"there is no certificate {root}; tacit keys makes it")
    stop = stop or threading.Event()
    pair = generate_key_pairs() if key is None else (key, key.public_key())
    away, refused = False, 0.0

    def connected() -> None:
        nonlocal away, refused
        away, refused = False, 0.0
        log.info("connected")

    while not stop.is_set():
        try:
            with FleetHttpClient.from_server_address(
                address,
                root is None,
                None if root is None else root.read_bytes(),
                [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(*pair)],
            ) as client:
                _converse(client, answer, pair[1], key is None, poll, stop, connected)
        except httpx.HTTPStatusError as error:
            if not error.request.url.path.endswith("activate-node"):
                log.warning("the server at %s has forgotten this node; registering again", address)
            elif not refused:
                refused = time.monotonic()
                log.warning("the server at %s does not let this node in; trying again", address)
            elif time.monotonic() - refused > PATIENCE:
                raise Refusal(f"the server at {address} does not know this node's key") from error
        except httpx.TransportError as error:
            if isinstance(error.__context__, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY" in str(error):
                raise Refusal(f"the server at {address} is not the one of {root}: {error}") from error
            if not away:
                log.warning("no server at %s (%s); waiting for it", address, error)
            away = True
        stop.wait(1.0)


def _converse(
    client: FleetHttpClient,
    answer: Callable[[bytes], bytes],
    public: ec.EllipticCurvePublicKey,
    anonymous: bool,
    poll: float,
    stop: threading.Event,
    connected: Callable[[], None],
) -> None:
    name = public_key_to_bytes(public)
    if anonymous:
        with contextlib.suppress(httpx.HTTPStatusError):  # it is registered already
            client.RegisterNode(RegisterNodeFleetRequest(public_key=name))
    node = NodeProto(
        node_id=client.ActivateNode(ActivateNodeRequest(public_key=name, heartbeat_interval=HEARTBEAT)).node_id
    )
    connected()
    silent = threading.Event()

    def beat() -> None:
        while not silent.wait(HEARTBEAT / 2):
            with contextlib.suppress(httpx.HTTPError, ValueError):
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT))

    threading.Thread(target=beat, daemon=True).start()
    wait = QUICK
    try:
        while not stop.is_set():
            found = client.PullMessages(PullMessagesRequest(node=node))
            if not found.messages_list:
                stop.wait(wait)
                wait = min(1.5 * wait, poll)
                continue
            asked = message_from_proto(found.messages_list[0])
            tree, run = found.message_object_trees[0], asked.metadata.run_id
            parts = {part.object_id: _fetch(client, node, run, part.object_id) for part in iterate_object_tree(tree)}
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
            )
            message = cast(Message, inflate_object_from_contents(tree.object_id, parts))
            message.metadata.__dict__["_message_id"] = tree.object_id
            del parts
            _reply(client, node, Message(content(answer(blob_of(message))), reply_to=message))
            wait = QUICK
    finally:
        silent.set()
        with contextlib.suppress(
            httpx.HTTPError, ValueError
        ):  # or the server would take it for there, and not let it in
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _fetch(client: FleetHttpClient, node: NodeProto, run: int, name: str) -> bytes:
    for _ in range(600):
        found = client.PullObject(PullObjectRequest(node=node, run_id=run, object_id=name))
        if not found.object_found:
            break
        if found.object_available:
            return bytes(found.object_content)
        time.sleep(0.1)
    raise httpx.ReadError("a piece of a message is gone")


def _reply(client: FleetHttpClient, node: NodeProto, message: Message) -> None:
    run = message.metadata.run_id
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        pushed = client.PushMessages(
            PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
        )
        objects = get_all_nested_objects(message)
        for name in pushed.objects_to_push:
            client.PushObject(
                PushObjectRequest(
                    node=node,
                    run_id=run,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=pushed.session_id,
                )
            )
