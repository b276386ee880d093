import json
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch

from deploy.direct import cut, federation_of, job_of
from deploy.processes import csv
from deploy.test_fleet import METHODS, distributed
from tacit.core.payload import decode
from tacit.data.imported import read_file, read_items
from tacit.data.interactions import from_columns
from tacit.deploy import lists
from tacit.deploy.lists import recommend
from tacit.deploy.node import Node, reopened
from tacit.deploy.vault import Vault, write
from tacit.deploy.wire import VERSION, BadPacket, Packet, unpack
from tacit.errors import UserError
from toys import few_users


@pytest.fixture
def trained(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "pfedclr", METHODS["pfedclr"]))
    server = distributed(fleet)
    fleet.evaluate(server, "valid", 2)
    return fleet, link, server


def everything(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_a_node_keeps_is_its_owners_alone(trained, tmp_path):
    files = everything(tmp_path / "n0")
    assert {file.name for file in files} >= {
        "node.json",
        "job.json",
        "roster.json",
        "model.packet",
        "000002.safetensors",
    }
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600, file
    for folder in (p for p in (tmp_path / "n0").rglob("*") if p.is_dir()):
        assert folder.stat().st_mode & 0o077 == 0


def test_a_write_that_is_cut_short_leaves_the_old_file(tmp_path, monkeypatch):
    write(tmp_path / "file", b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no power")))
    with pytest.raises(OSError, match="no power"):
        write(tmp_path / "file", b"new and longer")
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"old"
    write(tmp_path / "file", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_private_state_belongs_to_the_users_named_in_it(tmp_path):
    vault = Vault(tmp_path)
    vault.save("job", 3, {"user": torch.ones(2, 4)}, ["a", "b"])
    assert torch.equal(vault.load("job", 3, ["a", "b"])["user"], torch.ones(2, 4))
    with pytest.raises(UserError, match="other users"):
        vault.load("job", 3, ["b", "a"])


def test_recommendations_without_a_server(trained, tmp_path):
    fleet, link, server = trained
    node = link.named["n1"]
    user = str(node.data.user_ids[2])
    lines = recommend(tmp_path / "n1", node.data, user, 5)
    have = {str(i) for i in node.data.item_ids[node.data.item[node.data.user == 2]]}
    assert len(lines) == 5
    assert not have & {line.item for line in lines}
    assert [line.score for line in lines] == sorted((line.score for line in lines), reverse=True)
    scores = node.work.fleet.scores_of(server, 8 + 2, "test")
    place = {item: i for i, item in enumerate(fleet.job.items)}
    for line in lines:
        assert line.score == pytest.approx(float(scores[place[line.item]]), abs=1e-6)
    with pytest.raises(UserError, match="no user 'nobody'"):
        recommend(tmp_path / "n1", node.data, "nobody")


def test_a_newcomer_is_served_after_training_alone(trained, tmp_path):
    _, link, _ = trained
    node = link.named["n1"]
    data, before = node.data, [(f, f.read_bytes()) for f in everything(tmp_path / "n1")]
    user, item = [str(data.user_ids[u]) for u in data.user], [str(data.item_ids[i]) for i in data.item]
    likes = item[:12]
    more = from_columns(
        "own", np.array([*user, *["newcomer"] * 12]), np.array([*item, *likes]), np.arange(len(item) + 12.0)
    )
    lines = recommend(tmp_path / "n1", more, "newcomer", 5)
    assert len(lines) == 5
    assert not set(likes) & {line.item for line in lines}
    assert all((f.read_bytes() == old) for f, old in before), "serving a newcomer changed what is kept"
    one = recommend(tmp_path / "n1", more, user[0], 3)
    assert one == recommend(tmp_path / "n1", data, user[0], 3), "a newcomer moved the others"


def test_a_newcomer_learns_from_its_own_items_before_it_is_served(trained, tmp_path, monkeypatch):
    _, link, _ = trained
    data = link.named["n1"].data
    user, item = [str(data.user_ids[u]) for u in data.user], [str(data.item_ids[i]) for i in data.item]
    likes = list(dict.fromkeys(item))[::9]
    rows = (np.array([*user, *["newcomer"] * len(likes)]), np.array([*item, *likes]))
    vault = Vault(tmp_path / "n1")
    work = reopened(vault, vault.current, from_columns("own", *rows, np.arange(len(rows[0]) * 1.0)), 1, ())
    down = decode(unpack((vault.job(work.job.id) / "model.packet").read_bytes()).body)
    liked = torch.tensor([i in likes for i in work.job.items])

    def lead():
        scores = lists._newcomer(work, down, "newcomer")
        return float((scores[liked].mean() - scores[~liked].mean()) / scores.std())

    learnt = lead()
    monkeypatch.setattr(lists, "ALONE", 0)
    assert learnt > 1 > abs(lead())


def test_a_node_that_comes_back_has_its_private_state(trained, tmp_path):
    _, link, _ = trained
    old = link.named["n0"]
    back = Node(old.data, old.vault.path, threads=1)
    assert back.name == "n0"
    head = {"job": old.work.job.id, "place": [0, 0], "round": 2, "phase": "valid"}
    model = unpack((old.vault.job(old.work.job.id) / "model.packet").read_bytes())
    assert unpack(back.answer(Packet("evaluate", head, model.body).pack())).kind == "evaluated"
    for name, leaf in old.work.fleet.store.leaves.items():
        assert torch.equal(back.work.fleet.store.leaves[name], leaf)


def test_unknown_items_are_dropped_and_counted(tmp_path):
    data = few_users(24)
    job = job_of(cut(data, torch.arange(10).numpy()), "fedmf", METHODS["fedmf"])
    fleet, _ = federation_of(tmp_path, data, job)
    assert fleet.federation.n_items == len(job.items) < data.n_items
    unknown = ~torch.isin(torch.from_numpy(data.item), torch.from_numpy(data.item[data.user < 10])).numpy()
    assert sum(m.dropped for m in fleet.members) == unknown.sum() > 0
    distributed(fleet, rounds=1)


def test_a_node_builds_no_method_from_elsewhere(tmp_path, caplog):
    data = few_users(8)
    job = job_of(data, "os:system")
    node = Node(data, tmp_path / "node", threads=1)
    assert unpack(node.answer(Packet("hello", {"version": VERSION}, job.dump()).pack())).kind == "sorry"
    assert "--allow os:system" in caplog.text
    own = job_of(data, "tacit.core.trained:Trained", {"dim": 2})
    allowed = Node(data, tmp_path / "node", threads=1, allow=("tacit.core.trained:Trained",))
    assert unpack(allowed.answer(Packet("hello", {"version": VERSION}, own.dump()).pack())).kind == "here"


def test_a_model_that_cannot_be_read_is_a_sentence(trained):
    _, link, _ = trained
    node = link.named["n0"]
    path = node.vault.job(node.work.job.id) / "model.packet"
    packet = unpack(path.read_bytes())
    write(path, Packet(packet.kind, packet.head, packet.body[:-1]).pack())
    with pytest.raises(UserError, match=r"cannot be read .* next evaluation"):
        recommend(node.vault.path, node.data, node.work.users[0])


def test_a_node_makes_no_mechanism_from_elsewhere(tmp_path, caplog):
    data, kind = few_users(8), "tacit.privacy.mechanisms:Laplace"
    job = replace(job_of(data, "fedmf", {"dim": 2}), ldp={"kind": kind, "scale": 1.0, "clip": 1.0})
    hello = Packet("hello", {"version": VERSION}, job.dump()).pack()
    assert unpack(Node(data, tmp_path / "node", threads=1).answer(hello)).kind == "sorry"
    assert f"--allow {kind}" in caplog.text
    assert unpack(Node(data, tmp_path / "other", threads=1, allow=(kind,)).answer(hello)).kind == "here"


def test_what_goes_wrong_is_told_by_its_name_alone(tmp_path):
    node = Node(few_users(8), tmp_path, threads=1)
    for blob in (
        b"",
        b"noise" * 9,
        Packet("dance").pack(),
        Packet("train", {"job": "../../etc", "place": [0, 0]}).pack(),
    ):
        reply = unpack(node.answer(blob))
        assert reply.kind == "sorry"
        assert set(reply.head) == {"error"}
        assert reply.head["error"].isidentifier()


def test_packets_come_back_and_anything_else_does_not():
    packet = Packet("train", {"round": 3, "place": [1, 2]}, b"\x00body")
    assert unpack(packet.pack()) == packet
    for blob in (
        packet.pack()[:11],
        b"",
        b"tacit1",
        json.dumps(["a", {}]).encode(),
        Packet("a").pack()[:6] + b"\xff" * 4,
    ):
        with pytest.raises(BadPacket):
            unpack(blob)


def test_a_node_reads_sqlite(tmp_path):
    data = few_users(5)
    table = read_file(csv(tmp_path / "own.csv", data))
    path = tmp_path / "own.db"
    with sqlite3.connect(path) as base:
        base.execute("create table interactions (user text, item text, time real)")
        base.execute("create table other (x)")
        rows = zip(
            data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), data.time.tolist(), strict=True
        )
        base.executemany("insert into interactions values (?, ?, ?)", list(rows))
    base.close()
    assert read_file(path).fingerprint() == table.fingerprint()
    with sqlite3.connect(path) as base:
        base.execute("alter table interactions rename to visits")
    base.close()
    with pytest.raises(UserError, match="tables visits, other; call the one to read 'interactions'"):
        read_file(path)
    path.write_bytes(b"not a data base at all" * 100)
    with pytest.raises(UserError, match="not a readable SQLite file"):
        read_file(path)


def test_a_catalogue_is_a_file(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("item,title\n7,Seven\nb,\n")
    assert read_items(path) == (("7", "b"), ("Seven", "b"))
    path.write_text("item\n7\n8\n7\n")
    with pytest.raises(UserError, match="line 4: the item '7' is there twice"):
        read_items(path)
    path.write_text("name\n7\n")
    with pytest.raises(UserError, match=r"unknown column of items\.csv 'item'"):
        read_items(path)
