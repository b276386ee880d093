import json
import shutil
from dataclasses import astuple, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from tacit.config import config
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.rounds import sample
from tacit.core.store import ClientStore
from tacit.core.trained import Trained
from tacit.errors import UserError
from tacit.methods import find
from tacit.privacy.attacks import ATTACKS, clues, success
from tacit.privacy.secure_fleet import SecureFleet
from tacit.privacy.secure_sum import honest
from tacit.privacy.shared_noise import SharedGaussian
from tacit.runs import audit as audited
from tacit.runs.audit import audit, described, observe, real_items
from tacit.runs.folder import RunFolder
from tacit.runs.run import reopen, run, start
from toys import few_clients

QUICK = {"data": "demo", "rounds": 2, "threads": 1, "settings": {"dim": 4, "epochs": 1}}
FEDMF = Trained(dim=4, epochs=1, optimizer="sgd", lr=0.5, table_lr=50.0, init=0.3)
TIGHT = {"ldp": "kind=gaussian,clip=1,scale=7.5"}  # ε = 1 a round


@pytest.fixture(scope="module")
def fedmf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "fedmf"
    run("fedmf", out=folder, **QUICK)
    return folder


def test_the_server_looks_at_the_uploads_that_the_clients_make():
    federation = few_clients(12)
    fleet, twin = (SimulatedFleet(FEDMF, federation, threads=1, chunk=5) for _ in range(2))
    ids = torch.tensor([1, 4, 5, 6, 9, 10, 11])
    server = FEDMF.init_server(federation)
    for number, seen in enumerate(observe(fleet, server, ids, 0, 3), 1):
        uploads = list(twin.train(server, ids, number, Traffic()))
        assert len(uploads) > 1
        order = torch.cat([up.ids for up in uploads]).argsort()
        tables = torch.cat([up["items"] for up in uploads])[order]
        expected = clues({"items": tables}, {"items": server["items"]})
        assert torch.equal(seen.moved, expected.moved)
        assert torch.equal(seen.along, expected.along)
        server = FEDMF.aggregate(server, uploads, Moment(number, 0))
    assert number == 3


def test_the_server_draws_as_it_would_in_the_next_rounds():
    moments = []

    class Noting(Trained):
        def aggregate(self, server, uploads, now):
            moments.append(now)
            return super().aggregate(server, uploads, now)

    federation = few_clients(4, seed=5)
    fleet = SimulatedFleet(Noting(dim=4, epochs=1), federation, threads=1)
    list(observe(fleet, fleet.method.init_server(federation), torch.arange(4), 7, 2))
    assert moments == [Moment(8, 5), Moment(9, 5)]


def test_a_table_that_was_not_sent_is_compared_with_the_one_before():
    federation = few_clients(8)
    method = find("cgfedrec")(dim=4, epochs=1, clusters=3, table_lr=10.0)
    fleet, twin = (SimulatedFleet(method, federation, threads=1, chunk=3) for _ in range(2))
    ids, server, sent = torch.arange(8), method.init_server(federation), []
    for number in (1, 2, 3):
        uploads = list(twin.train(server, ids, number, Traffic()))
        order = torch.cat([up.ids for up in uploads]).argsort()
        sent.append(torch.cat([up["items"] for up in uploads])[order])
        server = method.aggregate(server, uploads, Moment(number, 0))
    first, *others = observe(fleet, method.init_server(federation), ids, 0, 3)
    torch.testing.assert_close(first.moved, (sent[0] - sent[0].mean(0)).norm(dim=2))
    for seen, (before, after) in zip(others, pairwise(sent), strict=True):
        torch.testing.assert_close(seen.moved, (after - before).norm(dim=2))


def test_of_a_secure_sum_there_is_one_for_all():
    federation = few_clients(12)
    fleet = SecureFleet(FEDMF, federation, threads=1)
    (seen,) = observe(fleet, FEDMF.init_server(federation), torch.arange(12), 0, 1)
    assert seen.moved.shape == (1, federation.n_items)


def test_items_are_those_of_training_and_held_out_ones_do_not_count():
    federation = few_clients(6, groups=2)
    truth, counted = real_items(federation, torch.tensor([1]))
    split = federation.split
    train, held = (
        {int(i) for u in federation.members[1] for part in parts for i in part[u]}
        for parts in ([split.train], [split.valid, split.test])
    )
    assert set(np.flatnonzero(truth[0])) == train
    assert set(np.flatnonzero(~counted[0])) == held - train


def test_fedmf_tells_nearly_all_and_noise_hides_it(fedmf):
    before = {p: p.read_bytes() for p in fedmf.rglob("*") if p.is_file()}
    guess, bare, noisy, summed = audit([fedmf], [TIGHT, {"secure": True}], rounds=3, clients=40)
    assert {p: p.read_bytes() for p in fedmf.rglob("*") if p.is_file()} == before
    assert (guess.method, set(guess.attacks)) == ("(popularity)", {"popularity"})
    assert guess.attacks["popularity"].between == 0.5
    assert (bare.protection, bare.epsilon_round, bare.after, bare.rounds, bare.clients) == ("none", None, 2, 3, 40)
    assert bare.attacks["score direction"].auc > 0.95
    assert bare.attacks["score direction"].between > 0.95
    assert noisy.epsilon_round == pytest.approx(1, abs=0.01)
    assert all(0.45 < noisy.attacks[name].auc < 0.55 for name in ATTACKS)
    assert summed.protection == "secure sum"
    assert all(summed.attacks[name].between == 0.5 for name in ATTACKS)


def test_a_run_is_audited_as_it_was_made_and_under_another_protection(tmp_path):
    run("fedmf", out=tmp_path / "run", ldp="kind=unclipped-laplace,scale=0.001", **QUICK)
    _, own, other, summed = audit([tmp_path / "run"], [TIGHT, {"secure": True}], rounds=1, clients=20)
    assert (own.protection, own.epsilon_round) == ("unclipped-laplace scale 0.001", float("inf"))
    assert other.protection == "gaussian clip 1 scale 7.5"
    assert (summed.protection, summed.epsilon_round) == ("secure sum", None), "its own noise is not taken off"
    assert own.attacks["score direction"].auc > 0.8 > other.attacks["score direction"].auc


def test_noise_that_clients_share_is_for_those_in_the_sum(fedmf):
    (*_, shared) = audit([fedmf], [{"secure": True, "dp": "clip=1,noise=3.75"}], rounds=1, clients=20)
    assert shared.protection == "secure sum, shared clip 1 noise 3.75"
    assert shared.epsilon_round == pytest.approx(1, abs=0.01)
    made = reopen(fedmf)
    federation = made.fleet.federation
    noise, ids = SharedGaussian(1.0, 3.75, contributors=honest(20)), sample(federation.n_clients, 20, 0, 0)
    fleet = SecureFleet(made.method, federation, threads=1, protection=noise)
    server, leaves = made.folder.load("last")
    fleet.store.load(leaves)
    seen = list(observe(fleet, server, ids, 2, 1))
    truth, counted = real_items(federation, ids)
    for name, attack in ATTACKS.items():
        expected = success(attack(seen).expand(20, -1).double().numpy(), truth, counted, 10)
        assert astuple(shared.attacks[name]) == pytest.approx(astuple(expected), abs=1e-6)


def test_what_cannot_be_audited_says_why(fedmf, tmp_path):
    run("pfedgraph", out=tmp_path / "graph", **QUICK)
    *_, refused = audit([tmp_path / "graph"], [{"secure": True}], rounds=1, clients=10)
    assert "every client's own upload" in refused.refused
    assert not refused.attacks
    run("ease", out=tmp_path / "ease", data="demo", threads=1)
    with pytest.raises(UserError, match="centralised"):
        list(audit([tmp_path / "ease"]))
    with pytest.raises(UserError, match="unknown start of an audit 'middle'"):
        list(audit([fedmf], start="middle"))
    start(config(method="fedmf", **QUICK), tmp_path / "new")
    with pytest.raises(UserError, match="no checkpoint to continue from; --at start"):
        list(audit([tmp_path / "new"]))
    _, first = audit([tmp_path / "new"], start="start", rounds=1, clients=10)
    assert first.after == 0
    assert first.attacks["score direction"].auc > 0.8


def test_rounds_begin_where_a_run_stands(fedmf, tmp_path):
    """Round 3 is the last and no better than one before it."""
    folder = RunFolder.open(shutil.copytree(fedmf, tmp_path / "run"))
    server, clients = folder.load("last")
    progress, spent = folder.progress({"items": server["items"] + 1})
    folder.save(replace(progress, round=3), {name: leaf + 1 for name, leaf in clients.items()}, spent)
    assert 0 < folder.best_round < folder.last_round == 3
    run = reopen(folder.path)
    for at, after in (("last", 3), ("best", folder.best_round), ("start", 0)):
        found, rounds = audited.start_of(run, at)
        expected, leaves = folder.load(at) if after else (run.method.init_server(run.fleet.federation), None)
        if leaves is None:
            leaves = ClientStore(run.method, run.fleet.federation).leaves
        assert rounds == after
        assert torch.equal(found["items"], expected["items"])
        assert all(torch.equal(run.fleet.store.leaves[name], leaf) for name, leaf in leaves.items()), at
    _, found = audit([folder.path], rounds=1, clients=10, start="start")
    assert found.after == 0


def test_attacks_are_on_the_rounds_after_those_of_the_run(fedmf):
    """The same by hand: the run's private leaves, its server and the next numbers of rounds."""
    guess, found = audit([fedmf], rounds=2, clients=12)
    made = reopen(fedmf)
    federation = made.fleet.federation
    fleet, ids = SimulatedFleet(made.method, federation, threads=1), sample(federation.n_clients, 12, 0, 0)
    server, leaves = made.folder.load("last")
    fleet.store.load(leaves)
    seen = list(observe(fleet, server, ids, 2, 2))
    truth, counted = real_items(federation, ids)
    for name, attack in ATTACKS.items():
        expected = success(attack(seen).double().numpy(), truth, counted, 10)
        assert astuple(found.attacks[name]) == pytest.approx(astuple(expected), abs=1e-6)
    popular = np.bincount(
        np.concatenate([made.split.train[u] for u in range(federation.n_users)]), minlength=truth.shape[1]
    )
    each = [roc_auc_score(t[c], popular[c]) for t, c in zip(truth, counted, strict=True)]
    assert guess.attacks["popularity"].auc == pytest.approx(np.mean(each))


def test_popularity_is_guessed_once_for_a_data_set(fedmf):
    found = list(audit([fedmf, fedmf], rounds=1, clients=5))
    assert [a.method for a in found] == ["(popularity)", "fedmf", "fedmf"]


def test_a_method_that_sends_no_table_says_so(tmp_path):
    run("localmf", out=tmp_path / "alone", **QUICK)
    _, found = audit([tmp_path / "alone"], rounds=1, clients=5)
    assert "uploads nothing that has a row per item" in found.refused
    assert not found.attacks


def test_noise_that_the_server_adds_promises_nothing_against_it(tmp_path):
    settings = {"clip": 1.0, "dp_noise": 4.0, "dp_seed": 1}
    summary = run("tally", out=tmp_path / "tally", data="demo", threads=1, settings=settings)
    assert summary.epsilon is not None
    _, found = audit([tmp_path / "tally"], rounds=1, clients=5)
    assert found.epsilon_round is None
    assert found.attacks["row change"].auc > 0.95


def test_cells_of_a_sparse_upload_name_the_items(tmp_path):
    run("tally", out=tmp_path / "tally", data="demo", threads=1)
    _, found = audit([tmp_path / "tally"], rounds=5, clients=20)
    assert found.rounds == 1, "later rounds have no uploads"
    assert found.attacks["row change"].auc > 0.95  # all but the first item of a history


def test_protections_are_named():
    asked = config(method="fedmf", secure=True, dp="clip=1,epsilon=2")
    assert described(asked) == "secure sum, shared clip 1 epsilon 2"
    assert described(replace_nothing(asked)) == "none"


def replace_nothing(asked):
    return config(**asked.model_dump() | {"secure": False, "dp": None})


def test_an_audit_is_written_down_beside_its_run(fedmf, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(fedmf, copy, ignore=shutil.ignore_patterns(audited.FILE))
    found = list(audit([copy], [TIGHT], rounds=1, clients=20))
    for one in found:
        audited.write_down(one)
    audited.write_down(replace(found[0], folder=str(tmp_path / "gone")))
    lines = [json.loads(line) for line in (copy / audited.FILE).read_text().splitlines()]
    assert [line["protection"] for line in lines] == [one.protection for one in found]
    assert lines[1]["attacks"]["row change"]["auc"] == found[1].attacks["row change"].auc
