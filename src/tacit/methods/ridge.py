"""Ridge regression from sums, in blocks: nothing but matrix products of a few rows beside the factor itself.

LAPACK's own routines copy their arguments and, on two busy cores, wait for each other at every column. `corner` is how
many of the first rows of S are diagonal among themselves, as histories of a single item make them; so is the factor.
"""

import torch
from torch import Tensor

from tacit.core.payload import State

BLOCK = 512  # rows at a time


def factor_of(lower: Tensor, ridge: float, corner: int = 0) -> Tensor:
    """Cholesky factor of S + λI, S symmetric by its lower half; λ grows until noise leaves it positive definite."""
    factor = torch.empty_like(lower)
    for growth in range(12):
        factor.copy_(lower)
        factor.diagonal().add_(ridge * 4.0**growth)
        if _factorised(factor, corner):
            return factor
    raise ValueError("the sums are not those of any data: no ridge makes them positive definite")


def _factorised(whole: Tensor, corner: int) -> bool:
    """Turn a symmetric matrix, given by its lower half, into its factor in place; False: not positive definite."""
    root = whole.diagonal()[:corner].sqrt_()
    whole[corner:, :corner] /= root
    for here in _blocks(corner, len(whole)):
        left, below = whole[here, : here.start], whole[here.start :, here]
        below.addmm_(whole[here.start :, : here.start], left.T, alpha=-1)
        block, failed = torch.linalg.cholesky_ex(whole[here, here])
        if int(failed):
            return False
        whole[here, here] = block
        rest = whole[here.stop :, here]
        rest.copy_(torch.linalg.solve_triangular(block.T, rest, upper=True, left=False))
    return True


def solved(factor: Tensor, right: Tensor, corner: int = 0) -> Tensor:
    """(L Lᵀ)⁻¹ R by substitution, down and up again."""
    out = right.clone()
    first, rest, root = out[:corner], out[corner:], factor.diagonal()[:corner, None]
    blocks = _blocks(corner, len(factor))
    first /= root
    used = first.any(1).nonzero()[:, 0]  # few where R is sparse
    rest.addmm_(factor[corner:, used], first[used], alpha=-1)
    for here in blocks:
        out[here].addmm_(factor[here, corner : here.start], out[corner : here.start], alpha=-1)
        out[here] = torch.linalg.solve_triangular(factor[here, here], out[here], upper=False)
    for here in reversed(blocks):
        out[here].addmm_(factor[here.stop :, here].T, out[here.stop :], alpha=-1)
        out[here] = torch.linalg.solve_triangular(factor[here, here].T, out[here], upper=True)
    first.addmm_(factor[corner:, :corner].T, rest, alpha=-1)
    first /= root
    return out


def inverse_of(factor: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ = L⁻ᵀ L⁻¹; the blocks that are zero are left out."""
    size = len(factor)
    root = torch.zeros_like(factor)  # L⁻¹, lower
    for here in _blocks(0, size):
        corner = torch.linalg.solve_triangular(factor[here, here], torch.eye(here.stop - here.start), upper=False)
        root[here, here] = corner
        root[here, : here.start] = -corner @ (factor[here, : here.start] @ root[: here.start, : here.start])
    out = torch.zeros_like(factor)
    for here in _blocks(0, size):
        rows = root[here, : here.stop]
        out[: here.stop, : here.stop].addmm_(rows.T, rows)
    return out


def ease_weights(inverse: Tensor, out: Tensor | None = None) -> Tensor:
    """−P / diag(P) with a zero diagonal, P = (G + λI)⁻¹ (Steck 2019, Eq. 8)."""
    return torch.div(inverse, -inverse.diagonal(), out=out).fill_diagonal_(0.0)


def ease_solution(server: State, ridge: float) -> State:
    """P = (G + λI)⁻¹ and EASE's weights; an item that is no input has nothing to leave out: its column is P G."""
    gram = server["G"]
    if "inputs" not in server:
        inverse = inverse_of(factor_of(gram, ridge))
        return {"PG": inverse, "E": ease_weights(inverse)}
    chosen = server["inputs"].long()
    inverse = inverse_of(factor_of(gram[:, chosen].tril(), ridge))
    weights = inverse @ gram
    weights[:, chosen] = ease_weights(inverse)
    return {"PG": inverse, "E": weights}


def _blocks(start: int, stop: int) -> list[slice]:
    return [slice(at, min(at + BLOCK, stop)) for at in range(start, stop, BLOCK)]
