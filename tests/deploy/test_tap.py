"""What is on the wire between a server and a node, captured on loopback."""

import json
import socket
import threading
from collections import Counter

import numpy as np
import pytest
from safetensors.torch import load_file

pytest.importorskip("flwr")

from deploy.direct import items_file, shards
from tacit.config import config
from tacit.core.payload import decode
from tacit.data.interactions import from_columns
from tacit.data.splits import split
from tacit.deploy.connection import serve
from tacit.deploy.engine import Engine
from tacit.deploy.node import Node
from tacit.deploy.server import Asked, prepare, run
from tacit.deploy.wire import VERSION, Packet, unpack
from toys import few_users


class Tap:
    """A wire that remembers what passes: every connection is handed on, both ways."""

    def __init__(self, to):
        self.lines: list[tuple[bytearray, bytearray]] = []  # of each connection, from the node and to it
        self.to, self.listening = to, socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            inside, _ = self.listening.accept()
            outside = socket.create_connection(("127.0.0.1", self.to))
            kept = bytearray(), bytearray()
            self.lines.append(kept)
            for one, other, into in ((inside, outside, kept[0]), (outside, inside, kept[1])):
                threading.Thread(target=self.hand_on, args=(one, other, into), daemon=True).start()

    def hand_on(self, one, other, kept):
        try:
            while some := one.recv(1 << 16):
                kept.extend(some)
                other.sendall(some)
        except OSError:
            pass
        finally:
            other.close()


def cut(line):
    """The HTTP messages of a connection: (first line, bytes of the head, bytes of the body)."""
    found, place = [], 0
    while (end := line.find(b"\r\n\r\n", place)) >= 0:
        head = bytes(line[place:end]).lower().split(b"\r\n")
        (length,) = (int(word.split(b":")[1]) for word in head if word.startswith(b"content-length:"))
        found.append((head[0].decode(), end + 4 - place, length))
        place = end + 4 + length
    assert place == len(line), "something that is no HTTP"
    return found


def test_nothing_of_a_user_is_on_the_wire_and_the_bytes_are_those_of_the_record(tmp_path):
    few = few_users(24)
    names = np.array([f"person-{n:03d}-at-home" for n in range(24)])
    things = np.array([f"thing-{n:04d}-of-theirs" for n in range(few.n_items)])
    data = from_columns("few", names[few.user], things[few.item], few.time)
    made = config(method="fedmf", data="items", rounds=3, settings={"dim": 64, "epochs": 1})
    asked = Asked(made, items_file(tmp_path / "items.csv", data))
    folder, job = prepare(asked, tmp_path / "run")
    node, stop = Node(data, tmp_path / "node", "n0", threads=1), threading.Event()
    with Engine("127.0.0.1", 0) as engine:
        tap = Tap(engine.port)
        work = threading.Thread(target=serve, args=(f"127.0.0.1:{tap.port}", node.answer), kwargs={"stop": stop})
        work.start()
        try:
            summary = run(asked, folder, job, engine)
        finally:
            stop.set()
            work.join()
    up, down = (b"".join(bytes(line[side]) for line in tap.lines) for side in (0, 1))
    for word in (b"person-", b"at-home"):
        assert word not in up
        assert word not in down
    assert b"thing-0003-of-theirs" in down, "the catalogue is published"
    assert b"thing-" not in up, "which of the items, nobody says"
    histories = split(data, "strict").train
    for user in range(data.n_users):
        for kind in (np.int32, np.int64, np.float32):
            assert histories[user].astype(kind).tobytes() not in up
            assert np.sort(histories[user]).astype(kind).tobytes() not in up
    vectors = [v for file in (tmp_path / "node").rglob("*.safetensors") for v in load_file(file)["user"].numpy()]
    assert vectors
    assert not any(vector.tobytes() in up for vector in vectors)

    # what a run records, and what Flower adds: heads, and messages beside those that carry pieces of packets
    sent, heads, beside, calls = Counter(), Counter(), Counter(), Counter()
    for line in tap.lines:
        for request, reply in zip(*map(cut, line), strict=True):
            path = request[0].split()[1].rsplit("/", 1)[1]
            calls[path] += 1
            for way, (_, head, body) in (("up", request), ("down", reply)):
                heads[way] += head
                carries = path == {"up": "push-object", "down": "pull-object"}[way]
                (sent if carries else beside)[way] += body
    # the job with its catalogue, once, and the answer to it are no part of a round
    hello = Packet("hello", {"version": VERSION}, job.dump()).pack()
    greeting = {"down": len(hello), "up": len(node.answer(hello))}
    recorded = {"up": summary.bytes_up, "down": summary.bytes_down}
    print(
        json.dumps(
            {
                "recorded": recorded,
                "greeting": greeting,
                "carried": sent,
                "heads": heads,
                "beside": beside,
                "calls": calls,
            }
        )
    )
    for way in ("up", "down"):
        total = len(up if way == "up" else down)
        assert sent[way] + heads[way] + beside[way] == total
        # a message's pieces have names and sizes of their own
        assert 0 < sent[way] - recorded[way] - greeting[way] < 1500 * calls["push-messages"]


def test_every_node_downloads_the_same_small_model(tmp_path):
    """Whoever ranks gets the same bytes, and asks for nothing: what a node's users have does not show in them."""
    few = few_users(24)
    made = config(method="tally", data="items", settings={"small": 0.02, "ridge": 1.0, "blend": (0.0, 0.3)})
    asked = Asked(made, items_file(tmp_path / "items.csv", few), nodes=2)
    folder, job = prepare(asked, tmp_path / "run")
    taps, works, stop = [], [], threading.Event()
    heard: dict[int, list[Packet]] = {0: [], 1: []}

    def answering(place, node):
        def answer(blob):
            heard[place].append(unpack(blob))
            return node.answer(blob)

        return answer

    with Engine("127.0.0.1", 0) as engine:
        for place, own in enumerate(shards(few, 2)):
            taps.append(Tap(engine.port))
            node = Node(own, tmp_path / f"n{place}", f"n{place}", threads=1)
            where = f"127.0.0.1:{taps[-1].port}"
            works.append(threading.Thread(target=serve, args=(where, answering(place, node)), kwargs={"stop": stop}))
            works[-1].start()
        try:
            summary = run(asked, folder, job, engine)
        finally:
            stop.set()
            for work in works:
                work.join()
    sent = [[decode(p.body) for p in heard[place] if p.kind == "evaluate"] for place in (0, 1)]
    models = [[down["model"].numpy().tobytes() for down in one] for one in sent]
    assert len(set(models[0])) == 2, "one for each candidate, and once more the better one"
    assert models[0] == models[1]
    assert all(set(down.fields) == {"model"} for one in sent for down in one), "and nothing else"
    for tap, one in zip(taps, models, strict=True):
        down = b"".join(bytes(line[1]) for line in tap.lines)
        assert all(down.count(model) == one.count(model) for model in one)
    assert summary.bytes_to_rank == len(models[0][-1]) <= 20_000
