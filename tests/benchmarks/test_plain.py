import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.engine import difference
from benchmarks.measure import FEDMF, federation
from benchmarks.plain import Device, devices

from tacit.data.cohort import Federation


@pytest.fixture(scope="module")
def demo() -> Federation:
    return federation("demo")


def test_engine_equals_one_client_at_a_time(demo: Federation) -> None:
    ids = torch.arange(0, demo.n_clients, 10)
    assert difference(replace(FEDMF, epochs=3, batch=32), demo, ids) < 1e-5


def test_clients_that_take_different_numbers_of_steps_are_equal_too(demo: Federation) -> None:
    method = replace(FEDMF, epochs=2, batch=64)
    ids = torch.arange(0, demo.n_clients, 10)
    steps = {len(d.epochs[0]) for d in devices(method, demo, ids, 1, same_batches=True)}
    assert len(steps) > 1
    assert difference(method, demo, ids) < 1e-5


def test_own_and_engine_batches_hold_the_same_samples(demo: Federation) -> None:
    def samples(device: Device) -> list[tuple[int, float]]:
        return sorted(
            (i, y) for item, label in device.epochs[0] for i, y in zip(item.tolist(), label.tolist(), strict=True)
        )

    method, ids = replace(FEDMF, epochs=1, batch=32), torch.arange(4)
    own = devices(method, demo, ids, 1, same_batches=False)
    same = devices(method, demo, ids, 1, same_batches=True)
    assert [samples(device) for device in own] == [samples(device) for device in same]
    assert [len(samples(device)) for device in own] == (5 * demo.sizes[:4]).tolist()


@pytest.mark.slow
def test_quick_run_writes_its_figures(tmp_path: Path) -> None:
    main(["--quick", "--data", "demo", "--large", "demo", "--out", str(tmp_path)])
    engine = json.loads((tmp_path / "engine.json").read_text())
    assert engine["plain"]["ratio"] > 0
    assert engine["plain"]["difference"] < 1e-5
    assert engine["larger"]["memory"]["round_mb"] >= engine["larger"]["memory"]["data_mb"] > 0
    assert [row["share"] for row in engine["linearity"]] == [0.5, 1.0]
    assert all(row["gain"] > 0 and row["possible"] > 0 for row in engine["cores"].values())
    assert engine["machine"]["cores"] >= 1
    methods = json.loads((tmp_path / "methods.json").read_text())["methods"]
    assert all(row["cpu"] > 0 for row in methods.values())
