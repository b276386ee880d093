"""A solution in closed form moved by the rows of one user that come or go, without solving again."""

import math
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.payload import State
from tacit.data.splits import Orders
from tacit.errors import UserError
from tacit.methods.history_sums import steps
from tacit.methods.large_sums import diagonal, plus
from tacit.methods.ridge import ease_inverse, ease_weights, factor_of, solved
from tacit.methods.tally_sums import Sums

Ints = NDArray[np.int64]
_NONE = np.zeros(0, dtype=np.int64)


def revised(server: State, sums: Sums, old: Orders, new: Orders, corner: int, denoise: float = 0.0) -> State:
    """Sums and solutions after one user's history becomes another, or none; `corner` and `denoise` as in `ridge`."""
    if "L" in server and "orders" not in server:
        raise UserError("its sums are of an earlier version and have each history in one order; train again")
    n_items = server["G" if "G" in server else "C"].shape[1]
    chosen = server["inputs"].numpy() if "inputs" in server else None
    for history, sign in ((old, -1.0), (new, 1.0)):
        if history:
            for name, part in sums.cells([history], np.zeros(1, dtype=np.int64), n_items, False, chosen).items():
                if name in server:
                    server[name] = plus(server[name], [part], sign)
    if "L" in server:
        weight = 1 / max(len(old), len(new), 1)  # of an order; a single one stands for two of the same
        for before, after in paired(old, new):
            same = 0  # a common beginning cancels: its steps neither go nor come
            while same < min(len(before), len(after)) and before[same] == after[same]:
                same += 1
            first = max(same, 1)
            for sequence, sign in ((before, -1.0), (after, 1.0)):
                if len(sequence) > first:
                    told = steps(sequence, sums.windows, sums.decays, n_items, first)
                    if chosen is not None:
                        told = told.at(None, sums.places(chosen, n_items))
                    size = len(sequence) - first, len(server["L"])
                    H = sparse_matrix(told.owner, told.column, told.value * weight**0.5, *size)
                    shift_ridge(server, H, sequence[first:], weight**0.5, sign, corner)
        if len(server["sign"]) > len(server["L"]) // 2:  # carrying that many costs more than a new factor
            server |= factored(factor_of(server["A"], float(server["lambda"]), corner))
    if "PD" in server:
        shift_ease(server, old[0] if old else _NONE, new[0] if new else _NONE, denoise)
    return server


def paired(old: Orders, new: Orders) -> list[tuple[Ints, Ints]]:
    """Each order before and the one after; where there is none, nothing, and one alone stands beside each."""
    count = max(len(old), len(new))
    before, after = ([*history, _NONE] if not history else [*history, *history] for history in (old, new))
    return [(before[k % len(before)], after[k % len(after)]) for k in range(count)]


def shift_ridge(server: State, H: Tensor, followed: Ints, size: float, sign: float, corner: int) -> None:
    """Steps of a sequence come (+1) or go (−1), in place: recursive least squares in a block.

    With H the histories of these steps (sparse), Y the items that followed, both times `size`, P = (A + λI)⁻¹ before,
    s the sign and U = P Hᵀ, the factor R of I + s H U gives W = U R⁻ᵀ, P' = P − s W Wᵀ and B' = B + s W R⁻¹ (Y − H B).
    P itself is never formed: it is L⁻ᵀ L⁻¹ less the s W Wᵀ of earlier revisions.
    """
    U = solved(server["L"], H.to_dense().T, corner)  # (K·M, n)
    U.addmm_(server["W"], ((H @ server["W"]) * server["sign"]).T, alpha=-1)
    inner = (H @ U).double().mul_(sign)
    inner.diagonal().add_(1.0)
    R = torch.linalg.cholesky(inner).float()
    W = torch.linalg.solve_triangular(R.T, U, upper=True, left=False)
    missed = H @ server["B"]  # H B − Y, (n, M)
    missed[torch.arange(len(followed)), torch.from_numpy(followed)] -= size
    server["B"].addmm_(W, torch.linalg.solve_triangular(R, missed, upper=False), alpha=-sign)
    server["W"] = torch.cat([server["W"], W], 1)
    server["sign"] = torch.cat([server["sign"], torch.full((len(followed),), sign)])


def shift_ease(server: State, old: Ints, new: Ints, denoise: float) -> None:
    """P = (G + λI + q·diag(G))⁻¹ after x xᵀ + q·diag(x) came or went, by Woodbury's identity; then EASE's weights.

    With V the rows of P at a user's items, K their columns there, S = ±(1 1ᵀ + qI) and T = S (I + K S)⁻¹, it is
    P − Vᵀ T V; with q = 0 the rows come added up. The columns P G of items that are not inputs become P' (G ± x yᵀ).
    """
    weights = server["E"]
    chosen = server["inputs"].long() if "inputs" in server else torch.arange(len(weights))
    whole = len(chosen) == weights.shape[1]
    inverse = ease_inverse(weights if whole else weights[:, chosen], server["PD"])
    for items, sign in ((old, -1.0), (new, 1.0)):
        place = torch.from_numpy(items)
        held = torch.isin(chosen, place).nonzero()[:, 0]
        if not len(held):
            continue
        V, missed = inverse[held], weights[held]
        K = V[:, held].double()
        if not denoise:
            V, missed, K = V.sum(0, keepdim=True), missed.sum(0, keepdim=True), K.sum().view(1, 1)
        S = sign * (torch.ones_like(K) + denoise * torch.eye(len(K)))
        T = torch.linalg.solve((torch.eye(len(K)) + K @ S).T, S.T).T.float()
        if not whole:
            weights.addmm_(V.T, T @ missed, alpha=-1)
        inverse.addmm_(V.T, T @ V, alpha=-1)
        if not whole:  # columns of inputs are overwritten below
            followed = torch.zeros(weights.shape[1]).index_fill_(0, place, sign)
            weights.addr_(inverse[held].sum(0), followed)
    server["PD"] = inverse.diagonal().clone()
    if whole:
        server["E"] = ease_weights(inverse)
    else:
        weights[:, chosen] = ease_weights(inverse)


def factored(factor: Tensor) -> State:
    """A fresh factor, with no revisions to carry; its sums have histories in both orders."""
    return {"L": factor, "W": torch.zeros(len(factor), 0), "sign": torch.zeros(0), "orders": torch.tensor([2])}


def scale_of(sums: Tensor) -> float:
    """The mean diagonal to the nearest power of two, so that a user more or less does not move λ."""
    mean = float(diagonal(sums).double().mean())
    return 2.0 ** round(math.log2(mean)) if mean > 0 else 1.0


def sparse_matrix(row: Ints, column: Ints, value: NDArray[np.float64], rows: int, columns: int) -> Tensor:
    """A sparse matrix in the layout whose products are fast."""
    place = torch.from_numpy(np.stack([row, column]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        values = torch.from_numpy(value).float()
        return torch.sparse_coo_tensor(place, values, (rows, columns), check_invariants=False).to_sparse_csr()
