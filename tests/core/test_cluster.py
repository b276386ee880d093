import numpy as np
import pytest
import torch

from tacit.core.cluster import kmeans
from tacit.errors import UserError


def blobs(per=40, spread=0.3):
    draw = torch.Generator().manual_seed(0)
    middles = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    return torch.cat([m + spread * torch.randn(per, 2, generator=draw) for m in middles]), middles


def test_blobs_are_found_and_a_centre_is_the_mean_of_its_points():
    points, middles = blobs()
    labels, centres = kmeans(points, 3, seed=7)
    assert sorted(torch.bincount(labels).tolist()) == [40, 40, 40]
    for k in range(3):
        torch.testing.assert_close(centres[k], points[labels == k].mean(0), atol=1e-5, rtol=1e-5)
    assert torch.cdist(centres, middles).min(1).values.max() < 0.3
    assert torch.equal(labels, torch.cdist(points, centres).argmin(1))


def test_labels_keep_their_meaning_from_given_centres():
    points, middles = blobs()
    for order in ([0, 1, 2], [2, 0, 1]):
        labels, centres = kmeans(points, 3, seed=0, centres=middles[order] + 1.0)
        assert torch.equal(labels, torch.tensor(np.argsort(order)).repeat_interleave(40))
        assert torch.cdist(centres, middles[order]).diagonal().max() < 0.3


@pytest.mark.parametrize("seed", [3, 2**63])
def test_the_seed_decides(seed):
    points = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))
    one, other = kmeans(points, 6, seed), kmeans(points, 6, seed)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_what_has_diverged_is_named():
    with pytest.raises(UserError, match="diverged"):
        kmeans(torch.tensor([[1.0], [float("nan")]]), 2, 0)
