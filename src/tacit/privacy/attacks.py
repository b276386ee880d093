"""What a curious server makes of uploads: for every client and item, how much speaks for an interaction.

An attack is given what the server has: what it sent, what came back, and what came back before. It knows the method and
its settings, and neither data nor private leaves of any client. Scores are (C, M), higher for what is taken to be an
item of the client; the clients' real items are used to measure an attack, never by one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from tacit.core.payload import Payload, State

Scores = NDArray[np.float64]
Marks = NDArray[np.bool_]

STEPS = 30  # of the power iteration: the first direction of a change stands out, or there is nothing to find


def item_tables(up: Payload, items: int) -> State:
    """The fields of an upload that have a row per item, (C, M, K), as the server receives them."""
    found = {n: f.item_rows(items, len(up.ids)) for n, f in up.fields.items() if f.own}
    return {n: table for n, table in found.items() if table is not None}


def sent_tables(down: Payload, items: int) -> State:
    """What the server had sent under any name with a row per item: (1, M, K) or (C, M, K)."""
    found = {n: f.item_rows(items, len(down.ids)) for n, f in down.fields.items()}
    return {n: table for n, table in found.items() if table is not None}


@dataclass(frozen=True)
class Clues:
    """What one round's upload of each client says about each item, (C, M) each."""

    moved: Tensor  # how far the item's row is from where it was
    along: Tensor  # how far it went in the direction that most of the change has
    lies: Tensor  # where it lies in the upload itself, along the direction in which rows differ most


def clues(tables: Mapping[str, Tensor], bases: Mapping[str, Tensor]) -> Clues:
    """The clues of a round; where there is no base, zero is."""
    uploaded = torch.cat(list(tables.values()), 2)
    change = torch.cat([x - bases[n] if n in bases else x for n, x in tables.items()], 2)
    return Clues(change.norm(dim=2), direction(change), direction(uploaded - uploaded.mean(1, keepdim=True)))


def direction(change: Tensor) -> Tensor:
    """(C, M) each row's part in the first singular direction of a client's change (C, M, K).

    The gradient of item i is slope_i · p_u: where the user vector is held, a change has rank one, and what a row has of
    that direction is its score by the method's own scorer with an unknown user. Its sign is found by `oriented`.
    """
    size = change.norm(dim=2)  # (C, M)
    first = size.argmax(1)
    guess = change[torch.arange(len(change)), first, :, None]  # (C, K, 1)
    for _ in range(STEPS):
        guess = guess / guess.norm(dim=1, keepdim=True).clamp(min=1e-30)
        guess = change.mT @ (change @ guess)
    guess = guess / guess.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return oriented((change @ guess)[..., 0])


def oriented(along: Tensor) -> Tensor:
    """(C, M) with the sign under which few rows go far forwards and many go a little backwards.

    A round has several negatives for every positive. Early in training all move alike, and the many are the negatives;
    later the negatives' errors are small and the positives' large. The sum of signed square roots is negative in both.
    """
    lean = (along.sign() * along.abs().sqrt()).sum(1, keepdim=True)
    return torch.where(lean > 0, -along, along)


def row_change(rounds: Sequence[Clues]) -> Tensor:
    """Rows that move are those of samples, and those of positives are in every round: mean length of a row's change."""
    return torch.stack([unit(c.moved) for c in rounds]).mean(0)


def score_direction(rounds: Sequence[Clues]) -> Tensor:
    """Rows that go towards the user: mean of the changes along the first direction, every round counting alike."""
    return torch.stack([unit(c.along) for c in rounds]).mean(0)


def sign_across_rounds(rounds: Sequence[Clues]) -> Tensor:
    """The same by signs alone: a positive is pulled forwards in every round, a negative backwards when it is drawn."""
    return torch.stack([c.along.sign() for c in rounds]).mean(0)


def position(rounds: Sequence[Clues]) -> Tensor:
    """Where rows lie in the uploaded table alone, as one sees it in a picture of it (PFedCLR, Figures 8 and 14)."""
    return torch.stack([unit(c.lies) for c in rounds]).mean(0)


def unit(scores: Tensor) -> Tensor:
    """(C, M) at length one, so that no client and no round outweighs the others."""
    length: Tensor = scores.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return scores / length


ATTACKS = {
    "row change": row_change,
    "score direction": score_direction,
    "sign across rounds": sign_across_rounds,
    "position": position,
}


@dataclass(frozen=True)
class Success:
    """How well an attack tells items of clients from others; 0.5, 0.5 and the share of such items are guessing."""

    auc: float  # of an item of the client against another, mean over clients
    between: float  # of a client with an item against one without it, over all such pairs: popularity is worth nothing
    precision: float  # share of the client's items among the first k, mean over clients


def success(scores: Scores, truth: Marks, counted: Marks, k: int) -> Success:
    """Compare scores (C, M) with the truth, over the cells that count."""
    of_clients = auc(scores, truth, counted)
    places = rankdata(scores, axis=1)  # clients' scales differ
    of_items, pairs = auc(places.T, truth.T, counted.T), pair_counts(truth.T, counted.T)
    some = pairs > 0
    between = float(np.average(of_items[some], weights=pairs[some])) if some.any() else math.nan
    there = (truth & counted).any(1)
    first = precision(scores, truth, counted, k)[there]
    return Success(_mean(of_clients), between, _mean(first))


def auc(scores: Scores, truth: Marks, counted: Marks) -> Scores:
    """(n,) probability that a true cell of a row scores above a false one, ties half; NaN where either is missing."""
    true, left_out = truth & counted, (~counted).sum(1)
    ranks = rankdata(np.where(counted, scores, -np.inf), axis=1) - left_out[:, None]
    positives = true.sum(1)
    wins = np.where(true, ranks, 0).sum(1) - positives * (positives + 1) / 2
    pairs = pair_counts(truth, counted)
    return np.asarray(np.divide(wins, pairs, out=np.full(len(scores), np.nan), where=pairs > 0))


def pair_counts(truth: Marks, counted: Marks) -> NDArray[np.int64]:
    """(n,) pairs of a true and a false cell in each row."""
    return np.asarray((truth & counted).sum(1) * (~truth & counted).sum(1))


def precision(scores: Scores, truth: Marks, counted: Marks, k: int) -> Scores:
    """(n,) share of true cells among a row's k best; of tied ones at the edge, what a random choice would give."""
    value = np.where(counted, scores, -np.inf)
    edge = -np.sort(-value, axis=1)[:, k - 1 : k]  # (n, 1) the k-th
    above, level = value > edge, (value == edge) & counted
    left = k - above.sum(1)
    share = np.divide((level & truth).sum(1), level.sum(1), out=np.zeros(len(value)), where=level.any(1))
    return np.asarray(((above & truth).sum(1) + left * share) / k)


def _mean(values: Scores) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
