import json

import numpy as np
import pytest
import torch

from deploy.direct import federation_of, job_of
from tacit.core.fleet import Guard, Traffic
from tacit.core.payload import decode
from tacit.deploy import commands
from tacit.deploy.forget import NOBODY, forget, refuse
from tacit.deploy.lists import recommend
from tacit.deploy.node import Node
from tacit.deploy.vault import Vault
from tacit.deploy.wire import Packet, unpack
from tacit.errors import UserError
from tacit.privacy.mechanisms import Gaussian
from toys import few_users

SETTINGS = {"dim": 4, "epochs": 1, "init": 0.1}


def rounds(fleet, server, first, last):
    from tacit.core.method import Moment

    ids = torch.arange(fleet.federation.n_clients)
    for round in range(first, last + 1):
        server = fleet.method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
    return server


def everything(folder):
    """All bytes of a node's folder but the catalogue, whose items have numbers for names as users have."""
    return b"".join(
        path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "job.json"
    )


@pytest.mark.parametrize("name", ["fedmf", "pfedgraph"])
@pytest.mark.parametrize("running", [True, False])
def test_a_forgotten_user_leaves_the_next_sums_and_the_disk(tmp_path, name, running):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, name, {"dim": 4, "epochs": 1}))
    node = link.named["n1"]
    user, number = node.work.users[2], 8 + 2
    server = rounds(fleet, fleet.method.init_server(fleet.federation), 1, 2)
    fleet.evaluate(server, "valid", 2)
    private = node.work.fleet.store.leaves
    vault, job = node.vault, node.work.job.id
    assert forget(vault.path, user)
    assert not forget(vault.path, user), "it was done before"
    if not running:
        link.named["n1"] = node = Node(node.data, vault.path, threads=1)
    roster = json.loads((vault.job(job) / "roster.json").read_text())
    assert roster["users"][2] == NOBODY
    assert f'"{user}"'.encode() not in everything(vault.path)
    for leaf in vault.load(job, 2, roster["users"]).values():
        assert len(leaf) != 8 or (leaf[2] == 0).all()
    assert number not in decode(unpack((vault.job(job) / "model.packet").read_bytes()).body).ids.tolist()
    before = fleet.count.refused
    link.seen.clear()
    rounds(fleet, server, 3, 3)
    assert fleet.count.refused == before
    ids = next(decode(unpack(asked).body).ids.tolist() for which, asked, _ in link.seen if which == "n1")
    assert number in ids, "its number stays, so that nobody else's changes"
    assert len(node.data.user[node.data.user == node.data.user_index(user)]) == 0
    others = node.work.fleet.store.leaves
    assert all(len(leaf) == len(others[n]) for n, leaf in private.items())
    found = fleet.evaluate(server, "valid", 3)
    assert found.users == 23
    with pytest.raises(UserError, match="was forgotten on this node"):
        refuse(vault, user)
    assert len(recommend(vault.path, node._all, node.work.users[3], 5)) == 5


@pytest.mark.parametrize("guard", [Guard(), Guard(robust="median")])
def test_what_a_forgotten_user_uploads_says_nothing_of_it(tmp_path, guard):
    """Two users of different tastes, forgotten: what is sent in their place is the same, by itself and in a sum."""
    ups = []
    for which in (0, 1):
        data = few_users(24)
        if which:
            swap = np.where(data.user == 10, (data.item + 7) % data.n_items, data.item)
            data = type(data)(**{**vars(data), "item": swap})
        fleet, link = federation_of(tmp_path / str(which), data, job_of(data, "fedmf", SETTINGS))
        fleet.guard = guard
        forget(link.named["n1"].vault.path, link.named["n1"].work.users[2])
        link.seen.clear()
        rounds(fleet, fleet.method.init_server(fleet.federation), 1, 1)
        up = next(decode(unpack(reply).body) for name, _, reply in link.seen if name == "n1")
        ups.append(up.only((up.ids == 10).nonzero()[:, 0]) if guard.robust else up)
    for name in ups[0].fields:
        assert torch.equal(ups[0][name], ups[1][name])
    others = fleet.federation.sizes[8:16].sum() - fleet.federation.sizes[10]
    assert float(ups[0]["weight"].sum()) == (0 if guard.robust else others)


def test_the_command_knows_who_is_there(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u in range(3) for i in range(4)))
    vault = Vault(tmp_path / "node")
    vault.write_json("node.json", {"name": "n"})
    vault.write_json("source.json", [str(file), "user", "item", None, []])
    with pytest.raises(UserError, match="no user 'u7'"):
        commands.forget(vault.path, "u7")
    assert commands.forget(vault.path, "u1")
    assert not commands.forget(vault.path, "u1")
    node = Node(commands._read((file, "user", "item", None)), vault.path)
    assert sorted(set(node.data.user_ids[node.data.user])) == ["u0", "u2"]
    with pytest.raises(UserError, match="'u1' was forgotten"):
        commands.recommend(vault.path, "u1", 3)
    (vault.path / "forgotten.json").write_text("[]")
    with pytest.raises(UserError, match=r"forgotten\.json is damaged"):
        Node(node.data, vault.path)


def test_nothing_of_a_forgotten_user_stays_in_a_ledger_or_in_half_written_and_damaged_files(tmp_path):
    data = few_users(24)
    noise = Gaussian(4.0, 0.5).stated()
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", SETTINGS, ldp=noise))
    node = link.named["n1"]
    rounds(fleet, fleet.method.init_server(fleet.federation), 1, 1)
    user, job = node.work.users[2], node.vault.job(fleet.job.id)
    for left in (node.vault.path / "ledger.json.new", job / "state" / "000002.safetensors.new"):
        left.write_text(f'"{user}"')
    (job / "state" / "000000.safetensors").write_text(f'"{user}"')
    (node.vault.path / "of another.new").write_text("mine")
    spent = json.loads((node.vault.path / "ledger.json").read_text())[fleet.job.id]["releases"]
    assert spent.pop(user) == 1
    with node.vault.held():  # as by a node that runs: it clears its ledger itself, before it answers again
        forget(node.vault.path, user)
        assert f'"{user}"' in (node.vault.path / "ledger.json").read_text()
    node.answer(Packet("anything").pack())
    assert f'"{user}"'.encode() not in everything(node.vault.path)
    assert json.loads((node.vault.path / "ledger.json").read_text())[fleet.job.id]["releases"] == spent
    assert (node.vault.path / "of another.new").exists()
    # and without one it is done at once
    forget(node.vault.path, next(iter(spent)))
    assert len(json.loads((node.vault.path / "ledger.json").read_text())[fleet.job.id]["releases"]) == len(spent) - 1


@pytest.mark.parametrize("how", [forget, commands.forget])
def test_nobody_is_forgotten_in_a_folder_that_is_no_nodes(tmp_path, how):
    with pytest.raises(UserError, match="typo is not a node's folder; nobody was forgotten"):
        how(tmp_path / "typo", "1")
    assert not (tmp_path / "typo").exists()
