import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tacit
from tacit.config import config
from tacit.data.imported import import_file
from tacit.errors import UserError
from tacit.evaluation.protocol import Evaluator
from tacit.figures.command import repeating
from tacit.runs.folder import RunFolder
from tacit.runs.run import free_folder, reopen, resume, run

QUICK = {"data": "demo", "rounds": 3, "threads": 1, "settings": {"dim": 8, "init": 0.3}}
BEYOND = {f"{name}@{k}" for name in ("Coverage", "Gini", "Novelty", "Popularity") for k in (5, 10, 20)}
METRICS = {f"{name}@{k}" for name in ("HR", "NDCG", "MRR", "Recall", "Precision", "F1") for k in (5, 10, 20)}
CONTRACT = {
    "method", "data", "protocol", "seed", "best_round", "valid", "test", "test_sampled99", "bytes_up", "bytes_down",
    "seconds", "cpu_seconds", "peak_memory_mb", "epsilon",
}  # fmt: skip
ROUND = {"round", "seconds", "loss", "valid", "bytes_up", "bytes_down", "clients", "epsilon"}
MEASURED = ("seconds", "cpu_seconds", "peak_memory_mb", "folder")


def comparable(summary):
    return {k: v for k, v in dataclasses.asdict(summary).items() if k not in MEASURED}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One finished run: (summary, folder)."""
    folder = tmp_path_factory.mktemp("runs") / "fedmf"
    return run("fedmf", out=folder, **QUICK), folder


def test_the_summary_holds_to_the_contract(finished):
    summary, folder = finished
    written = json.loads((folder / "summary.json").read_text())
    assert written == dataclasses.asdict(summary)
    assert set(written) >= CONTRACT
    for part in ("valid", "test", "test_sampled99"):
        assert set(written[part]) == METRICS | (BEYOND if part == "test" else set())
        assert all(0 <= written[part][name] <= 1 for name in METRICS)
    assert 0 < written["test"]["Coverage@5"] < written["test"]["Coverage@20"] <= 1
    assert set(written["gap"]) == METRICS
    by_group = [written["groups"][name]["HR@20"] for name in written["groups"]]
    assert written["gap"]["HR@20"] == max(by_group) - min(by_group)
    assert (summary.method, summary.data, summary.protocol, summary.seed) == ("fedmf", "demo", "strict", 0)
    assert summary.epsilon is None
    assert summary.seconds > 0
    assert summary.cpu_seconds > 0
    assert summary.peak_memory_mb > 50


def test_every_round_is_a_line(finished):
    summary, folder = finished
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert all(set(line) == ROUND for line in lines)
    assert all(set(line["valid"]) == METRICS for line in lines)
    assert sum(line["bytes_up"] for line in lines) == summary.bytes_up
    assert sum(line["bytes_down"] for line in lines) == summary.bytes_down
    assert all(line["clients"] == 300 for line in lines)
    table = 210 * 8 * 4
    assert summary.bytes_down == 3 * 300 * table
    assert summary.bytes_up == 3 * 300 * (table + 4)


def test_the_run_is_described_with_everything_that_decides_it(finished):
    _, folder = finished
    written = json.loads((folder / "run.json").read_text())
    assert written["config"]["protocol"] == "strict"
    assert written["config"]["seed"] == 0
    assert written["settings"]["dim"] == 8
    assert written["settings"]["negatives"] == 4
    assert set(written["versions"]) == {"tacit", "torch", "numpy", "python"}
    assert len(written["fingerprint"]) == 64
    assert written["data"]["users"] == 300


def test_the_reported_round_is_the_best_on_validation_and_test_is_read_there(tmp_path):
    options = QUICK | {"rounds": 8, "settings": {"lr": 0.1}}
    summary = run("mf", out=tmp_path / "run", **options)
    values = [line["valid"]["NDCG@10"] for line in RunFolder.open(tmp_path / "run").rounds()]
    assert summary.best_round == 1 + values.index(max(values))
    assert summary.best_round < 8, "the case is meant to overfit"
    assert summary.valid["NDCG@10"] == max(values)
    made = reopen(tmp_path / "run")
    server = made.load_best()
    at_best = Evaluator(made.split)(made.fleet.scores(server, "test"), "test").main
    assert summary.test == at_best
    last, clients = made.folder.load("last")
    made.fleet.store.load(clients)
    assert Evaluator(made.split)(made.fleet.scores(last, "test"), "test").main != at_best


def test_another_metric_can_choose_the_round(tmp_path):
    options = QUICK | {"rounds": 8, "settings": {"lr": 0.1}}
    summary = run("mf", out=tmp_path / "run", select="Recall@20", **options)
    values = [line["valid"]["Recall@20"] for line in RunFolder.open(tmp_path / "run").rounds()]
    assert summary.best_round == 1 + values.index(max(values))


@pytest.mark.parametrize("change", [{"chunk": 7}, {"threads": 2}, {"mapped": True}])
def test_where_it_runs_does_not_show(finished, tmp_path, change):
    expected, folder = finished
    summary = run("fedmf", out=tmp_path / "run", **QUICK | change)
    assert summary.best_round == expected.best_round
    for metric, value in expected.test.items():  # a near-tie may turn for two of 300 users
        assert summary.test[metric] == pytest.approx(value, abs=0.007, rel=0.005), metric
    one, other = (RunFolder.open(f).load("last") for f in (folder, tmp_path / "run"))
    for a, b in zip(one, other, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-5)


def test_the_same_again_is_the_same_and_another_seed_is_not(finished, tmp_path):
    expected, _ = finished
    assert comparable(run("fedmf", out=tmp_path / "again", **QUICK)) == comparable(expected)
    assert run("fedmf", out=tmp_path / "other", seed=1, **QUICK).test != expected.test


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, mapped, stop_after):
    options = QUICK | {"rounds": 5, "mapped": mapped}
    expected = run("fedmf", out=tmp_path / "through", **options)

    def stop(progress, plan):
        if progress.round == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("fedmf", out=tmp_path / "run", watch=stop, **options)
    seen = []
    summary = resume(tmp_path / "run", watch=lambda progress, plan: seen.append(progress.round))
    assert seen == list(range(stop_after + 1, 6))
    assert comparable(summary) == comparable(expected)
    rounds = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder.open(tmp_path / f).rounds()]
        for f in ("through", "run")
    ]
    assert rounds[0] == rounds[1]


def test_a_finished_run_is_only_read(finished):
    summary, folder = finished
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert resume(folder, watch=lambda *_: pytest.fail("a round was run")) == summary
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def csv(path: Path, users=30, shift=0):
    lines = ["user,item,time"]
    lines += [f"{u},{(u * 7 + n * 11 + shift) % 60},{n}" for u in range(users) for n in range(8)]
    path.write_text("\n".join(lines))
    return path


def test_a_run_does_not_go_on_over_other_data(tmp_path):
    import_file(csv(tmp_path / "a.csv"), "mine")

    def stop(progress, plan):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("oracle", data="mine", rounds=2, threads=1, out=tmp_path / "run", watch=stop)
    import_file(csv(tmp_path / "b.csv", shift=1), "mine", replace=True)
    with pytest.raises(UserError, match=r"the data set mine is not the one .* was started with; start a new run"):
        resume(tmp_path / "run")
    import_file(csv(tmp_path / "c.csv"), "mine", replace=True)
    assert resume(tmp_path / "run").rounds == 2


def test_clients_of_many_users(tmp_path):
    summary = run("fedmf", out=tmp_path / "run", clients=7, **QUICK)
    assert summary.clients == 7
    assert summary.users_evaluated == 300
    assert summary.bytes_down == 3 * 7 * 210 * 8 * 4
    with pytest.raises(UserError, match="clients=301 is more than the 300 users of demo"):
        run("fedmf", out=tmp_path / "none", clients=301, **QUICK)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("protocol", ["paper", "symmetric", "ratio", "fileorder"])
def test_other_protocols_have_one_ranking(tmp_path, protocol):
    summary = run("popularity", protocol=protocol, out=tmp_path / "run", data="demo", threads=1)
    assert summary.test_sampled99 is None
    assert set(summary.test) == METRICS | BEYOND
    assert summary.protocol == protocol


def test_without_a_folder_one_is_named_after_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for expected in ("popularity-demo-strict-s3", "popularity-demo-strict-s3-2"):
        summary = run("popularity", data="demo", seed=3, threads=1)
        assert summary.folder == os.path.join("runs", expected)  # noqa: PTH118
        assert (tmp_path / summary.folder / "summary.json").exists()
    named = free_folder(config(method="my.module:Thing", data="demo"))
    assert named == Path("runs/my.module.Thing-demo-strict-s0")


def test_a_run_of_a_users_own_class(tmp_path, monkeypatch):
    """The server keeps its former table beside the new one, under a name of its own."""
    (tmp_path / "mymethod.py").write_text(
        "from dataclasses import dataclass\n"
        "from tacit.core.trained import Trained\n"
        "@dataclass(frozen=True)\n"
        "class Keeping(Trained):\n"
        "    name = 'keeping'\n"
        "    epochs: int = 1\n"
        "    def init_server(self, federation):\n"
        "        server = super().init_server(federation)\n"
        "        return server | {'before': server['items']}\n"
        "    def aggregate(self, server, uplinks, now):\n"
        "        made = super().aggregate(server, uplinks, now)\n"
        "        return made | {'before': made['items']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    summary = run("mymethod:Keeping", data="demo", rounds=2, threads=1, out=tmp_path / "run")
    assert summary.method == "mymethod:Keeping"
    assert resume(tmp_path / "run") == summary


def test_closing_accounts_of_short_histories_and_repeats(tmp_path):
    lines = csv(tmp_path / "a.csv").read_text().splitlines()
    lines += ["x,1,1", "y,1,1", "y,2,2", lines[1], lines[2]]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    import_file(tmp_path / "a.csv", "mine")
    summary = run("popularity", data="mine", threads=1, out=tmp_path / "run")
    assert (summary.users_evaluated, summary.users_too_short, summary.duplicates) == (30, 2, 2)


def test_noise_on_uploads_is_written_down_and_survives_a_stop(tmp_path):
    options = QUICK | {
        "rounds": 4,
        "ldp": "clip=1,scale=0.5",
        "settings": QUICK.get("settings", {}) | {"fraction": 0.5},
    }
    through = run("fedmf", out=tmp_path / "through", **options)
    written = json.loads((tmp_path / "through" / "run.json").read_text())
    noise = {"kind": "laplace", "scale": 0.5, "clip": 1.0, "delta": 1e-5, "source": "seed"}
    assert written["ldp"] == noise
    assert through.ldp == noise | {"epsilon_round": pytest.approx(4, abs=1e-3)}
    lines = [json.loads(line)["epsilon"] for line in (tmp_path / "through" / "rounds.jsonl").read_text().splitlines()]
    assert lines[0] == pytest.approx(4, abs=1e-3)
    assert lines == sorted(lines)
    assert through.epsilon == lines[-1]

    def stop(progress, plan):
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("fedmf", out=tmp_path / "stopped", watch=stop, **options)
    assert comparable(resume(tmp_path / "stopped")) == comparable(through)
    plain = run("fedmf", out=tmp_path / "plain", **{k: v for k, v in options.items() if k != "ldp"})
    assert plain.valid != through.valid
    assert plain.bytes_up == through.bytes_up
    assert plain.epsilon is None


def test_a_target_counts_the_rounds_of_the_busiest_client(tmp_path):
    options = QUICK | {"rounds": 6, "settings": QUICK.get("settings", {}) | {"fraction": 0.1}}
    summary = run("fedmf", out=tmp_path / "run", ldp="clip=0.1,epsilon=2", **options)
    assert 1.99 < summary.epsilon <= 2
    assert summary.ldp["scale"] < 2 * 0.1 / 2 * 6  # fewer rounds than the run has, and better than adding up
    with pytest.raises(UserError, match="ease is centralised"):
        run("ease", data="demo", out=tmp_path / "pooled", ldp="clip=1,scale=1")
    assert not (tmp_path / "pooled").exists()


def test_a_live_run_is_not_resumed_by_another_process(tmp_path):
    out = tmp_path / "run"

    def intrude(progress, plan):
        for command in (lambda: resume(out), lambda: resume(out, rounds=9), lambda: run("fedmf", out=out, **QUICK)):
            with pytest.raises(UserError, match=f"another process is writing to {out}|{out} is not an empty folder"):
                command()
        if progress.round == 2:
            assert len(tacit.recommend(out, "1", 3)) == 3  # to read needs no lock

    summary = run("fedmf", out=out, watch=intrude, **QUICK)
    assert [line["round"] for line in RunFolder.open(out).rounds()] == [1, 2, 3]
    assert summary.rounds == 3


def test_reading_a_live_mapped_run_leaves_its_clients_alone(tmp_path):
    options = QUICK | {"mapped": True}
    expected = run("fedmf", out=tmp_path / "alone", **options)
    user = str(reopen(tmp_path / "alone").split.data.user_ids[0])

    def read(progress, plan):
        tacit.recommend(tmp_path / "read", user)

    assert comparable(run("fedmf", out=tmp_path / "read", watch=read, **options)) == comparable(expected)
    assert not list(tmp_path.glob("*/clients*"))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_finished_run_is_extended(tmp_path, stopped):
    options = QUICK | {"rounds": 6}
    expected = run("fedmf", out=tmp_path / "through", **options)
    run("fedmf", out=tmp_path / "run", **QUICK)

    def stop(progress, plan):
        if progress.round == 5:
            raise KeyboardInterrupt

    if stopped:
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", watch=stop, rounds=6)
    seen = []
    summary = resume(tmp_path / "run", watch=lambda progress, plan: seen.append(progress.round), rounds=6)
    assert seen == ([6] if stopped else [4, 5, 6])
    assert comparable(summary) == comparable(expected)
    assert RunFolder.open(tmp_path / "run").summary["rounds"] == 6
    assert RunFolder.open(tmp_path / "run").run["config"]["rounds"] == 6
    assert resume(tmp_path / "run", watch=lambda *_: pytest.fail("a round was run")) == summary


@pytest.mark.parametrize(
    ("method", "options", "rounds", "said"),
    [
        ("fedmf", {}, 2, "has 3 rounds already; ask for more"),
        ("popularity", {"settings": {}}, 9, "popularity has 1 rounds of its own"),
        ("fedmf", {"ldp": "clip=1,epsilon=5"}, 9, "was chosen for its ε after 3 rounds"),
        ("fedmf", {"patience": 1, "rounds": 30, "settings": {"lr": 1e-9}}, 40, "by its patience"),
    ],
)
def test_what_cannot_be_extended_says_why(tmp_path, method, options, rounds, said):
    summary = run(method, out=tmp_path / "run", **QUICK | options)
    with pytest.raises(UserError, match=said):
        resume(tmp_path / "run", rounds=rounds)
    assert resume(tmp_path / "run") == summary


def test_validation_on_some_users_and_test_on_all(finished, tmp_path):
    summary, _ = finished
    some = run("fedmf", out=tmp_path / "some", evaluate_users=20, **QUICK)
    assert some.valid != summary.valid
    assert some.users_evaluated == summary.users_evaluated
    assert (20 * some.valid["HR@10"]) == pytest.approx(round(20 * some.valid["HR@10"]))
    written = json.loads((tmp_path / "some" / "run.json").read_text())
    assert written["config"]["evaluate_users"] == written["data"]["users_in_validation"] == 20
    assert "--evaluate-users 20" in repeating(written)
    if some.best_round == summary.best_round:
        assert some.test == summary.test
    with pytest.raises(UserError, match="--evaluate-users 1000000 is more than"):
        run("fedmf", out=tmp_path / "none", evaluate_users=10**6, **QUICK)
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match="leave out --evaluate-users"):
        tacit.train("fedmf", data="demo", rounds=1, evaluate_users=5)


def test_a_mapped_state_that_the_disk_has_no_room_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=10**6))
    with pytest.raises(UserError, match=r"would take about .* GB of disk, .*; --set scored_with=server"):
        run("pfedrec", data="demo", mapped=True, out=tmp_path / "large")
    assert not (tmp_path / "large").exists()


def test_a_checkpoint_holds_the_clients_that_took_part(tmp_path):
    whole = run(
        "fedmf", out=tmp_path / "few", **QUICK | {"settings": {"fraction": 0.02, "dim": 8}, "evaluate_users": 2}
    )
    found = RunFolder.open(tmp_path / "few").load("last")
    touched = found[1]["touched|users"]
    assert 0 < len(touched) == len(found[1]["user"]) < 30
    folder = tmp_path / "few"
    (folder / "summary.json").unlink()
    assert comparable(resume(folder)) == comparable(whole)
    longer = resume(folder, rounds=6)
    straight = {"rounds": 6, "settings": {"fraction": 0.02, "dim": 8}, "evaluate_users": 2}
    assert longer.test == run("fedmf", out=tmp_path / "straight", **QUICK | straight).test
