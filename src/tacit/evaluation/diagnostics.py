"""How much of its dimensions an item table uses: singular values, and two figures made of them.

All take a table (…, M, d) and treat the leading axes as a stack of tables.
"""

import torch
from torch import Tensor


def spectrum(tables: Tensor) -> Tensor:
    """Singular values, the largest first, (…, d) for d ≤ M.

    From the eigenvalues of the Gram matrix (d × d) in double precision: a stack of thousands of tables costs little,
    and what it loses are values below 1e-8 of the largest.
    """
    table = tables.double()
    gram = table.mT @ table if table.shape[-2] >= table.shape[-1] else table @ table.mT
    values: Tensor = torch.linalg.eigvalsh(gram)
    return values.clamp(min=0).sqrt().flip(-1)


def information_abundance(singular: Tensor) -> Tensor:
    """The sum of the singular values over the largest (Guo et al. 2024; PLGC's Eq. 5): d where all are equal, 1 where
    one is left, 0 of a table of zeros.
    """
    largest = singular[..., 0]
    return torch.where(largest > 0, singular.sum(-1) / largest.clamp(min=torch.finfo(singular.dtype).tiny), 0)


def variance(singular: Tensor) -> Tensor:
    """The variance of the singular values: 0 where a table uses all dimensions alike."""
    return singular.var(-1, correction=0)


def collapse(tables: Tensor) -> Tensor:
    """The variance of the singular values of a table's covariance matrix (HeteFedRec's Eq. 12 and Table V), (…)."""
    centred = tables.double() - tables.double().mean(-2, keepdim=True)
    return variance(spectrum(centred).square() / tables.shape[-2])
