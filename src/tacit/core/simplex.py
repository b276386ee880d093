"""Weights that are not negative and add up to one."""

import torch
from torch import Tensor

BLOCK = 1024  # rows projected at a time: sorting needs several times the memory of what it sorts


def project(points: Tensor) -> Tensor:
    """The point of the simplex nearest to each row, (n, k) -> (n, k) in double precision.

    This solves argmin over the simplex of λ‖w − p‖² + q·w in closed form: it is the projection of p − q / (2λ). The
    nearest point is (x − τ)⁺ for the one τ at which it adds up to one; over the j largest entries τ is (Σ − 1) / j, and
    the right j is the last at which the j-th largest entry is still above it (Held, Wolfe and Crowder 1974).
    """
    return torch.cat([_project(rows) for rows in torch.split(points, BLOCK)])


def _project(points: Tensor) -> Tensor:
    # shares of a zero weight are not numbers: all clients may announce that they weigh nothing
    x = points.double().nan_to_num(0.0, 0.0, 0.0)
    largest = x.sort(1, descending=True).values
    over = largest.cumsum(1) - 1  # (n, k) Σ − 1 of the j largest
    rank = torch.arange(1, x.shape[1] + 1)
    kept = (largest * rank > over).sum(1, keepdim=True)  # (n, 1) j, at least one
    return (x - over.gather(1, kept - 1) / kept).clamp_(min=0)
