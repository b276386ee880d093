import dataclasses
import time

import pytest
import torch

from tacit.core.rounds import Progress
from tacit.runs import run as runs
from tacit.runs import saving
from tacit.runs.folder import RunFolder
from tacit.runs.run import resume, run
from tacit.runs.saving import Saver

ASKED = {"config": {"method": "fedmf"}, "settings": {}, "fingerprint": "x"}
MEASURED = ("seconds", "cpu_seconds", "peak_memory_mb", "folder")
OVERFIT = {"data": "demo", "rounds": 8, "threads": 1, "settings": {"lr": 0.1}}


def comparable(summary):
    return {k: v for k, v in dataclasses.asdict(summary).items() if k not in MEASURED}


def saver(path, every=1):
    folder = RunFolder.create(path / "run", ASKED)
    return Saver(folder, every, lambda: {"items": torch.zeros(500_000)}, dict)


def offered(one, rounds, improved):
    """The rounds that were saved, each better than the last or all after the first worse."""
    out = []
    for round in range(1, rounds + 1):
        one.offer(Progress({}, round, round if improved else 1, float(round)), improved or round == 1)
        out += [round] if one.round == round else []
    return out


def test_rounds_shorter_than_a_save_are_not_saved_each(tmp_path):
    assert offered(saver(tmp_path), 200, improved=True) == [1]


def test_better_rounds_are_saved_where_it_costs_little(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "CPU", 0)
    monkeypatch.setattr(saving, "WALL", 0)
    assert offered(saver(tmp_path), 5, improved=True) == [1, 2, 3, 4, 5]


def test_others_are_saved_after_a_while_and_only_every_so_many(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "CPU", 0)
    monkeypatch.setattr(saving, "WALL", 0)
    assert offered(saver(tmp_path), 5, improved=False) == [1]
    monkeypatch.setattr(saving, "PAUSE", 0)
    (tmp_path / "second").mkdir()
    assert offered(saver(tmp_path / "second", every=3), 7, improved=False) == [1, 3, 6]


def test_what_saving_took_stays_within_its_share(tmp_path):
    one = saver(tmp_path)
    for round in range(1, 100):
        began = time.process_time()
        while time.process_time() < began + 0.01:
            pass
        one.offer(Progress({}, round, round, float(round)), True)
    assert one.taken[0] > one.last[0], "some were saved"
    assert one.taken[0] <= saving._since(one.began)[0] / 20 + one.last[0]


@pytest.mark.parametrize(
    ("method", "more"),
    [("mf", {}), ("fedrap", {"settings": {}}), ("fedrap", {"settings": {"lr": 0.1}, "mapped": True})],
)
def test_a_best_round_that_was_not_saved_is_trained_again(tmp_path, monkeypatch, method, more):
    options = OVERFIT | more
    with monkeypatch.context() as patch:
        patch.setattr(saving, "CPU", 0)
        patch.setattr(saving, "WALL", 0)
        expected = run(method, out=tmp_path / "saved", **options)
    assert 1 < expected.best_round < 8, "the case is meant to have its best round in the middle"
    monkeypatch.setattr(saving, "CPU", 10**9)
    summary = run(method, out=tmp_path / "again", **options)
    assert comparable(summary) == comparable(expected)
    one, other = (RunFolder.open(tmp_path / f) for f in ("saved", "again"))
    assert other.best_round == one.best_round == expected.best_round
    for which in ("last", "best"):
        for a, b in zip(one.load(which), other.load(which), strict=True):
            assert all(torch.equal(a[name], b[name]) for name in a)
    rounds = [[line | {"seconds": 0} for line in folder.rounds()] for folder in (one, other)]
    assert rounds[0] == rounds[1]


def test_stopped_on_the_way_back_to_the_best_round(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "CPU", 10**9)
    expected = run("mf", out=tmp_path / "through", **OVERFIT)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "_nothing", stop)
        with pytest.raises(KeyboardInterrupt):
            run("mf", out=tmp_path / "stopped", **OVERFIT)
    assert comparable(resume(tmp_path / "stopped")) == comparable(expected)
