import io
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import silhouette_score

from tacit.config import config
from tacit.errors import UserError
from tacit.evaluation.protocol import by_activity
from tacit.runs import diagnose, report
from tacit.runs.run import reopen, start

SETTINGS = {"dim": 4, "epochs": 1, "table_lr": 50.0, "init": 0.3}


def finished(folder, method="plgc+fedmf", settings=SETTINGS, clients=0, record=False):
    asked = config(
        method=method, data="demo", rounds=4, evaluate_every=2, settings=settings, threads=1, clients=clients
    )
    run = start(asked, folder)
    run.go_on(diagnose.recorder(run) if record else None)
    return reopen(folder)


def abundance(table):
    values = np.linalg.svd(np.asarray(table, dtype=np.float64), compute_uv=False)
    return values.sum() / values[0], values.var()


def test_every_table_of_a_run_by_user_group(tmp_path):
    run = finished(tmp_path / "run")
    found = {(d.of, d.table, d.group): d for d in diagnose.best(run)}
    server = run.load_best()
    G, tables = server["items"], run.fleet.store.leaves["plgc_local"]
    of_server = found["server", "items", "everyone"]
    assert of_server.round == run.folder.best_round > 0
    assert (of_server.tables, of_server.abundance) == (1, pytest.approx(abundance(G)[0], rel=1e-6))
    assert of_server.spectrum == pytest.approx(np.linalg.svd(G.double(), compute_uv=False), rel=1e-6)
    groups = {"everyone": torch.ones(run.split.n_users, dtype=torch.bool)} | by_activity(run.split)
    assert {group for _, _, group in found} == set(groups)
    assert len(groups) == 4
    squares = tables.square().sum((1, 2), keepdim=True)
    share = squares / (squares + G.square().sum())
    mixed = share * tables + (1 - share) * G
    for name, stack in (("plgc_local", tables), (diagnose.RANKED, mixed)):
        each = np.array([abundance(table) for table in stack])
        for group, inside in groups.items():
            d = found["clients", name, group]
            assert d.tables == int(inside.sum())
            assert d.abundance == pytest.approx(each[inside.numpy(), 0].mean(), rel=1e-5)
            assert d.variance == pytest.approx(each[inside.numpy(), 1].mean(), rel=1e-4)


def test_where_all_rank_with_the_servers_table_it_is_one(tmp_path):
    found = diagnose.best(finished(tmp_path / "run", "fedmf"))
    assert {(d.of, d.table) for d in found} == {("server", "items"), ("clients", diagnose.RANKED)}
    assert len({round(d.abundance, 9) for d in found}) == 1


def test_how_alike_the_tables_of_clients_are(tmp_path):
    """PLGC's own tables differ and are compared; one table for all is not compared with itself."""
    found = {(d.of, d.table, d.group): d for d in diagnose.best(finished(tmp_path / "run"))}
    own = found["clients", "plgc_local", "everyone"]
    assert 0 < own.coordinates < 1
    assert 0 < own.relations < 1
    assert 0 < own.retained < 1
    assert [d for d in found.values() if d.group != "everyone" and d.relations is not None] == []
    assert found["server", "items", "everyone"].relations is None
    (remark, other) = report.likeness_remarks(list(found.values()))
    assert f"a correlation of {own.relations:.3f}" in remark + other
    assert report.likeness_remarks(diagnose.best(finished(tmp_path / "one", "fedmf"))) == []


def test_clients_of_many_users_have_no_groups(tmp_path):
    found = diagnose.best(finished(tmp_path / "run", clients=5))
    assert {d.group for d in found} == {"everyone"}
    assert {d.tables for d in found if d.of == "clients"} == {5}


def test_every_validated_round_is_recorded(tmp_path):
    run = finished(tmp_path / "run", record=True)
    found = diagnose.recorded(tmp_path / "run")
    assert sorted({d.round for d in found}) == [2, 4]
    best = {(d.of, d.table, d.group): d for d in diagnose.best(run)}
    for d in found:
        if d.round == run.folder.best_round:
            assert d.abundance == pytest.approx(best[d.of, d.table, d.group].abundance)
    path = tmp_path / "run" / diagnose.FILE
    path.write_text(path.read_text() * 2)  # a round that was run again after a kill
    assert diagnose.recorded(tmp_path / "run") == found
    assert diagnose.recorded(tmp_path) == []


def test_tables_of_different_width_by_group(tmp_path):
    run = finished(tmp_path / "run", "hetefedrec", {"widths": (2, 3, 5), "layers": (4,)})
    found = {(d.of, d.table, d.group): d for d in diagnose.best(run)}
    server = run.load_best()
    for name in ("items_0", "items_1", "items_2"):
        values = np.linalg.svd(np.cov(server[name].double().numpy().T, bias=True), compute_uv=False)
        assert found["server", name, "everyone"].collapse == pytest.approx(values.var(), rel=1e-5)
    widest = found["clients", diagnose.RANKED, "large"]
    assert widest.spectrum == pytest.approx(np.linalg.svd(server["items_2"].double(), compute_uv=False), rel=1e-5)
    assert found["clients", diagnose.RANKED, "small"].spectrum[2:] == pytest.approx([0, 0, 0])


def test_a_method_without_a_table(tmp_path):
    with pytest.raises(UserError, match="popularity trains no item table"):
        diagnose.best(finished(tmp_path / "run", "popularity", {}))


CLUSTERED = {"dim": 4, "epochs": 1, "table_lr": 50.0, "init": 0.3, "clusters": 4}


def apart(table, labels):
    return silhouette_score(np.asarray(table, dtype=np.float64), labels, metric="cosine")


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cgfedrec") / "run"
    finished(folder, "cgfedrec", CLUSTERED, record=True)
    return folder


@pytest.fixture
def clustered(recorded_once, tmp_path):
    """A run of CGFedRec that recorded rounds 2 and 4."""
    return reopen(shutil.copytree(recorded_once, tmp_path / "clustered"))


@pytest.mark.parametrize("method", ["cgfedrec", "cofedrec"])
def test_a_server_with_clusters_is_asked_how_they_hold(clustered, tmp_path, method):
    """Whether the server has one table (CGFedRec) or one a client (CoFedRec)."""
    run = clustered if method == "cgfedrec" else finished(tmp_path / "run", method, CLUSTERED)
    server = run.load_best()
    labels = server["labels"].numpy()
    lines = diagnose.best(run)
    (clusters,) = (line for line in lines if isinstance(line, diagnose.Clusters))
    assert list(clusters.labels) == labels.tolist()
    found = {(d.of, d.table, d.group): d for d in lines if d is not clusters}
    tables = run.fleet.store.leaves["items"] if method == "cgfedrec" else server["tables"]
    each = np.array([apart(table, labels) for table in tables])
    for group, inside in ({"everyone": torch.ones(len(tables), dtype=torch.bool)} | by_activity(run.split)).items():
        d = found["clients", diagnose.RANKED, group]
        here = each[inside.numpy()]
        assert (d.separability, d.lowest, d.highest) == pytest.approx((here.mean(), here.min(), here.max()), abs=1e-6)
    if method == "cgfedrec":
        d = found["server", "items", "everyone"]
        assert d.separability == pytest.approx(apart(server["items"], labels), abs=1e-6)


def test_clusters_are_compared_with_those_recorded_before(clustered):
    run, path = clustered, clustered.folder.path / diagnose.FILE
    first = next(line for line in diagnose.recorded(run.folder.path) if isinstance(line, diagnose.Clusters))
    assert (first.round, first.before, first.agreement, first.kept) == (2, None, None, None)
    own = np.asarray(run.load_best()["labels"], dtype=int)
    best = run.folder.best_round
    moved = own.copy()
    moved[0] = (own[0] + 1) % 4  # one item was elsewhere
    other = diagnose.Clusters(best - 1, moved.tolist())
    older = diagnose.Clusters(0, np.roll(own, 1).tolist())
    later = diagnose.Clusters(9, own.tolist())
    path.write_text("".join(diagnose.as_json(line) + "\n" for line in (older, other, later)))
    found = {line.round: line for line in diagnose.everything(run) if isinstance(line, diagnose.Clusters)}
    assert sorted(found) == [0, best - 1, best, 9]
    assert found[0].before is None
    assert (found[best].before, found[best].kept) == (best - 1, pytest.approx(1 - 1 / len(own)))
    assert 0.9 < found[best].agreement < 1
    assert (found[9].before, found[9].agreement, found[9].kept) == (best, 1, 1)


def test_a_stopped_run_records_the_same_clusters(clustered):
    whole = diagnose.everything(clustered)
    path = clustered.folder.path / diagnose.FILE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2] + lines))  # killed and begun again
    assert diagnose.everything(clustered) == whole
    assert [line.before for line in whole if isinstance(line, diagnose.Clusters)] == [None, 2]


def test_a_server_without_clusters_says_nothing_of_them(tmp_path):
    """Its lines are as long as ever; labels that put everything into one cluster (variant e) are none."""
    plain = finished(tmp_path / "plain", "fedmf", record=True)
    one = finished(tmp_path / "one", "cgfedrec", CLUSTERED | {"variant": "e"}, record=True)
    for run in (plain, one):
        found = diagnose.everything(run)
        assert all(isinstance(line, diagnose.Diagnosis) and line.separability is None for line in found)
        assert report.clusters(found) is None
        assert report.cluster_remarks(found) == []
        assert "separability" not in (run.folder.path / diagnose.FILE).read_text()


def test_a_round_that_was_recorded_is_listed_once(tmp_path):
    run = finished(tmp_path / "run", "fedmf", record=True)
    found = diagnose.everything(run)
    assert found == diagnose.recorded(tmp_path / "run")
    (tmp_path / "run" / diagnose.FILE).unlink()
    assert {line.round for line in diagnose.everything(run)} == {run.folder.best_round}


def test_both_tables_fit_into_100_columns(clustered):
    found = diagnose.everything(clustered)
    console = Console(width=100, file=io.StringIO())
    for table in (report.diagnostics(found), report.clusters(found)):
        console.print(table)
    text = console.file.getvalue()
    assert "…" not in text
    line = next(line for line in text[text.index("clusters of items") :].splitlines() if line.split()[:1] == ["4"])
    clusters = next(line for line in found if isinstance(line, diagnose.Clusters) and line.round == 4)
    of = {(d.of, d.table, d.group): d for d in found if isinstance(d, diagnose.Diagnosis) and d.round == 4}
    everyone = of["clients", diagnose.RANKED, "everyone"]
    expected = [clusters.agreement, clusters.kept, of["server", "items", "everyone"].separability]
    expected += [everyone.separability, everyone.lowest, everyone.highest]
    expected += [d.separability for (_, table, group), d in of.items() if table == diagnose.RANKED and "–" in group]
    assert line.split() == ["4", "4", "2", *(f"{x:.3f}" for x in expected)]
