from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tacit.core.leaves import private
from tacit.core.store import BLOCK, ClientStore
from tacit.core.trained import Trained
from tacit.data.cohort import Federation
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from toys import random_data


@dataclass(frozen=True)
class Tables(Trained):
    """A private table, a private vector and a private vector per user."""

    def leaves(self):
        return super().leaves() | {"own": private(table=True), "bias": private()}

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
    store = ClientStore(Trained(dim=2), Federation.of_users(divided))
    expected = Trained(dim=2).init_users(Federation.of_users(divided), torch.tensor([5, BLOCK + 3]))["user"]
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
@pytest.mark.parametrize("ids", [[3, 0, 9], [8, 4, 1, 2], [5]])
def test_writing_touches_the_cohorts_real_entries_only(store, every_row, ids):
    made = federation()
    data = made.cohort(torch.tensor(ids), 1, 2, every_row)
    expected = {n: x.clone() for n, x in store.leaves.items()}
    values = {n: torch.randn_like(x) for n, x in store.read(data).items()}
    for c, client in enumerate(ids):
        for slot, user in enumerate(made.members[client].tolist()):
            expected["user"][user] = values["user"][c, slot]
        expected["bias"][client] = values["bias"][c]
        for row, item in enumerate(data.rows[c].tolist()):
            if data.real[c, row]:
                expected["own"][client, item] = values["own"][c, row]
    store.write(data, values)
    for name, leaf in store.leaves.items():
        assert torch.equal(leaf, expected[name])


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


def test_a_node_holds_its_own_clients_alone():
    made, method = federation(), Tables(dim=3)
    whole = ClientStore(method, made)
    own = ClientStore(method, made, clients=range(3, 6), users=range(4, 10))
    assert {name: len(leaf) for name, leaf in own.leaves.items()} == {"own": 3, "bias": 3, "user": 6}
    for data in (made.cohort(torch.tensor([5, 3]), 1, 2), made.people(torch.tensor([3, 4, 5]))):
        for name, value in own.read(data).items():
            there = data.users >= 0 if name == "user" else slice(None)
            assert torch.equal(value[there], whole.read(data)[name][there])
        kept = {name: value + 1 for name, value in own.read(data).items()}
        own.write(data, kept)
        whole.write(data, kept)
    assert torch.equal(own.leaves["user"], whole.leaves["user"][4:10])
    assert torch.equal(own.leaves["own"], whole.leaves["own"][3:6])


def test_clients_whom_nobody_touched_cost_nothing_and_begin_as_they_would_have(tmp_path):
    """The starting values of others are not even made: a start, a round and a checkpoint cost what they touch."""
    made, asked = federation(), []

    @dataclass(frozen=True)
    class Watched(Tables):
        def init_clients(self, federation, ids):
            asked.extend(ids.tolist())
            return super().init_clients(federation, ids)

    store = ClientStore(Watched(dim=3), made)
    assert asked == [0]  # the shapes
    data = made.cohort(torch.tensor([2, 7]), 1, 2)
    store.write(data, {"bias": torch.tensor([0.5, 0.25], dtype=torch.float64)})
    assert set(asked) == {0, 2, 7}
    kept = store.kept()
    assert kept["bias"].tolist() == [0.5, 0.25]
    assert len(kept["own"]) == 2
    assert len(kept["user"]) == int((data.users >= 0).sum())

    other = ClientStore(Watched(dim=3), made)
    later = made.cohort(torch.tensor([4]), 1, 2)
    other.write(later, {"bias": torch.tensor([9.0], dtype=torch.float64)})
    other.load(kept)
    expected = ClientStore(Watched(dim=3), made).leaves
    expected["bias"][[2, 7]] = kept["bias"]
    for leaves in (other.leaves, store.leaves):
        assert all(torch.equal(leaves[name], leaf) for name, leaf in expected.items())
    assert set(store.kept()) == {"own", "bias", "user"}  # of everybody, now that all are there
