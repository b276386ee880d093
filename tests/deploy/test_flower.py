import pytest
import torch

pytest.importorskip("flwr")

from deploy.processes import Place
from tacit.runs.folder import RunFolder
from tacit.runs.run import run as simulate
from toys import few_users

QUICK = {"fedmf": {"dim": 4, "epochs": 2, "init": 0.1}}


def settings(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def state(folder, which="last"):
    return RunFolder.open(folder).load(which)[0]


@pytest.mark.slow
def test_three_processes_give_the_state_and_the_metrics_of_the_simulation(tmp_path, monkeypatch):
    data, method = few_users(24), "fedmf"
    with Place(tmp_path, data, 3, secure=True) as place:
        for name in place.names:
            place.node(name)
        place.server(method, "--rounds", 2, *settings(QUICK[method]))
        place.finished()
    monkeypatch.setattr("tacit.runs.run.load", lambda *_: data)
    expected = simulate(method, data="items", rounds=2, settings=QUICK[method], threads=1, out=tmp_path / "simulated")
    for which in ("last", "best"):
        one, other = state(tmp_path / "run", which), state(tmp_path / "simulated", which)
        assert all(torch.allclose(one[n], other[n], atol=1e-5, rtol=1e-5) for n in other)
    summary = RunFolder.open(tmp_path / "run").summary
    assert summary["test"] == pytest.approx(expected.test, abs=1e-6)
