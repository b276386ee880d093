"""A solution in closed form moved by the rows of one user that come or go, without solving again."""

import math
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.payload import Sparse, State
from tacit.methods.history_sums import steps
from tacit.methods.ridge import ease_weights, factor_of, solved
from tacit.methods.tally_sums import Sums

Ints = NDArray[np.int64]


def revised(server: State, sums: Sums, old: Ints, new: Ints, corner: int) -> State:
    """Sums and solutions after one user's sequence becomes another; `corner` as in `ridge`."""
    n_items = server["G" if "G" in server else "C"].shape[1]
    chosen = server["inputs"].numpy() if "inputs" in server else None
    for sequence, sign in ((old, -1.0), (new, 1.0)):
        for name, part in sums.cells([sequence], np.zeros(1, dtype=np.int64), n_items, False, chosen).items():
            Sparse(part.client, part.index, sign * part.value, part.shape).add_to(server[name])
    if "L" in server:
        same = 0  # a common beginning cancels: its steps neither go nor come
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        first = max(same, 1)
        for sequence, sign in ((old, -1.0), (new, 1.0)):
            if len(sequence) > first:
                told = steps(sequence, sums.windows, sums.decays, n_items, first)
                if chosen is not None:
                    told = told.at(None, sums.places(chosen, n_items))
                H = sparse_matrix(told.owner, told.column, told.value, len(sequence) - first, len(server["L"]))
                shift_ridge(server, H, sequence[first:], sign, corner)
        if len(server["sign"]) > len(server["L"]) // 2:  # carrying so many costs more than a new factor
            server |= factored(factor_of(server["A"], float(server["lambda"]), corner))
    if "PG" in server:
        shift_ease(server, old, new)
    return server


def shift_ridge(server: State, H: Tensor, followed: Ints, sign: float, corner: int) -> None:
    """Steps of a sequence come (+1) or go (−1), in place: recursive least squares in a block.

    With H the histories of these steps (sparse), Y the items that followed, P = (A + λI)⁻¹ before, s the sign and
    U = P Hᵀ, the factor R of I + s H U gives W = U R⁻ᵀ, P' = P − s W Wᵀ and B' = B + s W R⁻¹ (Y − H B).
    P itself is never formed: it is L⁻ᵀ L⁻¹ less the s W Wᵀ of earlier revisions.
    """
    U = solved(server["L"], H.to_dense().T, corner)  # (K·M, n)
    U.addmm_(server["W"], ((H @ server["W"]) * server["sign"]).T, alpha=-1)
    inner = (H @ U).double().mul_(sign)
    inner.diagonal().add_(1.0)
    R = torch.linalg.cholesky(inner).float()
    W = torch.linalg.solve_triangular(R.T, U, upper=True, left=False)
    missed = H @ server["B"]  # H B − Y, (n, M)
    missed[torch.arange(len(followed)), torch.from_numpy(followed)] -= 1.0
    server["B"].addmm_(W, torch.linalg.solve_triangular(R, missed, upper=False), alpha=-sign)
    server["W"] = torch.cat([server["W"], W], 1)
    server["sign"] = torch.cat([server["sign"], torch.full((len(followed),), sign)])


def shift_ease(server: State, old: Ints, new: Ints) -> None:
    """Two rank-one changes of P = (G + λI)⁻¹ (Sherman and Morrison), then EASE's weights anew.

    Columns of items that are no inputs change as `shift_ridge` has it, with x cut down to the inputs for H, x for Y.
    """
    inverse, weights = server["PG"], server["E"]
    chosen = server["inputs"].long() if "inputs" in server else None
    for items, sign in ((old, -1.0), (new, 1.0)):
        place = torch.from_numpy(items)
        held = place if chosen is None else torch.isin(chosen, place).nonzero()[:, 0]
        if len(held):
            u = inverse[held].sum(0)
            gain = sign / (1 + sign * float(u[held].sum()))
            if chosen is not None:
                missed = weights[held].sum(0)  # x E − x
                missed[place] -= 1.0
                weights.addr_(u, missed, alpha=-gain)
            inverse.addr_(u, u, alpha=-gain)
    if chosen is None:
        ease_weights(inverse, out=weights)
    else:
        weights[:, chosen] = ease_weights(inverse)


def factored(factor: Tensor) -> State:
    """A fresh factor, with no revisions to carry."""
    return {"L": factor, "W": torch.zeros(len(factor), 0), "sign": torch.zeros(0)}


def scale_of(sums: Tensor) -> float:
    """The mean diagonal to the nearest power of two, so that a user more or less does not move λ."""
    mean = float(sums.diagonal().double().mean())
    return 2.0 ** round(math.log2(mean)) if mean > 0 else 1.0


def sparse_matrix(row: Ints, column: Ints, value: NDArray[np.float64], rows: int, columns: int) -> Tensor:
    """A sparse matrix in the layout whose products are fast."""
    place = torch.from_numpy(np.stack([row, column]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        values = torch.from_numpy(value).float()
        return torch.sparse_coo_tensor(place, values, (rows, columns), check_invariants=False).to_sparse_csr()
