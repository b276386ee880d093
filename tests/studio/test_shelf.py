import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import tacit
from run_folders import folder
from tacit.deploy.board import Board
from tacit.figures import build, records, report
from tacit.serving.guard import LOOPBACK, TOKEN
from tacit.studio.app import Studio, application
from tacit.studio.shelf import Shelf

SECRET = "the-token"
EXPERIMENT = """
title = "Figure 0"
source = "nobody"
metrics = ["HR@10"]
protocols = ["strict"]
[options]
rounds = 1
[[data]]
name = "demo"
[[run]]
label = "FedMF"
method = "fedmf"
sweep = { setting = "dim", values = [2, 4, 8] }
published = { demo = [{ source = "them", "HR@10" = 0.9 }, { "HR@10" = 0.5 }, { "HR@10" = 0.4 }] }
"""


def asking(root, experiments=Path("nowhere"), token=SECRET):
    made = Studio(Shelf([root]), experiments, SECRET)
    headers = {TOKEN: token} if token else {}
    return TestClient(application(made, LOOPBACK), base_url="http://127.0.0.1", headers=headers)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Path(tacit.run("tally", data="demo", threads=1, out=tmp_path_factory.mktemp("studio") / "tally").folder)


def test_the_list_says_what_each_run_is_and_how_it_stands(tmp_path):
    folder(tmp_path, score=0.25)
    folder(tmp_path / "more", method="tally", finished=False)
    found = {run["id"]: run for run in asking(tmp_path).get("/api/runs").json()["runs"]}
    done, stopped = found["fedmf-demo-strict-s0"], found["more/tally-demo-strict-s0"]
    assert (done["state"], done["value"], done["people"]) == ("finished", 0.25, False)
    assert (stopped["state"], stopped["round"], stopped["valid"], stopped["value"]) == ("stopped", 4, 0.1, None)


def test_every_picture_is_the_one_of_the_report(tmp_path):
    for method in ("fedmf", "tally", "oracle"):
        for protocol in ("paper", "strict"):
            folder(tmp_path, method, protocol)
    client = asking(tmp_path)
    names = [run["id"] for run in client.get("/api/runs").json()["runs"]]
    shown = client.get("/api/compare", params={"run": names}).json()
    contents = json.loads(json.dumps(report.contents(records.find([tmp_path]))))
    assert shown["tables"] == contents["tables"]
    assert shown["figures"] == [f for f in contents["figures"] if not f["name"].startswith(("histories", "lorenz"))]
    one = client.get(f"/api/run/{names[0]}").json()
    (alone,) = build.grounds([records.read(tmp_path / names[0])]).values()
    assert one["figures"][0]["series"][0]["points"] == build.curves(alone)["series"][0]["points"]


@pytest.mark.parametrize("path", ["/api/stop/x", "/api/resume/x", "/api/forget/x?user=1", "/api/start", "/anything"])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_what_changes_something_needs_the_token(tmp_path, path, token):
    answer = asking(tmp_path, token=token).post(path, json={"method": "fedmf"})
    assert (answer.status_code, list(answer.json())) == (403, ["error"])
    assert list(tmp_path.iterdir()) == []


def test_people_need_the_token_and_runs_do_not(trained):
    stranger = asking(trained.parent, token="")
    assert stranger.get("/api/runs").status_code == 200
    assert stranger.get("/api/people/tally?user=17").status_code == 403
    assert asking(trained.parent).get("/api/people/tally?user=17").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "evil.example:8480"])
def test_a_strange_host_is_refused(tmp_path, host):
    assert asking(tmp_path).get("/api/runs", headers={"host": host}).status_code == 421
    assert asking(tmp_path).get("/", headers={"host": "localhost:8480"}).status_code == 200


@pytest.mark.parametrize("name", ["../secret", "..%2Fsecret", "/etc", "tally/../../secret", "."])
def test_only_runs_of_the_shelf_are_opened(tmp_path, name):
    folder(tmp_path / "secret")
    folder(tmp_path / "runs")
    client = asking(tmp_path / "runs")
    for path in ("run", "people", "try", "model"):
        assert client.get(f"/api/{path}/{name}").status_code == 404
    answer = client.post("/api/start", json={"method": "fedmf", "data": "demo", "folder": "../secret/mine"})
    assert (answer.status_code, "is outside" in answer.json()["error"]) == (400, True)


def test_a_method_is_never_an_option(tmp_path):
    answer = asking(tmp_path).post("/api/start", json={"method": "--help"})
    assert (answer.status_code, "is not a method" in answer.json()["error"]) == (400, True)


def test_a_person_has_a_history_a_list_and_reasons_until_forgotten(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    client = asking(tmp_path)
    found = client.get("/api/people/run", params={"find": "17"}).json()
    assert [one["id"] for one in found["users"]][:3] == ["17", "170", "171"]
    person = client.get("/api/people/run", params={"user": "17", "k": 5}).json()
    assert [line["item"] for line in person["lines"]] == [
        x.item for x in tacit.recommend(tmp_path / "run", "17", 5, held_out=True)
    ]
    assert person["kind"] == "exact"
    assert {reason["title"] for line in person["lines"] for reason in line["why"]} <= {
        x["title"] for x in person["history"]
    }
    done = client.post("/api/forget/run", params={"user": "17", "k": 5}).json()
    assert done["refused"].endswith("it was forgotten")
    assert (len(done["before"]), len(done["after"])) == (5, 5)
    assert client.get("/api/people/run", params={"user": "17"}).status_code == 410
    assert client.post("/api/forget/run", params={"user": "17"}).status_code == 410
    assert client.get("/api/people/run", params={"user": "nobody"}).status_code == 404


def test_the_model_of_the_page_ranks_nearly_as_the_run_does(trained):
    from tacit.methods import tally_small
    from tacit.runs.model import load

    client, model = asking(trained.parent), load(trained)
    items = client.get("/api/try/tally").json()
    assert items["titles"][7] == model.data.title(7)
    small = tally_small.decode(client.get("/api/model/tally").content)
    for had in ([3, 9, 30], [100, 4]):
        exact = [x.item for x in model.recommend_items([items["ids"][i] for i in had], 10)]
        assert len(set(exact) & {items["ids"][i] for i in small.rank(had, 10)}) >= 9


def test_what_trains_on_the_device_does_not_rank_in_a_page(tmp_path):
    tacit.run("fedmf", data="demo", rounds=1, threads=1, out=tmp_path / "fedmf")
    answer = asking(tmp_path).get("/api/model/fedmf")
    assert (answer.status_code, "choose a run of tally" in answer.json()["error"]) == (400, True)


def test_papers_have_published_beside_measured(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "figure0.toml").write_text(EXPERIMENT)
    client = asking(tmp_path / "runs", tmp_path / "files")
    assert client.get("/api/papers/figure0").json()["tables"] == []
    for dim in (2, 4, 8):
        place = tmp_path / "runs" / "figure0" / f"fedmf-dim={dim}-demo-strict-s0"
        tacit.run("fedmf", data="demo", rounds=1, threads=1, settings={"dim": dim}, out=place)
    assert [(one["title"], one["finished"]) for one in client.get("/api/papers").json()] == [("Figure 0", 3)]
    paper = client.get("/api/papers/figure0").json()
    ours = json.loads((place / "summary.json").read_text())["test_sampled99"]["HR@10"]
    (table,) = paper["tables"]
    texts = [cell["text"] for cell in table["rows"][2]]
    assert texts[:4] == ["FedMF dim=8", "HR@10", "0.4000", f"{ours:.4f}"]
    heads = [head["text"] for head in table["heads"]]
    assert texts[heads.index("verdict")] == f"below, {ours / 0.4 - 1:+.0%}".replace("-", "−")
    sweep = next(f for f in paper["figures"] if "sweep" in f["name"])
    assert sweep["series"][0]["points"][2] == [8, ours]
    assert client.get("/api/papers/other").status_code == 404


def test_a_federation_shows_its_nodes(tmp_path):
    path = folder(tmp_path, finished=False)
    board = Board(state="training", method="fedmf", round=3, rounds=9)
    board.look({5: "shop-a"})
    board.answered("shop-a", 1.5)
    board.of("shop-b").reason = "it sent nonsense"
    board.sums = {"round": 3, "asked": 4, "survived": 3}
    (path / "status.json").write_text(json.dumps(board.shown()))
    (found,) = asking(tmp_path).get("/api/federation").json()
    assert (found["id"], found["round"], found["sums"]["survived"]) == (path.name, 3, 3)
    assert (found["nodes"]["shop-a"]["up"], found["nodes"]["shop-a"]["took"]) == (True, 1.5)
    assert found["nodes"]["shop-b"]["reason"] == "it sent nonsense"


def test_privacy_shows_audits_and_budgets(tmp_path):
    path = folder(tmp_path, epsilon=2.0)
    line = {"method": "fedmf", "protection": "none", "attacks": {"row change": {"auc": 0.75}}, "refused": ""}
    (path / "audit.jsonl").write_text(json.dumps(line) + "\n")
    found = asking(tmp_path).get("/api/privacy").json()
    assert found["audits"]["cells"] == [["row change", "fedmf, none", 0.75]]
    assert found["budgets"][0]["points"][0]["x"] == 2.0


def test_listing_does_not_load_torch(tmp_path):
    import subprocess
    import sys

    folder(tmp_path)
    code = (
        "import sys; from pathlib import Path; from fastapi.testclient import TestClient;"
        "from tacit.studio.app import Studio, application; from tacit.studio.shelf import Shelf;"
        "app = application(Studio(Shelf([Path(sys.argv[1])]), Path('x'), 't'), ());"
        "c = TestClient(app); print(len(c.get('/api/runs').json()['runs']), c.get('/api/papers').json(),"
        "c.get('/api/federation').json(), 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1", "[]", "[]", "False"]
