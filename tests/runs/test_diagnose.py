import numpy as np
import pytest
import torch

from tacit.config import config
from tacit.errors import UserError
from tacit.evaluation.protocol import by_activity
from tacit.runs import diagnose
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
