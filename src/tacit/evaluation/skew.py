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


@dataclass(frozen=True)
class Sum:
    """The skew of all rounds so far against Lemma 3.3 (Eq. 5 and 22), over clients.

    The lemma takes for granted that ‖δ_i‖ shrinks in every round, by a factor γ < 1, and that |p·δ_i| ‖q_i‖ never
    exceeds its first value. `allowed` is what Eq. 22 then leaves at most, for γ → 1: T times the first round's terms.
    """

    added: float  # ‖η Σ_t Δ_u‖, in the mean
    allowed: float  # in the mean
    over: float  # share of clients whose sum is more than that: no γ < 1 makes the lemma true of them
    grown: float  # share of all δ_i ≠ 0 that are larger than in the round before
    fit: float  # share of clients of which no δ_i has ever grown: to them alone does the lemma speak


class Accumulated:
    """Adds up the skew of the same clients round by round, from the first one that averages on."""

    def __init__(self, rate: float) -> None:
        """With the rate η of the user vectors."""
        self.rate = rate
        self.rounds = 0

    def add(self, user: Tensor, local: Tensor, shared: Tensor, label: Tensor) -> Sum:
        """Shapes as in `skew`. C_1 is the largest |σ(p·q_i) − r_i| of an item: without the bars it may be negative."""
        first, second = (x.abs() for x in _slopes(user, local, label))  # (N, M)
        change = shared - local
        gap = change.norm(dim=-1)  # ‖δ_i‖, (N, M)
        moved = skew(user, local, shared, label)
        if self.rounds == 0:
            self.start = gap, _dot(user, change).abs() * local.norm(dim=-1)
            self.total, self.most = torch.zeros_like(moved), (first, second)
            self.gap, self.ever = gap, torch.zeros(len(user), dtype=torch.bool)
        self.rounds += 1
        self.total = self.total + self.rate * moved
        self.most = torch.maximum(self.most[0], first), torch.maximum(self.most[1], second)
        grown = gap > self.gap
        self.gap, self.ever = gap, self.ever | grown.any(1)
        allowed = self.rate * self.rounds * sum((c * x).sum(1) for c, x in zip(self.most, self.start, strict=True))
        size = self.total.norm(dim=-1)
        figures = (size, allowed, size > allowed, grown.sum() / (gap > 0).sum().clamp(min=1), ~self.ever)
        return Sum(*(float(x.double().mean()) for x in figures))


def _slopes(user: Tensor, local: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """L_1 = σ(p·q_i) − r_i and L_2 = σ'(p·q_i), (N, M)."""
    chance = torch.sigmoid(_dot(user, local))
    return chance - label, chance * (1 - chance)


def _dot(user: Tensor, table: Tensor) -> Tensor:
    return (table @ user[..., None])[..., 0]
