import contextlib
import json
import logging
import random
import time

import pytest
import torch

from deploy.direct import Direct, federation_of, job_of
from deploy.test_checks import head
from deploy.test_fleet import METHODS, distributed
from tacit.core.fleet import Traffic
from tacit.deploy.fleet import FlowerFleet, Grown, Terms
from tacit.deploy.node import Node
from tacit.deploy.wire import MAGIC, VERSION, Packet, unpack
from toys import few_users


def raw(text):
    """A packet with this for its head."""
    blob = text if isinstance(text, bytes) else text.encode()
    return lambda reply: MAGIC + len(blob).to_bytes(4, "little") + blob


def deep(depth):
    return raw(f'["here", {{"version": {VERSION}, "users": ' + "[" * depth + "]" * depth + "}]")


BAD = {
    "a number for a head": (raw("12"), "not a kind"),
    "null for a head": (raw("null"), "not a kind"),
    "three parts": (raw('["here", {}, 1]'), "not a kind"),
    "bytes that are no text": (raw(b'["here", {"name": "\xff"}]'), "not JSON"),
    "a deep head": (deep(100_000), "not JSON"),
    "a head of some depth": (deep(500), "'users' is"),
    "a number of many digits": (raw('["here", {"users": ' + "9" * 10_000 + "}]"), "not JSON"),
    "no users": (head(users=None), "'users' is None"),
    "endless users": (head(users=float("inf")), "'users' is inf"),
    "half a user": (head(users=8.5), "'users' is 8.5"),
    "users in words": (head(users="8"), "'users' is '8'"),
    "a true number": (head(users=True), "'users' is True"),
    "negative users": (head(users=-1), "'users' is -1"),
    "a million users": (head(users=1_000_000, sizes=[1] * 1_000_000), "not a whole number from 0 to 100,000"),
    "more users than sizes": (head(users=9), "do not add up"),
    "sizes in words": (head(sizes="12345678"), "do not add up"),
    "sizes by name": (head(sizes={str(i): 1 for i in range(8)}), "do not add up"),
    "a size of none": (head(sizes=[1] * 7 + [None]), "number of interactions"),
    "a size of infinity": (head(sizes=[1] * 7 + [float("inf")]), "number of interactions"),
    "a size beyond the catalogue": (head(sizes=[1] * 7 + [10**6]), "number of interactions"),
    "dropped in words": (head(dropped="abc"), "'dropped' is 'abc'"),
    "dropped nan": (head(dropped=float("nan")), "'dropped' is nan"),
    "duplicates in a list": (head(duplicates=[1]), "'duplicates' is [1]"),
    "very many duplicates": (head(duplicates=10**30), "'duplicates' is 1000"),
    "groups in words": (head(groups="abcdefgh"), "groups are not a list"),
    "too few groups": (head(groups=["small"]), "groups are not a list"),
    "a group that is no text": (head(groups=["small"] * 7 + [1]), "name of a group"),
    "a long group": (head(groups=["small"] * 7 + ["x" * 1000]), "name of a group"),
    "half a letter": (head(groups=["small"] * 7 + ["\ud800"]), "name of a group"),
    "an unknown group": (head(groups=["small"] * 7 + ["gigantic"]), "unknown group 'gigantic'"),
    "no name": (head(name=""), "its name"),
    "a name of lines": (head(name="a\nb"), "its name"),
    "a list for a name": (head(name=["n1"]), "its name"),
    "another version": (head(version=VERSION + 1), f"version {VERSION + 1} of the protocol and this server version"),
    "a version in words": (head(version="new"), "version is not a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_greeting_is_refused_with_its_reason(tmp_path, case, caplog):
    spoil, reason = BAD[case]
    data = few_users(24)
    link = Direct({f"n{i}": Node(data, tmp_path / f"n{i}", f"n{i}", threads=1) for i in range(2)})
    small = few_users(8)
    link.named["n1"] = Node(small, tmp_path / "small", "n1", threads=1)
    link.spoil = {"n1": spoil}
    job = job_of(data, "hetefedrec", {"epochs": 1})
    fleet = FlowerFleet(link, job, job.build(), Terms(deadline=5.0))
    with caplog.at_level(logging.WARNING, "tacit.server"):
        assert fleet.gather(1, 5)
    assert [member.name for member in fleet.members] == ["n0"]
    assert fleet.count.refused == 1
    assert reason in caplog.text
    json.dumps([vars(member) for member in fleet.members]).encode()


def test_a_node_says_which_version_it_misses(tmp_path, caplog):
    data = few_users(8)
    node = Node(data, tmp_path / "node", threads=1)
    asked = Packet("hello", {"version": VERSION + 1}, b"whatever a later version sends")
    reply = unpack(node.answer(asked.pack()))
    assert (reply.kind, reply.head["version"]) == ("here", VERSION)
    assert f"version {VERSION + 1} of the protocol and this node version {VERSION}" in caplog.text
    job = job_of(data, "fedmf", METHODS["fedmf"]).dump()
    assert unpack(node.answer(Packet("hello", {"version": VERSION}, job).pack())).head["users"] == 8
    unpack(node.answer(Packet("hello", {}, job).pack()))  # the first edition did not say, and spoke otherwise
    assert f"version 1 of the protocol and this node version {VERSION}" in caplog.text


def test_a_node_of_many_silent_users_does_not_stop_the_others(tmp_path):
    """It announces four times as many users as all others have, and never answers again."""
    data = few_users(24)
    job = job_of(data, "fedmf", METHODS["fedmf"])
    fleet, link = federation_of(tmp_path / "nodes", data, job, parts=2)
    many = Node(data, tmp_path / "many", "many", threads=1)
    link.named["many"] = many
    greeting = Packet("here", {"version": VERSION, "name": "many", "users": 96, "sizes": [1] * 96}).pack()
    link.spoil = {"many": lambda reply: greeting if unpack(reply).kind == "here" else None}
    fleet = FlowerFleet(link, job, job.build(), Terms(deadline=5.0))
    assert fleet.gather(3, 5)
    assert fleet.federation.n_clients == 120
    server = distributed(fleet, rounds=2)
    assert fleet.evaluate(server, "valid", 2).users == 24
    link.gone = {"n0", "n1"}
    with pytest.raises(RuntimeError, match="0 of 120 clients"):
        list(fleet.train(server, torch.arange(120), 3, Traffic()))


NASTY = (
    None, True, -1, 8.5, 10**30, float("inf"), float("-inf"), float("nan"), "abc", "\ud800", "", [], {}, [[]] * 3,
    json.loads("[" * 300 + "]" * 300),
)  # fmt: skip


def bent(blob, draw):
    """A real message with a value of its head, or all of it, exchanged for what a reader stumbles over."""
    packet = unpack(blob)
    found = [packet.kind, dict(packet.head)]
    what = draw.choice([*packet.head, "round", "kind", "all"])
    if what == "all":
        found = draw.choice([12, *NASTY])
    elif what == "kind":
        found[0] = draw.choice(NASTY)
    else:
        value = found[1].get(what)
        if isinstance(value, list) and value and draw.random() < 0.5:
            found[1][what] = [*value[:-1], draw.choice(NASTY)]
        else:
            found[1][what] = draw.choice(NASTY)
    written = json.dumps(found).encode()
    return MAGIC + len(written).to_bytes(4, "little") + written + packet.body


def broken(blob, draw):
    """A real message with some of its bytes changed, cut out or doubled."""
    blob = bytearray(blob)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(blob) + 1), draw.randint(1, 12)
        what = draw.randrange(4)
        if what == 0:
            blob[at : at + length] = draw.randbytes(length)
        elif what == 1:
            del blob[at : at + length]
        elif what == 2:
            blob[at:at] = blob[at : at + length]
        elif len(blob) > 10:
            blob[6 + draw.randrange(4)] = draw.randrange(256)  # the length of the head
    return bytes(blob)


def test_no_mutation_of_a_real_message_gets_past_the_server(tmp_path):
    """Greetings, uploads and evaluations of one node, some thousand mutations of them, against the real checks."""
    data = few_users(9)
    job = job_of(data, "fedmf", {"dim": 2, "epochs": 1})
    fleet, link = federation_of(tmp_path, data, job)
    logging.getLogger("tacit.server").setLevel(logging.CRITICAL)
    server = fleet.method.init_server(fleet.federation)
    ids, draw = torch.arange(9), random.Random(0)
    real = {}
    for name in link.named:
        link.seen.clear()
        fleet._ids.clear()
        fleet._greet()
        list(fleet.train(server, ids, 1, Traffic()))
        fleet.evaluate(server, "valid", 1)
        real[name] = {unpack(reply).kind: reply for who, _, reply in link.seen if who == name}
        assert set(real[name]) == {"here", "trained", "evaluated"}

    class Recorded:
        def nodes(self):
            return dict.fromkeys(range(3))

        def ask(self, messages, seconds):
            kinds = {"hello": "here", "train": "trained", "evaluate": "evaluated"}
            for i, blob in messages.items():
                reply = real[f"n{i}"][kinds[unpack(blob).kind]]
                yield i, draw.choice([bent, broken])(reply, draw) if i == 1 else reply

    fleet.link = Recorded()

    def train():
        with contextlib.suppress(Grown):  # under a name that nobody has yet
            for up in fleet.train(server, ids, 1, Traffic()):
                assert torch.isfinite(up["items"]).all()

    def evaluate():
        found = fleet.evaluate(server, "valid", 1)
        assert all(0 <= value <= 1 for value in found.main.values())

    try:
        for act, times in ((fleet._greet, 2000), (evaluate, 1000), (train, 200)):
            began, before, tries = time.monotonic(), fleet.count.refused, 0
            while tries < times and time.monotonic() - began < 4:
                fleet._ids = {"n0": 0, "n2": 2} | ({} if act == fleet._greet else {"n1": 1})
                act()
                tries += 1
            assert tries > 20
            assert fleet.count.refused - before > tries / 3
    finally:
        logging.getLogger("tacit.server").setLevel(logging.NOTSET)
    assert [(m.name, m.users) for m in fleet.members if m.name in ("n0", "n2")] == [("n0", 3), ("n2", 3)]
