import pytest
import torch

from tacit.runs import compact
from tacit.runs.compact import compacted, restored


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(compact, "LARGE", 16)


def nbytes(state):
    return sum(value.nbytes for value in state.values())


def test_a_state_comes_back_as_it_was_and_takes_less_room():
    full = torch.rand(40, 40)
    few = torch.zeros(40, 30)
    few[3, 4], few[39, 29] = 2.0, -1.0
    place = torch.tensor([[0, 7, 49], [3, 2, 59]])
    cells = torch.sparse_coo_tensor(place, torch.tensor([1.0, 2.0, 3.0]), (50, 60), check_invariants=True).coalesce()
    state = {"full": full, "lower": full.tril(), "few": few, "cells": cells, "tried": torch.tensor([3])}
    made = compacted(state)
    assert made["full"] is full
    assert nbytes(made) < full.nbytes * 1.6 + 400
    back = restored(made)
    assert set(back) == set(state)
    for name, value in state.items():
        assert back[name].layout == value.layout
        assert torch.equal(back[name].to_dense(), value.to_dense())


def test_a_state_written_whole_is_read_as_it_is():
    state = {"B": torch.rand(40, 40).tril(), "blend": torch.tensor([0.3])}
    assert restored(state) == state
