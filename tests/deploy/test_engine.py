import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from deploy.processes import free_port
from tacit.config import config
from tacit.deploy import commands, connection, keys
from tacit.deploy.connection import Refusal, serve
from tacit.deploy.engine import MOST_REQUEST, Engine
from tacit.errors import UserError


@contextmanager
def nodes(port, answers, folder=None):
    """A thread for each node, with its own key where there is a folder of keys."""
    stop, failed = threading.Event(), []

    def work(name, answer):
        where = folder / "nodes" / name if folder else None
        secure = {"root": where / "ca.crt", "key": keys.own(where / "node.key")} if where else {}
        try:
            serve(f"127.0.0.1:{port}", answer, poll=0.05, stop=stop, **secure)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in answers.items()]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def present(engine, count, seconds=300):
    until = time.monotonic() + seconds
    while len(found := engine.nodes()) < count:
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    keys.make(folder, ["127.0.0.1", "localhost"], ["a", "b"])
    return folder


def secured(folder, port):
    server = folder / "server"
    return Engine("127.0.0.1", port, server / "server.crt", server / "server.key", keys.allowed(server))


def test_messages_go_to_nodes_with_keys_and_come_back(made):
    port = free_port()
    with secured(made, port) as engine, nodes(port, {"a": bytes.upper, "b": bytes.lower}, made) as failed:
        there = {name: node for node, name in present(engine, 2).items()}
        assert set(there) == {"a", "b"}
        big = bytes(range(256)) * 50_000  # more than two of Flower's pieces
        for blob in (b"", b"Hello", big):
            found = dict(engine.ask(dict.fromkeys(there.values(), blob), 300))
            assert found == {there["a"]: blob.upper(), there["b"]: blob.lower()}
        assert failed == []


def test_a_slow_node_is_left_behind_and_answers_the_next_time():
    port, released = free_port(), threading.Event()

    def late(blob):
        released.wait(300)
        return blob

    with Engine("127.0.0.1", port) as engine, nodes(port, {"a": late, "b": lambda blob: blob}):
        there = present(engine, 2)
        began = time.monotonic()
        assert len(list(engine.ask(dict.fromkeys(there, b"one"), 5.0))) == 1
        assert time.monotonic() - began < 10
        released.set()
        assert dict(engine.ask(dict.fromkeys(there, b"two"), 300)) == dict.fromkeys(there, b"two")


def test_a_node_that_dies_while_it_sends_does_not_hold_up_the_others(monkeypatch):
    port, died = free_port(), threading.Event()
    push = connection.FleetHttpClient.PushObject

    def cut_off(self, request):
        if b"never whole" in request.object_content:
            died.set()
            raise httpx.ReadError("the line is dead")
        return push(self, request)

    def second(blob):
        died.wait(300)
        return blob

    monkeypatch.setattr(connection.FleetHttpClient, "PushObject", cut_off)
    with Engine("127.0.0.1", port) as engine, nodes(port, {"a": lambda blob: b"never whole", "b": second}):
        replies = engine.ask(dict.fromkeys(present(engine, 2), b"one"), 120)
        assert next(replies)[1] == b"one", "announced later than the one that never comes"
        replies.close()


@pytest.mark.parametrize("back", [False, True])
def test_a_node_that_dies_while_it_sends_does_not_cost_a_deadline(monkeypatch, back):
    """Gone for good, or there again at once with nothing in mind."""
    port, dead = free_port(), threading.Event()
    push = connection.FleetHttpClient.PushObject

    def cut_off(self, request):
        if b"never whole" in request.object_content:
            dead.set()
            raise httpx.ReadError("the line is dead")
        return push(self, request)

    wait = threading.Event.wait
    monkeypatch.setattr(connection.FleetHttpClient, "PushObject", cut_off)
    if not back:  # the node does not try again
        monkeypatch.setattr(threading.Event, "wait", lambda s, t=None: wait(s, 60 if dead.is_set() and t == 1.0 else t))
    with Engine("127.0.0.1", port) as engine, nodes(port, {"a": lambda blob: b"never whole"}):
        began = time.monotonic()
        assert list(engine.ask(dict.fromkeys(present(engine, 1), b"one"), 40)) == []
        assert dead.is_set()
        assert time.monotonic() - began < 15


def test_each_node_has_its_own_time():
    port, over = free_port(), threading.Event()

    def slow(blob):
        over.wait(300)
        return blob

    with Engine("127.0.0.1", port) as engine, nodes(port, {"a": slow, "b": bytes.upper}):
        there = present(engine, 2)
        began = time.monotonic()
        first = dict(engine.ask(dict.fromkeys(there, b"who"), 8.0))
        (quick,) = first
        (other,) = set(there) - set(first)
        assert first == {quick: b"WHO"}
        began = time.monotonic()
        assert list(engine.ask({quick: b"x", other: b"x"}, {quick: 60.0, other: 0.5})) == [(quick, b"X")]
        assert time.monotonic() - began < 20
        over.set()


def test_a_server_that_comes_back_finds_its_nodes(made):
    port = free_port()
    with nodes(port, {"a": bytes.upper}, made) as failed:
        for _ in range(2):
            with secured(made, port) as engine:
                (node,) = present(engine, 1)
                assert dict(engine.ask({node: b"x"}, 300)) == {node: b"X"}
        assert failed == []


def test_a_key_that_was_not_registered_is_refused(made, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 2.0)
    keys.make(tmp_path, ["127.0.0.1"], ["a"])  # another authority's key, with this one's certificate
    (tmp_path / "nodes" / "a" / "ca.crt").write_bytes((made / "ca.crt").read_bytes())
    port = free_port()
    with secured(made, port) as engine, nodes(port, {"a": bytes.upper}, tmp_path) as failed:
        until = time.monotonic() + 300
        while not failed and time.monotonic() < until:
            time.sleep(0.1)
        assert engine.nodes() == {}
        assert engine.rejected["127.0.0.1"] >= 1
    assert isinstance(failed[0], Refusal)
    assert "does not know this node's key" in str(failed[0])


def test_a_server_with_another_authority_is_refused(made, tmp_path):
    keys.make(tmp_path, ["127.0.0.1"], ["a"])
    port = free_port()
    with secured(made, port), nodes(port, {"a": bytes.upper}, tmp_path) as failed:
        until = time.monotonic() + 300
        while not failed and time.monotonic() < until:
            time.sleep(0.1)
    assert isinstance(failed[0], Refusal)
    assert "is not the one of" in str(failed[0])


def test_plain_text_is_refused(made):
    port = free_port()
    with secured(made, port):
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/fleet/activate-node", data=b"x", timeout=5)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            plain.sendall(b"POST /v1/fleet/register-node HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            assert not plain.recv(1000).startswith(b"HTTP/1.1 2")


def status(port, path, root, body=b"x"):
    trust = ssl.create_default_context(cafile=root)
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data=body)
    request.add_header("content-type", "application/x-protobuf")
    try:
        with urllib.request.urlopen(request, context=trust, timeout=10) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_nodes_reach_the_fleets_paths_alone(made):
    port = free_port()
    with secured(made, port):
        for path in (
            "/v1/control/start-run",
            "/v1/control/register-node",
            "/v1/runtime/acquire-task",
            "/docs",
            "/health",
        ):
            assert status(port, path, made / "ca.crt") == 404
        assert status(port, "/v1/fleet/../control/start-run", made / "ca.crt") in (400, 401, 404)
        assert status(port, "/v1/fleet/register-node", made / "ca.crt") in (400, 401, 403, 415, 422)
        trust = ssl.create_default_context(cafile=made / "ca.crt")
        raw = socket.create_connection(("127.0.0.1", port), timeout=5)
        with trust.wrap_socket(raw, server_hostname="127.0.0.1") as line:
            line.sendall(
                f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: {MOST_REQUEST + 1}\r\n\r\n".encode()
            )
            assert b" 413 " in line.recv(200).split(b"\r\n")[0]
        raw = socket.create_connection(("127.0.0.1", port), timeout=5)
        with trust.wrap_socket(raw, server_hostname="127.0.0.1") as line:
            line.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            assert b" 413 " in line.recv(200).split(b"\r\n")[0]


def test_a_strangers_body_is_not_taken_in(made, tmp_path):
    """Flower reads a request and then asks who sent it: as many bodies of 32 MB as there are connections."""
    keys.make(tmp_path, ["127.0.0.1"], ["a"])
    known, other = (keys.own(folder / "nodes" / "a" / "node.key") for folder in (made, tmp_path))
    at = datetime.now(UTC).isoformat()
    lines = [(key, key.sign(at.encode(), ec.ECDSA(hashes.SHA256()))) for key in (known, other)]
    port = free_port()
    with secured(made, port) as engine:
        trust = ssl.create_default_context(cafile=made / "ca.crt")
        for key, signature in ((None, b""), (other, lines[1][1]), (known, lines[1][1]), (known, b"x")):
            raw = socket.create_connection(("127.0.0.1", port), timeout=10)
            with trust.wrap_socket(raw, server_hostname="127.0.0.1") as line:
                public = b"" if key is None else public_key_to_bytes(key.public_key())
                head = {
                    "host": "x",
                    "content-type": "application/protobuf",
                    "content-length": "1000000",
                    FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
                    FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
                    TIMESTAMP_HEADER: at,
                }
                text = "".join(f"{name}: {value}\r\n" for name, value in head.items())
                line.sendall(f"POST /v1/fleet/activate-node HTTP/1.1\r\n{text}\r\nx".encode())
                assert b" 401 " in line.recv(200).split(b"\r\n")[0], "long before the body is there"
        assert engine.rejected == {"127.0.0.1": 4}


def test_without_tls_nothing_but_this_machine_is_served_or_talked_to():
    with pytest.raises(UserError, match="needs --keys"):
        Engine("0.0.0.0", free_port())
    with pytest.raises(UserError, match="needs --keys"):
        serve("10.1.2.3:8477", bytes)


def test_to_go_without_keys_must_be_asked_for_by_name(tmp_path):
    with pytest.raises(UserError, match="ask for --insecure on this machine only"):
        commands.node(
            (tmp_path, "user", "item", None), "127.0.0.1:1", tmp_path, None, False, name=None, allow=(), threads=1
        )
    with pytest.raises(UserError, match="ask for --insecure on this machine only"):
        commands.server(config(method="fedmf"), tmp_path, tmp_path, ("127.0.0.1", 0), None, False, terms={})


def test_a_port_that_is_taken_is_said_so():
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="cannot listen on"):
            Engine("127.0.0.1", taken.getsockname()[1])


def test_keys_are_added_to_and_kept(tmp_path):
    first = keys.make(tmp_path, ["example.org", "10.0.0.7"], ["a"])
    assert {p.relative_to(tmp_path).as_posix() for p in first} == {
        "ca.key", "ca.crt", "server/server.key", "server/server.crt",
        "nodes/a/node.key", "nodes/a/node.crt", "nodes/a/ca.crt", "server/nodes/a.pub",
    }  # fmt: skip
    for path in first:
        assert path.stat().st_mode & 0o777 == (0o600 if path.suffix == ".key" else 0o644)
    authority = (tmp_path / "ca.crt").read_bytes()
    again = keys.make(tmp_path, [], ["a", "b"])
    assert {p.name for p in again} == {"node.key", "node.crt", "ca.crt", "b.pub"}
    assert (tmp_path / "ca.crt").read_bytes() == authority == (tmp_path / "nodes" / "b" / "ca.crt").read_bytes()
    assert set(keys.allowed(tmp_path / "server")) == {"a", "b"}
    for name in ("../x", "", ".hidden", "a b"):
        with pytest.raises(UserError, match="cannot name a node"):
            keys.make(tmp_path, [], [name])
    own = tmp_path / "nodes" / "a" / "node.key"
    own.chmod(0o644)
    with pytest.raises(UserError, match="can be read by others"):
        keys.own(own)
