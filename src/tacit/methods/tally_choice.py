"""What tally tries on validation, and how many inputs it can afford."""

from bisect import bisect_left
from itertools import product
from typing import NamedTuple

from tacit.methods.tally_sums import Sums

CELLS = 450_000_000  # of all matrices of a solution, 1.8 GB
WORK = 8e12  # operations of all solutions: a minute or two of processor time
DEAR = 1e12  # operations of a solution: beyond, fewer of them are tried
HOPELESS = 0.8  # of the best so far: item weights alone that reach no more with one λ do not win with another


class Candidate(NamedTuple):
    """One way to rank from the same sums."""

    ridge: float  # λ of the ridge, as a multiple of A's mean diagonal
    blend: float  # w: 0 is the ridge alone, 1 the item weights alone
    ease_ridge: float  # λ of EASE
    denoise: float  # q of EASE

    def __str__(self) -> str:
        """What it is, in words."""
        weights = f"λ = {self.ease_ridge:g}" + (f" and q = {self.denoise:g}" if self.denoise else "")
        if self.blend == 1:
            return f"item weights alone, with {weights}"
        if self.blend == 0:
            return f"the next item alone, by ridge with λ = {self.ridge:g}"
        return f"the next item by ridge with λ = {self.ridge:g}, blended {self.blend:g} with item weights, {weights}"


def candidates(
    ridge: tuple[float, ...], blend: tuple[float, ...], ease_ridge: tuple[float, ...], denoise: tuple[float, ...]
) -> list[Candidate]:
    """Every one in the order of the rounds; a solution is used for all its w.

    Blended, item weights are those of the first λ and q; alone, those of every λ with the first q, and of the smallest
    λ with every other q.
    """
    weights = [*product(ease_ridge, denoise[:1]), *product((min(ease_ridge),), denoise[1:])]
    blended = product(ridge, (w for w in blend if w < 1), ease_ridge[:1], denoise[:1])
    alone = ((ridge[0], 1.0, *pair) for pair in weights if 1.0 in blend)  # the ridge does not matter there
    return [Candidate(*one) for one in (*blended, *alone)]


def affordable(sums: Sums, n_items: int, tried: list[Candidate]) -> int:
    """How many inputs' solutions fit into memory and time; all items where they do."""
    ridges = len({one.ridge for one in tried if one.blend < 1})
    weights = len({one[2:] for one in tried if one.blend > 0})

    def fits(rows: int) -> bool:
        work = ridges * sums.ridge_work(rows, n_items) + weights * sums.weights_work(rows, n_items)
        return sums.whole(rows, n_items) <= CELLS and work <= WORK

    return max(bisect_left(range(1, n_items + 1), True, key=lambda rows: not fits(rows)), 1)
