import json
import random
import re

import httpx
import pytest
from benchmarks.serving import anything
from fastapi.testclient import TestClient

import tacit
from tacit.errors import UserError
from tacit.runs import life
from tacit.runs.model import load
from tacit.runs.run import reopen
from tacit.serving.app import application
from tacit.serving.guard import LOOPBACK, MOST
from tacit.serving.source import RunSource, source_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tacit.run("tally", data="demo", threads=1, out=tmp_path_factory.mktemp("serve") / "tally").folder


@pytest.fixture(scope="module")
def client(run):
    return asking(source_of(_path(run)))


def _path(run):
    from pathlib import Path

    return Path(run)


def asking(source):
    return TestClient(application(source, LOOPBACK), base_url="http://127.0.0.1", raise_server_exceptions=False)


def listed(answer):
    assert answer.status_code == 200, answer.text
    return [(line["item"], pytest.approx(line["score"])) for line in answer.json()["recommendations"]]


def test_answers_are_those_of_recommend(client, run):
    model = load(run)
    for user in ("1", "17", "300"):
        assert listed(client.get(f"/recommend/{user}?k=7")) == [(x.item, x.score) for x in model.recommend(user, 7)]
        assert listed(client.post("/recommend", json={"user": user})) == [
            (x.item, x.score) for x in model.recommend(user)
        ]
    had = model.items[5:9]
    expected = [(x.item, x.score) for x in model.recommend_items(had)]
    assert listed(client.post("/recommend", json={"items": had})) == expected
    titles = [model.title(item) for item in had]
    assert listed(client.post("/recommend", json={"items": titles})) == expected


def test_filters_leave_out_and_let_in(client, run):
    first, second, third, *_ = [item for item, _ in listed(client.get("/recommend/17"))]
    assert first not in [item for item, _ in listed(client.get(f"/recommend/17?exclude={first}"))]
    body = {"user": "17", "only": [third, second], "k": 5}
    assert [item for item, _ in listed(client.post("/recommend", json=body))] == [second, third]


def test_reasons_are_asked_for(client):
    found = client.get("/recommend/17?k=3&why=true").json()
    assert found["why"] == "exact"
    assert all(line["why"][0]["share"] > 0 for line in found["recommendations"])
    assert "why" not in client.get("/recommend/17").json()


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "sentence"),
    [
        (404, "GET", "/recommend/nobody", None, "no user 'nobody'"),
        (422, "POST", "/recommend", b'{"items": ["nothing"]}', "unknown item 'nothing'"),
        (400, "POST", "/recommend", b'{"items": [', "the body is not JSON: expecting value"),
        (422, "POST", "/recommend", b"[]", "sent as Content-Type: application/json"),
        (422, "POST", "/recommend", b'{"user": "1", "k": 0}', "k is invalid"),
        (422, "POST", "/recommend", b'{"user": "1", "size": 3}', "size is invalid"),
        (400, "POST", "/recommend", b"{}", "name one of the two"),
        (400, "POST", "/recommend", b'{"user": "1", "items": ["2"]}', "name one of the two"),
        (422, "GET", "/recommend/1?k=ten", None, "k is invalid: it must be a whole number"),
        (422, "POST", "/batch", b'{"requests": []}', "requests is invalid"),
        (404, "GET", "/elsewhere", None, "there is no /elsewhere here"),
        (405, "DELETE", "/recommend/1", None, "DELETE is not for /recommend/1"),
        (413, "POST", "/recommend", b"x" * (MOST + 1), "at most"),
    ],
)
def test_what_is_wrong_gets_a_sentence_and_its_status(client, status, method, path, body, sentence):
    answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert sentence in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_strange_host_is_refused(client):
    answer = client.get("/health", headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"][:30]) == (421, "this server is not 'evil.examp")
    assert client.get("/health", headers={"host": "localhost:8481"}).json()["ok"]


def test_batches_have_an_error_in_the_place_of_a_list(client):
    asked = {"requests": [{"user": "1", "k": 2}, {"user": "nobody"}, {"items": ["3"], "k": 1}]}
    one, none, other = client.post("/batch", json=asked).json()
    assert (len(one["recommendations"]), len(other["recommendations"])) == (2, 1)
    assert none["error"].startswith("no user 'nobody'")


def test_counts_are_for_prometheus(run):
    fresh = asking(RunSource(_path(run)))
    for path in ("/recommend/1", "/recommend/2", "/recommend/nobody", "/a/b"):
        fresh.get(path)
    lines = fresh.get("/metrics").text.splitlines()
    assert 'tacit_requests_total{path="/recommend",status="200"} 2' in lines
    assert 'tacit_requests_total{path="/recommend",status="404"} 1' in lines
    assert 'tacit_requests_total{path="other",status="404"} 1' in lines
    assert 'tacit_recommend_seconds_bucket{le="+Inf"} 3' in lines
    assert all(re.fullmatch(r"# \w+ .*|\w+(\{[^}]*\})? [\d.e+-]+", line) for line in lines)


def test_the_documentation_page_asks_nobody_else(client):
    page = client.get("/docs").text
    assert re.findall(r"https?://", page) == []
    for asset in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert client.get(asset).status_code == 200
    routes = client.get("/openapi.json").json()["paths"]
    assert set(routes) == {"/recommend/{user}", "/recommend", "/batch", "/health", "/metrics"}


def test_a_forgotten_user_is_refused_and_an_update_is_seen_at_once(tmp_path):
    path = _path(tacit.run("tally", data="demo", threads=1, out=tmp_path / "run").folder)
    client = asking(source_of(path))
    before = listed(client.get("/recommend/18"))
    life.forget(reopen(path), "17")
    answer = client.get("/recommend/17")
    assert (answer.status_code, answer.json()["error"].endswith("it was forgotten")) == (410, True)
    assert client.get("/recommend/newcomer").status_code == 404
    new = tmp_path / "new.csv"
    new.write_text("user,item\n" + "".join(f"newcomer,{i}\n" for i in range(1, 12)))
    life.update(reopen(path), new)
    assert len(listed(client.get("/recommend/newcomer"))) == 10
    assert client.get("/health").json()["reloads"] == 2
    assert listed(client.get("/recommend/18")) != before


def test_random_requests_never_break_it(client, run):
    """A share of what `python -m benchmarks.serving` sends."""
    rng, model = random.Random(7), load(run)
    seen = set()
    for _ in range(400):
        head, _, body = anything(rng, model.users, model.items).partition(b"\r\n\r\n")
        verb, path = head.decode("latin-1").split(" ")[:2]
        answer = client.request(verb, path, content=body or None, headers={"content-type": "application/json"})
        assert answer.status_code < 500, (head, body)
        seen.add(answer.status_code)
        if answer.status_code >= 400:
            assert list(answer.json()) == ["error"]
    assert {200, 400, 404, 422} <= seen


def test_what_is_no_run_says_so(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        source_of(tmp_path)


def test_answers_are_json_that_every_client_reads(client):
    assert isinstance(client, httpx.Client)
    answer = client.post(
        "/recommend", content=json.dumps({"user": "\ud800"}), headers={"content-type": "application/json"}
    )
    assert answer.status_code in (404, 422)
    answer.content.decode("utf-8")
