"""What a client of tally adds up: the cells of A, C and G of its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.core.payload import Sparse
from tacit.data.splits import Orders
from tacit.methods.history_sums import Cells, Sequences, gram, places, recurrences, sparse_field, transitions

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Sums:
    """Which statistics, over which time scales."""

    windows: tuple[int, ...]  # W of each time scale
    decays: tuple[float, ...]  # γ of each time scale
    ordered: bool  # A and C, which need the order of a sequence
    blind: bool  # G, which does not
    shared_out: bool  # G of a user divided by its number of items, as GF-CF has it
    clip: float  # L2 bound on a user's whole contribution; 0: none

    def whole(self, rows: int, n_items: int) -> int:
        """Cells of all matrices of a solution with this many inputs: A and its factor, C and B, G and E, P."""
        wide = len(self.windows) * rows if self.ordered else 0
        return 2 * wide * wide + 2 * wide * n_items + (2 * rows * n_items + rows * rows if self.blind else 0)

    def ridge_work(self, rows: int, n_items: int) -> float:
        """Operations of solving for B: the factor, then substitution down and up."""
        wide = float(len(self.windows) * rows)
        corner = rows if self.windows[0] == 1 else 0
        tall = wide - corner
        return tall**3 / 3 + tall**2 * corner + 2 * wide * wide * n_items - 2 * corner**2 * n_items

    def weights_work(self, rows: int, n_items: int) -> float:
        """Operations of EASE's weights: an inverse, and its product with the columns of other items."""
        return 2.0 * rows**3 + 2.0 * rows**2 * (n_items - rows)

    def cells(
        self, histories: Sequence[Orders], client: Ints, n_items: int, many: bool, inputs: Ints | None = None
    ) -> dict[str, Sparse]:
        """The statistics of histories that belong to clients; `many`: of several users, whose cells are added up.

        With a bound on what a user adds, a history counts in its first order alone: two share cells.
        """
        once = [orders[0] for orders in histories]
        laid = Sequences.of(once) if self.clip else Sequences.of_orders(histories)
        found: dict[str, Cells] = {}
        if self.ordered:
            found["A"] = recurrences(laid, self.windows, self.decays, n_items)
            found["C"] = transitions(laid, self.windows, self.decays, n_items)
        if self.blind:
            found["G"] = gram(Sequences.of(once))
            if self.shared_out:
                found["G"] = found["G"].scaled(np.array([1 / max(len(items), 1) for items in once]))
        if self.clip:
            size = np.sqrt(sum((c.squares(len(once)) for c in found.values()), start=np.zeros(len(once))))
            factor = np.minimum(1.0, self.clip / np.maximum(size, 1e-12))
            found = {n: c.scaled(factor) for n, c in found.items()}
        tall = n_items if inputs is None else len(inputs)
        if inputs is not None:  # the rows of chosen items; A's columns too; G not by one half, for it has all columns
            place, alone = self.places(inputs, n_items), places(inputs, n_items)
            kept = {"A": (place, place), "C": (place, None), "G": (alone, None)}
            if "G" in found:
                found["G"] = found["G"].both()
            found = {n: c.at(*kept[n]) for n, c in found.items()}
        wide = len(self.windows) * tall
        shapes = {"A": (wide, wide), "C": (wide, n_items), "G": (tall, n_items)}
        return {n: sparse_field(c, client, shapes[n], many) for n, c in found.items()}

    def places(self, inputs: Ints, n_items: int) -> Ints:
        """(K·M,) the row that an item's row of each scale becomes when only `inputs` have one; −1: none."""
        alone = places(inputs, n_items)
        return np.concatenate([np.where(alone < 0, -1, k * len(inputs) + alone) for k in range(len(self.windows))])
