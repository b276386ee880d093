"""Ridge regression from sums, in blocks: nothing but matrix products of a few rows beside the factor itself.

LAPACK's own routines copy their arguments and, on two busy cores, wait for each other at every column. `corner` is how
many of the first rows of S are diagonal among themselves, as histories of a single item make them; so is the factor.
"""

import torch
from torch import Tensor

from tacit.core.payload import State
from tacit.core.workers import single_threaded_torch
from tacit.methods.large_sums import columns, diagonal, product, write_out

BLOCK = 512  # rows at a time


def factor_of(lower: Tensor, ridge: float | Tensor, corner: int = 0, room: Tensor | None = None) -> Tensor:
    """Cholesky factor of S + λ, S symmetric by its lower half, λ one for all rows or one each.

    λ grows until noise leaves the matrix positive definite. The factor is written to `room` if that fits.
    """
    for growth in range(12):
        room = write_out(lower, room).tril_()
        room.diagonal().add_(ridge * 4.0**growth)
        if _factorised(room, corner):
            return room
    raise ValueError("the sums are not those of any data: no ridge makes them positive definite")


def _factorised(whole: Tensor, corner: int) -> bool:
    """Turn a symmetric matrix, given by its lower half, into its factor in place; False: not positive definite."""
    root = whole.diagonal()[:corner].sqrt_()
    whole[corner:, :corner] /= root
    for here in _blocks(corner, len(whole)):
        left, below = whole[here, : here.start], whole[here.start :, here]
        below.addmm_(whole[here.start :, : here.start], left.T, alpha=-1)
        with single_threaded_torch():  # several threads wait for each other longer than one works
            block, failed = torch.linalg.cholesky_ex(whole[here, here])
        if int(failed):
            return False
        whole[here, here] = block
        rest = whole[here.stop :, here]
        rest.copy_(torch.linalg.solve_triangular(block.T, rest, upper=True, left=False))
    return True


def solved(factor: Tensor, right: Tensor, corner: int = 0, room: Tensor | None = None) -> Tensor:
    """(L Lᵀ)⁻¹ R by substitution, down and up again, in `room` if that fits."""
    out = write_out(right, room)
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
    """(L Lᵀ)⁻¹ = L⁻ᵀ L⁻¹; the blocks that are zero are left out, and L becomes L⁻¹."""
    size = len(factor)
    for here in _blocks(0, size):
        corner = torch.linalg.solve_triangular(
            factor[here, here], torch.eye(here.stop - here.start, dtype=factor.dtype), upper=False
        )
        factor[here, : here.start] = -corner @ (factor[here, : here.start] @ factor[: here.start, : here.start])
        factor[here, here] = corner
    out = torch.zeros_like(factor)
    for here in _blocks(0, size):
        rows = factor[here, : here.stop]
        out[: here.stop, : here.stop].addmm_(rows.T, rows)
    return out


def ease_weights(inverse: Tensor) -> Tensor:
    """−P / diag(P) with a zero diagonal, P = (G + λI)⁻¹ (Steck 2019, Eq. 8), in P's memory."""
    return inverse.div_(-inverse.diagonal().clone()).fill_diagonal_(0.0)


def ease_inverse(weights: Tensor, diagonal: Tensor) -> Tensor:
    """P again from its weights and its diagonal."""
    out = weights * -diagonal
    out.diagonal().copy_(diagonal)
    return out


def ease_solution(server: State, ridge: float, denoise: float = 0.0) -> State:
    """EASE's weights with λ + q · diag(G), and P's diagonal, with which P can be had again.

    q·diag(G) is what leaving out items of a history at random adds (Steck 2020). An item that is not an input
    has nothing to leave out: its column is P G.
    """
    gram, room = server["G"], server.get("E")
    if "inputs" not in server:
        inverse = inverse_of(factor_of(gram, ridge + denoise * diagonal(gram), room=room))
        return {"PD": inverse.diagonal().clone(), "E": ease_weights(inverse)}
    chosen = server["inputs"].long()
    among = columns(gram, chosen).tril_()
    inverse = inverse_of(factor_of(among, ridge + denoise * diagonal(among)))
    weights = torch.empty(gram.shape) if room is None or room.shape != gram.shape else room
    others = torch.ones(gram.shape[1], dtype=torch.bool).index_fill_(0, chosen, False).nonzero()[:, 0]
    product(inverse, gram, others, weights)
    own = inverse.diagonal().clone()
    weights[:, chosen] = ease_weights(inverse)
    return {"PD": own, "E": weights}


def _blocks(start: int, stop: int) -> list[slice]:
    return [slice(at, min(at + BLOCK, stop)) for at in range(start, stop, BLOCK)]
