import pytest
import torch

from tacit.core.payload import Payload, Sparse
from tacit.methods import large_sums
from tacit.methods.large_sums import added, columns, diagonal, plus, product, write_out


@pytest.fixture
def sparse(monkeypatch):
    monkeypatch.setattr(large_sums, "DENSE", 0)
    monkeypatch.setattr(large_sums, "PENDING", 10)


def uploads(count, seed=0, shape=(30, 40)):
    made = torch.Generator().manual_seed(seed)
    for _ in range(count):
        index = torch.randint(0, shape[0] * shape[1], (7,), generator=made)
        part = Sparse(torch.zeros(7, dtype=torch.int64), index, torch.ones(7), shape)
        yield Payload(torch.arange(1), {"C": part})


def test_a_sparse_sum_is_the_sum_and_becomes_a_dense_one_when_it_fills_up(sparse):
    expected = added({}, uploads(5), written=True)["C"]
    assert not expected.is_sparse
    total = added({}, uploads(5), written=False)["C"]
    assert total.is_sparse
    assert torch.equal(total.to_dense(), expected)
    filled = added({}, uploads(200), written=False)["C"]
    assert not filled.is_sparse
    assert torch.equal(filled, added({}, uploads(200), written=True)["C"])


def test_nothing_stays_of_cells_that_went(sparse):
    rest = added({}, uploads(4), written=False)["C"]
    (gone,) = uploads(1, seed=9)
    both = plus(rest, [gone.fields["C"]])
    after = plus(both, [gone.fields["C"]], sign=-1.0)
    assert torch.equal(after.indices(), rest.indices())
    assert torch.equal(after.values(), rest.values())


def test_what_is_read_of_a_sparse_sum_is_what_is_read_of_a_dense_one(sparse):
    total = added({}, uploads(5), written=False)["C"]
    whole = total.to_dense()
    chosen = torch.tensor([0, 7, 21, 39])
    assert torch.equal(diagonal(total), whole.diagonal())
    own = torch.arange(39, 9, -1)
    assert torch.equal(diagonal(total, own), whole[torch.arange(30), own])
    assert torch.equal(columns(total, chosen), whole[:, chosen])
    room = torch.full((30, 40), 5.0)
    assert write_out(total, room) is room
    assert torch.equal(room, whole)
    left, out = torch.rand(6, 30), torch.zeros(6, 40)
    product(left, total, chosen, out, block=3)
    torch.testing.assert_close(out[:, chosen], left @ whole[:, chosen])
    assert torch.count_nonzero(out) == torch.count_nonzero(out[:, chosen])
