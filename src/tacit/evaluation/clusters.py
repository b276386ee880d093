"""How clusters of items hold: from one round to another, and in the tables of clients that never saw each other's."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CELLS = 2**22  # distances held at once


def agreement(one: Tensor, other: Tensor) -> float:
    """The adjusted Rand index of two labellings (M,): 1 for the same clusters whatever they are called, 0 by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(one.numpy(), other.numpy()))


def kept(one: Tensor, other: Tensor) -> float:
    """The share of items that stay in their cluster.

    Clusters are matched one to one so that as many as possible do: to a client it matters which items are together, not
    what their cluster is called, and a server may cluster again every round.
    """
    from scipy.optimize import linear_sum_assignment

    _, rows = torch.unique(one, return_inverse=True)
    _, columns = torch.unique(other, return_inverse=True)
    shared = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1))
    np.add.at(shared, (rows.numpy(), columns.numpy()), 1)
    return float(shared[linear_sum_assignment(shared, maximize=True)].sum() / len(one))


def silhouette(tables: Tensor, labels: Tensor) -> Tensor:
    """How well labels (M,) of two clusters or more separate the rows of each table (C, M, d): (C,) from −1 to 1.

    CGFedRec's Section 6.2 asks whether "items sharing the same global label form compact local groups" while others lie
    apart; its figures show it by t-SNE, this is Rousseeuw's silhouette with the cosine of Eq. 7 and 10. For an item
    of cluster c, a is the mean of 1 − cosine to the others of c, b that to the nearest other cluster, and the item
    counts (b − a) / max(a, b), or 0 where it is alone in c: 1 where clusters are far apart, 0 where they overlap,
    below 0 where items are nearer to another cluster than to their own. With z the rows of length one and S_c the
    sum of a cluster's, the mean cosine to c is z · S_c / n_c, so that a table costs M · d · k and not M² · d.
    """
    _, own = torch.unique(labels, return_inverse=True)  # clusters without items are none
    size = torch.bincount(own)
    M, k = len(own), len(size)
    alone = size[own] == 1
    place = own[None, :, None]
    out = [tables.new_zeros(0, dtype=torch.float64)]
    for some in torch.split(tables, max(CELLS // (M * k), 1)):
        z = F.normalize(some.double(), dim=-1)  # (c, M, d)
        sums = z.new_zeros(len(z), k, z.shape[2]).index_add_(1, own, z)
        near = z @ sums.mT  # (c, M, k)
        inside = near.gather(2, place.expand(len(z), -1, 1))[..., 0] - z.square().sum(2)  # without itself
        a = 1 - inside / (size[own] - 1).clamp(min=1)
        b = (1 - near / size).scatter_(2, place.expand(len(z), -1, 1), torch.inf).amin(2)
        score = (b - a) / torch.maximum(a, b).clamp(min=1e-9)  # rows that are all alike are not separated
        out.append(score.masked_fill_(alone, 0).mean(1))
    return torch.cat(out)
