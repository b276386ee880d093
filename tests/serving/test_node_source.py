import csv

import pytest
from fastapi.testclient import TestClient

from deploy.direct import federation_of, job_of
from deploy.test_fleet import distributed
from tacit.deploy import commands
from tacit.deploy.vault import Vault
from tacit.serving.app import application
from tacit.serving.guard import LOOPBACK
from tacit.serving.source import source_of
from tacit.studio.app import Studio
from tacit.studio.app import application as studio_application
from tacit.studio.shelf import Shelf
from toys import few_users


@pytest.fixture
def node(tmp_path):
    """The folder of a node that has taken part in two rounds."""
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, job_of(data, "fedmf", {"dim": 4}))
    fleet.evaluate(distributed(fleet), "valid", 2)
    own = link.named["n1"].data
    with (tmp_path / "own.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "item"])
        rows.writerows((own.user_ids[u], own.item_ids[i]) for u, i in zip(own.user, own.item, strict=True))
    Vault(tmp_path / "n1").write_json("source.json", [str(tmp_path / "own.csv"), "user", "item", None, []])
    return tmp_path / "n1", str(own.user_ids[2])


def test_a_node_serves_its_own_users_until_it_forgets_them(node):
    path, user = node
    client = TestClient(application(source_of(path), LOOPBACK), base_url="http://127.0.0.1")
    found = client.get(f"/recommend/{user}?k=4").json()["recommendations"]
    assert [line["item"] for line in found] == [line.item for line in commands.recommend(path, user, 4)[1]]
    left = client.get(f"/recommend/{user}?k=3&exclude={found[0]['item']}").json()["recommendations"]
    assert [line["item"] for line in left] == [line["item"] for line in found[1:]]
    assert client.get("/recommend/nobody").status_code == 404
    assert client.post("/recommend", json={"items": ["i1"]}).status_code == 400
    assert client.get("/health").json()["node"] == str(path)
    commands.forget(path, user)
    assert client.get(f"/recommend/{user}").status_code == 410


def test_the_studio_shows_and_forgets_a_nodes_users(node):
    path, user = node
    made = Studio(Shelf([path]), path / "none", "secret")
    client = TestClient(
        studio_application(made, LOOPBACK), base_url="http://127.0.0.1", headers={"x-tacit-token": "secret"}
    )
    assert client.get("/api/runs").json()["nodes"] == ["n1"]
    found = client.get("/api/people/n1", params={"user": user, "k": 3}).json()
    assert len(found["lines"]) == 3
    assert client.post("/api/forget/n1", params={"user": user}).status_code == 200
    assert client.get("/api/people/n1", params={"user": user}).status_code == 410
