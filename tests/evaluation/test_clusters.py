import pytest
import torch
from sklearn.metrics import silhouette_score

from tacit.evaluation import clusters
from tacit.evaluation.clusters import agreement, kept, silhouette


def test_the_same_clusters_under_other_names():
    one, other = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([7, 7, 0, 0, 3])
    assert agreement(one, other) == 1
    assert kept(one, other) == 1


def test_one_item_changes_its_cluster():
    """Pairs that are together: 3 + 1 before, 1 + 3 after, 2 of them both times (C(2,2) + C(2,2)) of 10.

    By chance 4 · 4 / 10 = 1.6 would be, and 4 at most: (2 − 1.6) / (4 − 1.6) = 1/6.
    """
    one, other = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])
    assert agreement(one, other) == pytest.approx(1 / 6)
    assert kept(one, other) == pytest.approx(4 / 5)


def test_every_cluster_is_matched_once():
    """Both halves of a cluster that was split cannot be the old cluster; the greedy choice (3 of a with x) loses."""
    assert kept(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 1, 2])) == pytest.approx(2 / 4)
    # shared: a with x 3, a with y 2, b with x 3, b with y none
    one, other = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 0, 0, 0])
    assert kept(one, other) == pytest.approx((2 + 3) / 8)


def test_separability_of_four_rows():
    """Cosines: 0.6 between rows 0 and 1, 0 between 2 and 3 and so on, worked out by hand."""
    table = torch.tensor([[2.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 5.0], [0.0, 3.0, 0.0]])
    # 0: a 1 − 0.6, b 1 − (0 + 0) / 2;  1: a 0.4, b 1 − 0.8 / 2;  2: a 1, b 1;  3: a 1, b 1 − 0.8 / 2
    expected = [(1 - 0.4) / 1, (0.6 - 0.4) / 0.6, 0, (0.6 - 1) / 1]
    assert silhouette(table[None], torch.tensor([0, 0, 1, 1])).item() == pytest.approx(sum(expected) / 4)


def test_an_item_alone_counts_nothing():
    table = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
    assert silhouette(table[None], torch.tensor([4, 4, 9])).item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("cells", [clusters.CELLS, 60 * 5 * 2, 1])
def test_it_is_the_silhouette_of_scikit_learn(monkeypatch, cells):
    """For several tables, in blocks or one by one, with unequal clusters, one of them without items."""
    monkeypatch.setattr(clusters, "CELLS", cells)
    draw = torch.Generator().manual_seed(0)
    labels = torch.multinomial(torch.tensor([5.0, 1.0, 0.0, 2.0, 3.0, 0.5]), 60, replacement=True, generator=draw)
    tables = torch.randn(5, 60, 4, generator=draw) + 2 * torch.randn(6, 4, generator=draw)[labels]
    tables[2, 7] = 0
    found = silhouette(tables, labels)
    expected = [silhouette_score(table.double().numpy(), labels.numpy(), metric="cosine") for table in tables]
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_clusters_far_apart_mixed_and_wrong():
    angles = torch.tensor([0.0, 0.01, 1.5, 1.51])
    table = torch.stack([angles.cos(), angles.sin()], 1)[None]
    assert silhouette(table, torch.tensor([0, 0, 1, 1])).item() > 0.99
    assert silhouette(table, torch.tensor([0, 1, 0, 1])).item() < -0.4


def test_rows_of_one_direction_are_not_separated():
    """Their distances are rounding errors, which must not be compared with each other."""
    alike = torch.arange(1.0, 9.0)[:, None] * torch.randn(6, 1, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    assert silhouette(alike, labels).tolist() == pytest.approx([0] * 6, abs=1e-5)
    assert silhouette(torch.zeros(1, 8, 3), labels).item() == 0
