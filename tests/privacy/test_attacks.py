import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from tacit.core.payload import Each, Payload, Product, Rows, Shared, Sparse
from tacit.privacy.attacks import (
    Clues,
    auc,
    clues,
    direction,
    item_tables,
    oriented,
    position,
    precision,
    row_change,
    score_direction,
    sent_tables,
    sign_across_rounds,
    success,
)

IDS = torch.arange(2)
ALL = np.ones((1, 4), dtype=bool)


def test_every_field_with_a_row_per_item_is_taken_as_it_arrives():
    base = torch.arange(6.0).view(3, 2)
    rows = Rows(torch.ones(2, 1, 2), torch.tensor([[0], [2]]), torch.ones(2, 1, dtype=torch.bool), base)
    left, right = torch.randn(2, 3, 2), torch.randn(2, 3, 2)
    cells = Sparse(torch.tensor([0, 0, 1]), torch.tensor([1, 7, 8]), torch.tensor([-2.0, 3.0, 4.0]), (4, 3))
    fields = {
        "items": rows,
        "similarity": Product(left, right),
        "cells": cells,
        "head": Each(torch.ones(2, 5)),
        "labels": Each(torch.ones(2, 3).long()),
        "weight": Each(torch.ones(2), private=False),
        "same": Shared(torch.ones(3, 2)),
    }
    found = item_tables(Payload(IDS, fields), items=3)
    assert set(found) == {"items", "similarity", "cells"}
    assert found["items"].tolist() == [[[1, 1], [2, 3], [4, 5]], [[0, 1], [2, 3], [1, 1]]]
    torch.testing.assert_close(found["similarity"], left @ right.mT)
    assert found["cells"][..., 0].tolist() == [[0, 5, 0], [0, 0, 4]]  # item = index modulo 3


def test_cells_count_for_the_last_axis_of_items():
    cells = Sparse(torch.tensor([0, 0]), torch.tensor([2, 5]), torch.tensor([1.0, 2.0]), (3, 2))
    assert item_tables(Payload(IDS[:1], {"cells": cells}), items=3)["cells"][..., 0].tolist() == [[0, 1, 2]]
    pairs = Sparse(torch.tensor([0]), torch.tensor([5]), torch.tensor([1.0]), (3, 3))
    assert item_tables(Payload(IDS[:1], {"pairs": pairs}), items=3)["pairs"][..., 0].tolist() == [[0, 0, 1]]


def test_what_was_sent_is_for_all_or_for_each():
    down = Payload(IDS, {"items": Shared(torch.ones(3, 2)), "target": Each(torch.ones(2, 3, 4)), "b": Shared(IDS)})
    assert {n: tuple(x.shape) for n, x in sent_tables(down, 3).items()} == {"items": (1, 3, 2), "target": (2, 3, 4)}


def gradient(slopes, user):
    """The change of a table by one step against a held user vector: −slope_i · p_u."""
    return -torch.tensor(slopes)[:, None] * torch.tensor(user)


def test_the_first_direction_gives_the_slopes_back():
    """Two positives pulled by 0.5, five negatives pushed by 0.3, two items not drawn; the user is not known."""
    slopes = [-0.5, -0.5, 0.3, 0.3, 0.3, 0.3, 0.3, 0.0, 0.0]
    for user in ([3.0, 4.0], [-3.0, -4.0]):
        found = direction(gradient(slopes, user)[None])
        assert found[0].tolist() == pytest.approx([-5 * s for s in slopes], abs=1e-5)  # ‖p_u‖ = 5


def test_a_direction_is_the_first_singular_one():
    change = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0))
    change[:, :, 0] *= 6
    left, values, _ = np.linalg.svd(change.numpy())
    for found, u, s in zip(direction(change), left, values, strict=True):
        assert abs(found.numpy() @ u[:, 0]) == pytest.approx(s[0], rel=1e-4)


def test_nothing_has_no_direction():
    assert direction(torch.zeros(1, 4, 2)).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    "along",
    [
        [1, 1, -1, -1, -1, -1, -1, -1, -1, -1],  # early: all alike, four negatives for a positive
        [4, 4, -1, -1, -1, -1, -1, -1, -1, -1],  # calibrated: the slopes add up to nothing
    ],
)
def test_few_go_forwards_and_many_backwards(along):
    forwards = torch.tensor([along], dtype=torch.float32)
    assert torch.equal(oriented(forwards), forwards)
    assert torch.equal(oriented(-forwards), forwards)


def test_clues_are_of_the_change_and_of_the_upload():
    base = torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    up = base + torch.tensor([[[0.0, 0.0], [0.6, 0.8], [-0.3, -0.4], [-0.3, -0.4]]])
    found = clues({"items": up}, {"items": base})
    assert found.moved[0].tolist() == pytest.approx([0, 1, 0.5, 0.5])
    assert found.along[0].tolist() == pytest.approx([0, 1, -0.5, -0.5], abs=1e-5)
    torch.testing.assert_close(found.lies, direction(up - up.mean(1, keepdim=True)))
    assert clues({"items": up}, {}).moved[0].tolist() == pytest.approx([1, 1, 0.5, 0.5])


def test_attacks_add_rounds_up():
    """Item 0 is a positive; 1 and 2 are drawn as negatives in one round each; 3 never."""
    rounds = [
        Clues(torch.tensor([[4.0, 3, 0, 0]]), torch.tensor([[4.0, -3, 0, 0]]), torch.tensor([[3.0, 4, 0, 0]])),
        Clues(torch.tensor([[0.8, 0, 0.6, 0]]), torch.tensor([[0.8, 0, -0.6, 0]]), torch.tensor([[3.0, 0, 4, 0]])),
    ]
    assert row_change(rounds)[0].tolist() == pytest.approx([0.8, 0.3, 0.3, 0])
    assert score_direction(rounds)[0].tolist() == pytest.approx([0.8, -0.3, -0.3, 0])
    assert sign_across_rounds(rounds)[0].tolist() == [1, -0.5, -0.5, 0]
    assert position(rounds)[0].tolist() == pytest.approx([0.6, 0.4, 0.4, 0])


def test_auc_by_hand():
    """Of true 4 and 1 against false 3 and 1: won, won, lost, tied."""
    scores, truth = np.array([[4.0, 3, 1, 1]]), np.array([[True, False, True, False]])
    assert auc(scores, truth, ALL).tolist() == [(1 + 1 + 0 + 0.5) / 4]
    without_third = np.array([[True, True, False, True]])
    assert auc(scores, truth, without_third).tolist() == [1]
    assert np.isnan(auc(scores, ALL, ALL)).all()


def test_auc_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, truth = rng.integers(0, 6, (5, 40)).astype(float), rng.random((5, 40)) < 0.3
    counted = rng.random((5, 40)) < 0.8
    expected = [roc_auc_score(t[c], s[c]) for s, t, c in zip(scores, truth, counted, strict=True)]
    assert auc(scores, truth, counted).tolist() == pytest.approx(expected)


def test_precision_shares_ties():
    scores, truth = np.array([[4.0, 3, 3, 3]]), np.array([[True, True, False, False]])
    assert precision(scores, truth, ALL, 1).tolist() == [1]
    assert precision(scores, truth, ALL, 2).tolist() == pytest.approx([(1 + 1 / 3) / 2])
    assert precision(scores, truth, np.array([[False, True, True, True]]), 2).tolist() == pytest.approx([2 / 3 / 2])


def test_between_clients_the_same_guess_for_all_is_worth_nothing():
    """Items 0 and 1 are popular: a guess by popularity is right about clients, and silent about who has what."""
    truth = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 0, 0]], dtype=bool)
    counted = np.ones_like(truth)
    counted[0, 4] = False
    popular = success(np.broadcast_to(truth.sum(0).astype(float), truth.shape), truth, counted, 2)
    assert popular.auc == pytest.approx((1 + (3 + 2) / 6 + 1) / 3)
    assert popular.between == 0.5
    assert popular.precision == pytest.approx((1 + 0.5 + 1) / 3)
    known = success(truth + 0.0, truth, counted, 2)
    assert (known.auc, known.between, known.precision) == (1, 1, 1)


def test_between_clients_scales_do_not_matter():
    truth = np.array([[1, 0, 0], [0, 1, 0]], dtype=bool)
    scores = np.array([[3.0, 2, 1], [100, 300, 200]])
    assert success(scores, truth, np.ones_like(truth), 1).between == 1


def test_between_clients_held_out_items_move_nobodys_places():
    truth = np.array([[1, 0, 0], [0, 0, 1]], dtype=bool)
    counted = np.array([[1, 0, 1], [1, 1, 1]], dtype=bool)
    assert success(np.array([[3.0, 2, 1]] * 2), truth, counted, 1).between == 0.5


def test_between_clients_every_pair_counts_alike():
    """Item 0: four pairs, all won; item 1: three pairs, all lost."""
    truth = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    scores = np.array([[3.0, 2, 1], [3, 2, 1], [1, 2, 3], [2, 1, 3]])
    assert success(scores, truth, np.ones_like(truth), 1).between == pytest.approx(4 / 7)
