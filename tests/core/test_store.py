from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tacit.core.method import Method
from tacit.core.store import BLOCK, ClientStore
from tacit.data.cohort import Federation
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from toys import random_data


@dataclass(frozen=True)
class Tables(Method):
    """A private table, a private vector and a private vector per user."""

    private = ("user", "own", "bias")
    tables = ("items", "own")

    def init_clients(self, federation, ids):
        own = ids[:, None, None] * 1000.0 + torch.arange(federation.n_items)[:, None] + torch.zeros(2)
        return {"own": own, "bias": ids.double()}


def federation():
    divided = split(random_data(items=60), "strict")
    return Federation(divided, Ragged.of(np.array([0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 9]), np.arange(14), 10))


@pytest.fixture(params=["memory", "mapped"])
def store(request, tmp_path):
    return ClientStore(Tables(dim=3), federation(), tmp_path / "clients" if request.param == "mapped" else None)


def test_leaves_start_as_the_method_says(store):
    method, made = store.method, federation()
    assert torch.equal(store.leaves["user"], method.init_users(made, torch.arange(14))["user"])
    assert torch.equal(store.leaves["own"], method.init_clients(made, torch.arange(10))["own"])
    assert store.leaves["bias"].dtype == torch.float64


def test_starting_values_do_not_depend_on_blocks():
    divided = split(random_data(users=BLOCK + 40), "strict")
    store = ClientStore(Method(dim=2), Federation.of_users(divided))
    expected = Method(dim=2).init_users(Federation.of_users(divided), torch.tensor([5, BLOCK + 3]))["user"]
    assert torch.equal(store.leaves["user"][[5, BLOCK + 3]], expected)


@pytest.mark.parametrize("every_row", [False, True])
def test_a_cohort_reads_its_own_users_rows_and_values(store, every_row):
    made = federation()
    data = made.cohort(torch.tensor([3, 0, 9]), 1, 2, every_row)
    read = store.read(data)
    assert read["bias"].tolist() == [3.0, 0.0, 9.0]
    for c, client in enumerate([3, 0, 9]):
        for slot, user in enumerate(made.members[client].tolist()):
            assert torch.equal(read["user"][c, slot], store.leaves["user"][user])
        assert torch.equal(read["own"][c][:, 0], client * 1000.0 + data.rows[c])


@pytest.mark.parametrize("every_row", [False, True])
def test_writing_touches_the_cohorts_real_entries_only(store, every_row):
    made = federation()
    ids = torch.tensor([3, 0, 9])
    data = made.cohort(ids, 1, 2, every_row)
    before = {n: x.clone() for n, x in store.leaves.items()}
    store.write(data, {n: x + 0.5 for n, x in store.read(data).items()})
    users = [u for c in ids.tolist() for u in made.members[c].tolist()]
    for name, leaf in store.leaves.items():
        changed = (leaf != before[name]).reshape(len(leaf), -1)
        owners = users if name == "user" else ids.tolist()
        assert changed.any(1).nonzero().flatten().tolist() == sorted(owners)
        step = (leaf - before[name])[changed.view_as(leaf)]
        torch.testing.assert_close(step, torch.full_like(step, 0.5))
    for c, client in enumerate(ids.tolist()):
        rows = (store.leaves["own"][client] != before["own"][client]).any(1).nonzero().flatten()
        assert rows.tolist() == data.rows[c][data.real[c]].tolist()


def test_what_is_written_is_read_back(store):
    data = federation().cohort(torch.tensor([4, 3]), 1, 2)
    values = {n: torch.randn_like(x) for n, x in store.read(data).items()}
    store.write(data, values)
    read = store.read(data)
    there = data.users >= 0
    assert torch.equal(read["user"][there], values["user"][there])
    assert torch.equal(read["own"][data.real], values["own"][data.real])
    assert torch.equal(read["bias"], values["bias"])


def test_a_checkpoint_replaces_everything(store):
    leaves = {n: torch.randn_like(x) for n, x in store.leaves.items()}
    store.load(leaves)
    assert all(torch.equal(store.leaves[n], leaves[n]) for n in leaves)


def test_mapped_leaves_live_in_files(tmp_path):
    store = ClientStore(Tables(dim=3), federation(), tmp_path)
    store.leaves["own"][7, 5, 1] = 42.0
    on_disk = np.fromfile(tmp_path / "own.bin", dtype=np.float32).reshape(10, 60, 2)
    assert on_disk[7, 5, 1] == 42.0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bias.bin", "own.bin", "user.bin"]
