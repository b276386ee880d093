"""How far averaging pulls a user's gradient away, and what PFedCLR's buffer puts against it."""

from dataclasses import dataclass

import torch
from torch import Tensor


def skew(user: Tensor, local: Tensor, shared: Tensor, label: Tensor) -> Tensor:
    """Δ_u of Lemma 3.2 (Eq. 4): what the global table adds to the gradient of a user vector, to first order.

    Shapes: user (N, d), local (N, M, d) the clients' tables before averaging, shared (M, d) the table after it,
    label (N, M); result (N, d).
    """
    first, second = _slopes(user, local, label)
    change = shared - local  # δ_i, (N, M, d)
    scaling = (second * _dot(user, change))[:, None] @ local
    shift = first[:, None] @ change
    return (scaling + shift)[:, 0]


def calibration(user: Tensor, local: Tensor, label: Tensor, rate: float) -> Tensor:
    """Δ'_u of Lemma 4.1 (Eq. 7): what a buffer after one step of rate η puts against the skew, (N, d)."""
    first, second = _slopes(user, local, label)
    scaling = user.square().sum(-1, keepdim=True) * ((first * second)[:, None] @ local)[:, 0]
    shift = first.square().sum(-1, keepdim=True) * user
    return -rate * (scaling + shift)


@dataclass(frozen=True)
class Balance:
    """Skew and calibration of a round, in the mean over clients."""

    skew: float  # ‖Δ_u‖
    calibration: float  # ‖Δ'_u‖
    cosine: float  # between the two; −1: the calibration points against the skew
    left: float  # ‖Δ_u + Δ'_u‖ / ‖Δ_u‖; below 1: the calibration takes some of the skew away


def balance(user: Tensor, local: Tensor, shared: Tensor, label: Tensor, rate: float) -> Balance:
    """Both terms for these clients, compared."""
    moved, against = skew(user, local, shared, label), calibration(user, local, label, rate)
    size = moved.norm(dim=-1)
    cosine = torch.nn.functional.cosine_similarity(moved, against, dim=-1)
    left = (moved + against).norm(dim=-1) / size.clamp(min=1e-12)
    return Balance(float(size.mean()), float(against.norm(dim=-1).mean()), float(cosine.mean()), float(left.mean()))


def _slopes(user: Tensor, local: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """L_1 = σ(p·q_i) − r_i and L_2 = σ'(p·q_i), (N, M)."""
    chance = torch.sigmoid(_dot(user, local))
    return chance - label, chance * (1 - chance)


def _dot(user: Tensor, table: Tensor) -> Tensor:
    return (table @ user[..., None])[..., 0]
