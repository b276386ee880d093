"""k-means for servers that group what they are sent."""

import torch
from torch import Tensor

from tacit.errors import UserError

STARTS = 4  # of k-means++, the best is taken


def kmeans(points: Tensor, clusters: int, seed: int, centres: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(labels (n,), centres (k, d)) of points (n, d).

    Continues from given centres, so that labels keep their meaning, or takes the best of a few starts. On one thread,
    because sums whose order is left to chance would show in the last digit.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if not bool(torch.isfinite(points).all()):
        raise UserError("the vectors to be grouped are no longer numbers: training has diverged; lower its rates")
    if clusters > len(points):
        raise UserError(f"clusters={clusters} is more than the {len(points):,} vectors to be grouped; ask for fewer")
    first = "k-means++" if centres is None else centres.double().numpy()
    with threadpool_limits(1, user_api="openmp"):
        found = KMeans(clusters, init=first, n_init=STARTS if centres is None else 1, random_state=seed % 2**32).fit(
            points.double().numpy()
        )
    return torch.from_numpy(found.labels_).long(), torch.from_numpy(found.cluster_centers_).float()
