"""Ridge regression from sums, in blocks: nothing but matrix products of a few rows beside the factor itself.

LAPACK's own routines copy their arguments and, on two busy cores, wait for each other at every column. Blocks that are
zero are left out: histories of a single item make a diagonal corner of S, and of its factor.
"""

import torch
from torch import Tensor

BLOCK = 512  # rows at a time


def factor_of(lower: Tensor, ridge: float) -> Tensor:
    """Cholesky factor of S + λI, S symmetric by its lower half; λ grows until noise leaves it positive definite."""
    factor = torch.empty_like(lower)
    for growth in range(12):
        factor.copy_(lower)
        factor.diagonal().add_(ridge * 4.0**growth)
        if _factorised(factor):
            return factor
    raise ValueError("the sums are not those of any data: no ridge makes them positive definite")


def _factorised(whole: Tensor) -> bool:
    """Turn a symmetric matrix, given by its lower half, into its factor in place; False: not positive definite."""
    for here in _blocks(len(whole)):
        left, below = whole[here, : here.start], whole[here.start :, here]
        if left.any():
            below.addmm_(whole[here.start :, : here.start], left.T, alpha=-1)
        corner, failed = torch.linalg.cholesky_ex(whole[here, here])
        if int(failed):
            return False
        whole[here, here] = corner
        whole[here.stop :, here] = torch.linalg.solve_triangular(
            corner.T, whole[here.stop :, here], upper=True, left=False
        )
    return True


def solved(factor: Tensor, right: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ R by substitution, down and up again."""
    out = right.clone()
    blocks = _blocks(len(factor))
    for here in blocks:
        if factor[here, : here.start].any():
            out[here].addmm_(factor[here, : here.start], out[: here.start], alpha=-1)
        out[here] = torch.linalg.solve_triangular(factor[here, here], out[here], upper=False)
    for here in reversed(blocks):
        filled = factor[here.stop :, here].any(1).nonzero()
        if len(filled):
            below = slice(here.stop + int(filled[0]), None)
            out[here].addmm_(factor[below, here].T, out[below], alpha=-1)
        out[here] = torch.linalg.solve_triangular(factor[here, here].T, out[here], upper=True)
    return out


def inverse_of(factor: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ = L⁻ᵀ L⁻¹; the blocks that are zero are left out."""
    size = len(factor)
    root = torch.zeros_like(factor)  # L⁻¹, lower
    for here in _blocks(size):
        corner = torch.linalg.solve_triangular(factor[here, here], torch.eye(here.stop - here.start), upper=False)
        root[here, here] = corner
        root[here, : here.start] = -corner @ (factor[here, : here.start] @ root[: here.start, : here.start])
    out = torch.zeros_like(factor)
    for here in _blocks(size):
        rows = root[here, : here.stop]
        out[: here.stop, : here.stop].addmm_(rows.T, rows)
    return out


def ease_weights(inverse: Tensor, out: Tensor | None = None) -> Tensor:
    """−P / diag(P) with a zero diagonal, P = (G + λI)⁻¹ (Steck 2019, Eq. 8)."""
    return torch.div(inverse, -inverse.diagonal(), out=out).fill_diagonal_(0.0)


def _blocks(size: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]
