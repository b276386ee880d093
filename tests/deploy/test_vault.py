import stat
import subprocess
import sys

import pytest
import torch

from deploy.direct import federation_of, items_file, job_of
from deploy.processes import ENVIRONMENT, csv, free_port
from deploy.test_fleet import METHODS, distributed
from tacit.deploy import commands, keys
from tacit.deploy.fleet import FlowerFleet, Terms
from tacit.deploy.lists import recommend
from tacit.deploy.node import Node
from tacit.deploy.vault import KEPT, Vault
from tacit.deploy.wire import VERSION, Packet, unpack
from tacit.errors import UserError
from toys import few_users


def tree(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def greeted(folder, data, runs, **options):
    """A node that has heard of runs with these seeds."""
    node = Node(data, folder, "n", threads=1, **options)
    for run in runs:
        job = job_of(data, "fedmf", {"dim": 2, "epochs": 1}, run=str(run))
        assert unpack(node.answer(Packet("hello", {"version": VERSION}, job.dump()).pack())).kind == "here"
    return node


def test_a_real_node_leaves_a_foreign_folder_alone(tmp_path):
    csv(tmp_path / "interactions.csv", few_users(8))
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "one.jpg").write_text("cat")
    tmp_path.chmod(0o755)
    before = tree(tmp_path)
    command = [sys.executable, "-m", "tacit", "node", "interactions.csv", "--folder", ".", "--insecure"]
    done = subprocess.run(
        [*command, "--server", f"127.0.0.1:{free_port()}"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "tacit: . is not a node's folder and not empty; name another --folder\n"
    assert tree(tmp_path) == before
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_node_removes_only_what_it_made(tmp_path):
    folder = tmp_path / "node"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    data = few_users(8)
    greeted(folder, data, [0])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755, "a folder that it did not make"
    assert stat.S_IMODE((folder / "jobs").stat().st_mode) == 0o700
    for place in (folder / "photos", folder / "jobs" / "photos", folder / "jobs" / ("a" * 24)):
        place.mkdir()
        (place / "one.jpg").write_text("cat")
    greeted(folder, data, range(1, KEPT + 3))
    for place in (folder / "photos", folder / "jobs" / "photos", folder / "jobs" / ("a" * 24)):
        assert (place / "one.jpg").read_text() == "cat"
    assert len(Vault(folder).jobs()) == KEPT


def test_a_third_run_leaves_the_first_ones_private_state(tmp_path):
    data = few_users(12)
    job = job_of(data, "pfedclr", METHODS["pfedclr"])
    _, link = federation_of(tmp_path, data, job, parts=1)
    fleet = FlowerFleet(link, job, job.build(), Terms(deadline=5.0))
    fleet.gather(1, 5)
    distributed(fleet, rounds=1)
    for run in ("second", "third"):
        later = job_of(data, "pfedclr", METHODS["pfedclr"], run=run)
        link.named["n0"].answer(Packet("hello", {"version": VERSION}, later.dump()).pack())
    assert link.named["n0"].vault.rounds(job.id) == [1]


def test_a_folder_of_the_first_edition_opens(tmp_path):
    data = few_users(12)
    job = job_of(data, "pfedclr", METHODS["pfedclr"])
    fleet, link = federation_of(tmp_path, data, job, parts=1)
    fleet.evaluate(distributed(fleet, rounds=1), "valid", 1)
    user = str(data.user_ids[3])
    expected = recommend(tmp_path / "n0", data, user, 3)
    folder = tmp_path / "n0"
    (folder / "jobs" / job.id).rename(folder / job.id)
    (folder / "jobs").rmdir()
    (folder / "photos").mkdir()
    assert recommend(folder, data, user, 3) == expected
    assert tree(folder / "photos") == []
    assert link.named["n0"].vault.rounds(job.id) == [1]


def test_what_a_node_was_started_with_holds_for_older_jobs(tmp_path, caplog):
    data = few_users(24)
    job = job_of(data, "fedmf", METHODS["fedmf"])
    fleet, link = federation_of(tmp_path, data, job)
    server = distributed(fleet, rounds=1)
    for name, node in list(link.named.items()):
        link.named[name] = Node(node.data, node.vault.path, threads=1, secure=True)
    link.seen.clear()
    with pytest.raises(RuntimeError, match="0 of 24 clients"):
        distributed(fleet, rounds=2, first=2, server=server)
    assert {unpack(reply).kind for _, _, reply in link.seen} == {"sorry"}
    assert "it takes part in secure sums only" in caplog.text
    with pytest.raises(RuntimeError, match="0 of 24 users"):
        fleet.evaluate(server, "valid", 1)


def test_the_model_before_serves_until_there_is_a_new_one(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "pfedclr", METHODS["pfedclr"]))
    fleet.evaluate(distributed(fleet), "valid", 2)
    node, user = link.named["n1"], str(link.named["n1"].data.user_ids[2])
    file = csv(tmp_path / "own.csv", node.data)
    node.vault.write_json("source.json", [str(file), "user", "item", None, []])
    before = commands.recommend(tmp_path / "n1", user, 5)
    later = job_of(data, "fedmf", METHODS["fedmf"], run="later")
    again = FlowerFleet(link, later, later.build(), Terms(deadline=5.0))
    assert again.gather(3, 5)
    assert commands.recommend(tmp_path / "n1", user, 5) == before
    server = distributed(again, rounds=1)
    assert commands.recommend(tmp_path / "n1", user, 5) == before
    again.evaluate(server, "valid", 1)
    assert commands.recommend(tmp_path / "n1", user, 5) != before


def test_a_truncated_state_falls_back_to_the_one_before(tmp_path, caplog):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "pfedclr", METHODS["pfedclr"]))
    server = distributed(fleet)
    fleet.evaluate(server, "valid", 2)
    old = link.named["n1"]
    newest = old.vault.job(fleet.job.id) / "state" / "000002.safetensors"
    whole = newest.read_bytes()
    for blob in (whole[:-7], whole[: len(whole) // 2], b""):
        newest.write_bytes(blob)
        back = Node(old.data, old.vault.path, threads=1)
        assert len(recommend(tmp_path / "n1", old.data, str(old.data.user_ids[2]), 5)) == 5
        head = {"job": fleet.job.id, "place": [8, 8], "round": 2, "phase": "valid"}
        back._ready(Packet("evaluate", head)).stand_at(2)
        assert back.work.round == 1
        assert "private state of round 2 is damaged" in caplog.text


@pytest.mark.parametrize("blob", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"name": 3}', b"[" * 100_000])
def test_a_damaged_file_gets_a_sentence(tmp_path, blob, caplog):
    data = few_users(8)
    node = greeted(tmp_path / "node", data, [0])
    job = node.vault.current
    folder = node.vault.job(job)
    good = {name: (folder / name).read_bytes() for name in ("job.json", "roster.json")}
    for name in good:
        (folder / name).write_bytes(blob)
        back = Node(data, tmp_path / "node", threads=1)
        with pytest.raises(UserError, match=rf"{name} (is damaged|cannot be read)"):
            back._ready(Packet("train", {"job": job, "place": [0, 0]}))
        caplog.clear()
        assert unpack(back.answer(Packet("train", {"job": job, "place": [0, 0]}).pack())).kind == "sorry"
        assert "Traceback" not in caplog.text
        (folder / name).write_bytes(good[name])
    (tmp_path / "node" / "node.json").write_bytes(blob)
    with pytest.raises(UserError, match=r"node\.json (names no node|cannot be read)"):
        Node(data, tmp_path / "node", threads=1)


def test_places_that_cannot_be_used_get_a_sentence(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for wrong in (tmp_path / "file" / "keys", tmp_path / "file"):
        with pytest.raises(UserError, match="cannot keep keys in"):
            keys.make(wrong, ["127.0.0.1"], ["n0"])
        with pytest.raises(UserError, match="cannot keep a node in"):
            Vault(wrong)


@pytest.mark.parametrize("port", [99999, -1])
def test_a_port_that_is_none_gets_a_sentence(tmp_path, port):
    pytest.importorskip("flwr")
    items_file(tmp_path / "items.csv", few_users(8))
    command = [sys.executable, "-m", "tacit", "server", "fedmf", "--catalogue", "items.csv", "--out", "run"]
    done = subprocess.run(
        [*command, "--insecure", f"--port={port}"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"tacit: --port {port} is not a port")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_server_cannot_fill_a_disk_with_states(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", {"dim": 4, "epochs": 1}))
    node, server = link.named["n0"], fleet.method.init_server(fleet.federation)
    down = fleet.method.downlink(server, torch.arange(2)).encode()
    for keep, kind in ((list(range(99)), "sorry"), ([], "sorry"), ([1], "trained")):
        for round in range(1, 9):
            head = {"job": fleet.job.id, "place": [0, 0], "keep": keep, "round": round}
            assert unpack(node.answer(Packet("train", head, down).pack())).kind == kind
        assert len(node.vault.rounds(fleet.job.id)) <= 4


def test_a_folder_has_one_node(tmp_path, monkeypatch):
    file = tmp_path / "own.csv"
    file.write_text("user,item\na,x\na,y\nb,x\n")
    monkeypatch.setattr(commands, "_speak", lambda: None)
    with Vault(tmp_path / "node").held() as alone:
        assert alone
        with pytest.raises(UserError, match=r"another node runs in .*node; stop it, or name another --folder"):
            commands.node(
                (file, "user", "item", None),
                "127.0.0.1:1",
                tmp_path / "node",
                None,
                True,
                name="n",
                allow=(),
                threads=1,
            )
