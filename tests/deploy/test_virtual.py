import importlib.util
from pathlib import Path

import pytest
import torch

from tacit.config import config
from tacit.data.sources import load
from tacit.deploy import virtual
from tacit.deploy.fleet import Terms
from tacit.deploy.server import Asked
from tacit.deploy.virtual import names, simulate
from tacit.errors import UserError
from tacit.evaluation.protocol import validated
from tacit.runs.folder import RunFolder
from tacit.runs.run import run

SETTINGS = {"dim": 4, "epochs": 1}


def asked(nodes=3, **options):
    made = config(method="pfedclr", data="demo", rounds=2, settings=SETTINGS, **options)
    return Asked(made, Path(), nodes, terms=Terms(deadline=3600), wait=3600)


def test_virtual_nodes_are_named_in_the_order_of_their_users():
    assert names(3) == ["n0", "n1", "n2"]
    assert names(11) == sorted(names(11))


def test_virtual_nodes_share_out_the_users_and_all_that_is_known_of_them(tmp_path):
    """Neighbours stay together, so that users have the numbers of `tacit run`; nobody is left out or there twice."""
    whole = load("demo", 30)
    nodes = [virtual._node("demo", 30, str(tmp_path), number, 7, "fedmf") for number in range(7)]
    assert [user for node in nodes for user in node.data.user_ids.tolist()] == whole.user_ids.tolist()
    sizes = [node.data.n_users for node in nodes]
    assert max(sizes) - min(sizes) <= 1
    found = [row for node in nodes for row in rows(node.data)]
    assert sorted(found) == sorted(rows(whole))
    assert [(node.name, node.vault.path, node.allow) for node in nodes] == [
        (name, tmp_path / name, ("fedmf",)) for name in names(7)
    ]


def rows(data):
    return zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), data.time.tolist(), strict=True)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is here")
def test_without_ray_a_sentence_says_what_to_install(tmp_path):
    with pytest.raises(UserError, match="virtual nodes need Ray"):
        simulate(asked(), tmp_path / "run")


@pytest.mark.slow
def test_virtual_nodes_on_ray_give_the_state_of_the_simulation(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    pytest.importorskip("flwr")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    found = simulate(asked(), tmp_path / "run", num_cpus=1, object_store_memory=100_000_000)
    expected = run("pfedclr", data="demo", rounds=2, settings=SETTINGS, threads=1, out=tmp_path / "simulated")
    one, other = (RunFolder.open(tmp_path / name).load("last")[0] for name in ("run", "simulated"))
    assert set(one) == set(other)
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, atol=1e-5, rtol=1e-5)
    assert found.test == pytest.approx({name: expected.test[name] for name in expected.valid}, abs=1e-6)
    assert found.users_evaluated == expected.users_evaluated
    for options, why in (({"secure": True}, "tacit run --secure"), ({"nodes": 10**6}, "is too many")):
        with pytest.raises(UserError, match=why):
            simulate(asked(**options), tmp_path / "other")


def test_virtual_nodes_validate_on_the_users_of_a_simulation():
    parts = [virtual._some(100, 1, 30, number, 7) for number in range(7)]
    assert torch.cat(parts).tolist() == validated(100, 1, 30).tolist()
    assert virtual._some(100, 1, None, 0, 7) is None
