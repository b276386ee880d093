"""How items relate, M × M, and its factors: what FedCIA's clients upload and fit their tables to."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tacit.core.payload import Field, Product


def aligned(table: Tensor, factor: Tensor, columns: Tensor, step: float) -> Tensor:
    """Tables (C, M, d) moved towards argmin_Q ‖Q Qᵀ − F Fᵀ‖, in the rotation nearest to them.

    By Eckart and Young the minimisers of rank d are the first d columns of F = V Λ^½ in any rotation R; the nearest
    one has R = U Wᵀ from the singular value decomposition of Fᵀ Q (Schönemann 1966). A client has its `columns` (C, d).
    """
    best = torch.zeros(table.shape[1:])
    width = min(factor.shape[1], table.shape[2])
    best[:, :width] = factor[:, :width]
    target = best * columns[:, None]  # (C, M, d)
    left, _, right = torch.linalg.svd(target.mT @ table)
    nearest: Tensor = (target @ (left @ right)) * columns[:, None]
    return (1 - step) * table + step * nearest


def descended(table: Tensor, factor: Tensor, steps: int, rate: float) -> Tensor:
    """Tables (C, M, d) after steps down ‖Q Qᵀ − F Fᵀ‖_F, whose gradient is 2 (Q QᵀQ − F FᵀQ) over the norm.

    The public code's loss; the paper's MSE (Eq. 6) is its square by M². The columns of F (M, r) are orthogonal, and in
    their directions F Fᵀ only scales: a step costs (M + r) d² and not M r d.
    """
    size = factor.norm(dim=0)  # √λ
    basis = factor / size.clamp(min=1e-12)
    inside = basis.mT @ table  # (C, r, d)
    q = torch.cat([inside, table - basis @ inside], 1)
    scale = torch.cat([size.square(), size.new_zeros(table.shape[1])])[:, None]  # what F Fᵀ does to each row of q
    for _ in range(steps):
        own = q.mT @ q
        square = own.square().sum((1, 2)) - 2 * (scale * q.square()).sum((1, 2)) + scale.square().sum()
        norm = square.clamp(min=1e-12).sqrt()[:, None, None]
        q = q - 2 * rate * (q @ own - scale * q) / norm
    found: Tensor = basis @ q[:, : len(size)] + q[:, len(size) :]
    return found


def truncated(table: Tensor, rank: int) -> Tensor:
    """(C, M, r) the factor of the best approximation of Q Qᵀ by rank r, from the d × d products alone."""
    vectors: Tensor = torch.linalg.eigh(table.mT @ table)[1]  # ascending
    short = table @ vectors.flip(-1)[..., :rank]  # Q w_k = σ_k u_k
    missing = rank - short.shape[2]
    return torch.nn.functional.pad(short, (0, missing)) if missing > 0 else short


def truncated_product(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best approximation of left · rightᵀ by rank r, again as two factors, (C, M, r) each."""
    q, r = torch.linalg.qr(left)
    k, s = torch.linalg.qr(right)
    u, values, v = torch.linalg.svd(r @ s.mT)
    root = values.sqrt()[:, None, :rank]
    return q @ (u[..., :rank] * root), k @ (v.mT[..., :rank] * root)


_FACTORS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # a server's matrix is decomposed once, not for a chunk


def leading_factor(similarity: Tensor, rank: int) -> Tensor:
    """(M, r) F with F Fᵀ the best approximation of a symmetric matrix by rank r, columns by size."""
    from scipy.linalg import eigh

    known: dict[int, Tensor] = _FACTORS.setdefault(similarity, {})  # type: ignore[no-untyped-call]
    if rank not in known:
        size = len(similarity)
        some = min(rank, size)
        values, vectors = eigh(similarity.double().numpy(), subset_by_index=[size - some, size - 1])
        factor = torch.from_numpy(vectors * np.sqrt(np.maximum(values, 0))).flip(1).float()
        known[rank] = torch.nn.functional.pad(factor, (0, rank - some))
    return known[rank]


def add(total: Tensor | None, field: Field, factors: bool) -> Tensor:
    """The sum of the clients' matrices so far; `factors`: the field holds Q with Q Qᵀ the matrix."""
    if total is None:
        total = torch.zeros(field.one_shape[0], field.one_shape[0], dtype=torch.float64)
    if factors:
        field = Product(field.dense(), field.dense())
    field.add_to(total)
    return total


def local_filter(history: Tensor, directions: int, ideal: float) -> tuple[Tensor, Tensor]:
    """GF-CF's mixed filter of each client as left · rightᵀ, (C, M, r) each, from histories (C, U, M).

    R̃ᵀR̃ + α D^(−½) V Vᵀ D^(½): R̃ with the client's own degrees, V its first right singular vectors, from the U × U
    products (Shen et al. 2021, Eq. 9).
    """
    users, items = history.sum(2, keepdim=True), history.sum(1, keepdim=True)  # degrees (C, U, 1), (C, 1, M)
    root = items.sqrt()
    inverse = torch.where(items > 0, 1 / root.clamp(min=1e-12), 0)
    normal = history * torch.where(users > 0, users.clamp(min=1e-12).rsqrt(), 0) * inverse  # R̃, (C, U, M)
    values, vectors = torch.linalg.eigh(normal @ normal.mT)  # (C, U), ascending
    some = min(directions, history.shape[1])
    size = values.flip(1)[:, :some].clamp(min=0).sqrt()  # singular values
    there = size > 1e-5
    wanted = normal.mT @ vectors.flip(2)[..., :some] * torch.where(there, 1 / size.clamp(min=1e-12), 0)[:, None]
    left = torch.cat([normal.mT, ideal * inverse.mT * wanted], 2)
    return left, torch.cat([normal.mT, root.mT * wanted], 2)
