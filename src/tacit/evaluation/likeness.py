"""How alike the tables of clients are: where their items lie, how these relate, and what averaging would leave of that.

All take the same items' rows in the tables of several clients, (C, m, d).
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def coordinates(tables: Tensor) -> float:
    """The mean cosine between the rows that two clients have for one item: 1 where all have the same table.

    What FedCIA's Figure 4 and CGFedRec's Figure 3 show as pictures.
    """
    return _between(F.normalize(tables.double(), dim=-1).transpose(0, 1))


def relations(tables: Tensor) -> float:
    """The mean correlation between two clients' cosines of all pairs of items (CGFedRec's Figure 4).

    1 where items relate in the same way on every client, wherever they lie; 0 where clients know nothing in common.
    """
    z = F.normalize(tables.double(), dim=-1)
    one, other = torch.triu_indices(z.shape[1], z.shape[1], 1)
    pairs = (z @ z.mT)[:, one, other]  # (C, m (m − 1) / 2)
    return _between(F.normalize(pairs - pairs.mean(1, keepdim=True), dim=-1)[None])


def retained(tables: Tensor) -> float:
    """S_WS / S_CI (FedCIA's Eq. 4), over all pairs of items: the distances in the mean table against the mean distance.

    At most 1 by the triangle inequality; what is missing is lost when tables are averaged.
    """
    one, other = torch.triu_indices(tables.shape[1], tables.shape[1], 1)
    mean = tables.double().mean(0)
    apart = sum(float((table[one] - table[other]).abs().sum()) for table in tables.double()) / len(tables)
    return float((mean[one] - mean[other]).abs().sum()) / max(apart, 1e-12)


def _between(rows: Tensor) -> float:
    """The mean inner product of two different rows of (…, C, n), each of length one."""
    C = rows.shape[-2]
    alike = (rows.sum(-2).square().sum(-1) - rows.square().sum((-2, -1))) / max(C * (C - 1), 1)
    return float(alike.mean())
