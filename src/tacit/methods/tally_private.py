"""tally at a privacy budget: sums that survive noise, released once, and a model that follows from them alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.closed_form import ClosedForm
from tacit.core.leaves import Leaves, shared
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Shared, State
from tacit.core.scorers import standardised
from tacit.core.settings import Amount, Count, Decay, Positive, Probability, Search, Seed, Share, Whole
from tacit.data.cohort import Cohort, Federation
from tacit.errors import UserError
from tacit.methods.history_sums import Cells, Sequences, counts, gram, places, recent, sparse_field, transitions
from tacit.methods.ridge_revision import sparse_matrix
from tacit.privacy.accountant import smallest
from tacit.privacy.gaussian import add_noise, gaussian_epsilon

Ints = NDArray[np.int64]
FEWEST, MOST = 10, 1000  # items where their number is left to the counts
BELOW = -100.0  # the level of items without a row, far below standardised scores


@dataclass(frozen=True)
class PrivateTally(ClosedForm):
    """Counts, pairs and transitions of a user, each of norm 1, under Gaussian noise: (ε, δ) for a whole user.

    For a user with items i_1 … i_n, oldest first, the sums are

        c = Σ x / √n,   S = Σ √(2 / n(n − 1)) · pairs i > j,   T = Σ Σ_{s<t, t−s≤W} γ^(t−s−1) e_{i_s} e_{i_t}ᵀ / norm

    c comes first and, with its noise, chooses the items that S and T are about; of a user, only these items count then.
    Each is scaled by the root of its share of the budget, so that all a user sends has norm 1 and one σ is the noise
    of every cell. A user's score is standardised(h_now B) + w · standardised(x D^(−½) V Vᵀ D^(½)): B is T less what c
    would have by chance, over c + λ, V the leading eigenvectors of D^(−½) S D^(−½), D = diag(c). All settings are fixed
    beforehand; validation chooses nothing.
    """

    epsilon: Positive = 8.0  # what everything that is released may tell of a user
    delta: Probability = 1e-5
    inputs: Whole = 0  # how many of the most popular items, by noisy counts, are recommended; 0: as `least` has it
    least: Annotated[Amount, Search(5, 100, log=True)] = 30.0  # items that count this many σ or more
    shares: tuple[Share, Share, Share] = (0.1, 0.3, 0.6)  # of the budget: counts, pairs, transitions
    window: Annotated[Count, Search(1, 20, log=True)] = 5  # W
    decay: Annotated[Decay, Search(0.5, 1)] = 0.8  # γ
    reach: Annotated[Count, Search(2, 50, log=True)] = 10  # of h_now
    fade: Annotated[Decay, Search(0.5, 1)] = 0.8  # its decay
    ridge: Annotated[Amount, Search(0.3, 30, log=True)] = 3.0  # λ, as a multiple of the mean count
    rank: Annotated[Count, Search(4, 64, log=True)] = 16  # columns of V
    blend: Annotated[Amount, Search(0, 1)] = 0.6  # w
    noise: Literal["server", "clients"] = "server"  # who adds it: clients in a secure sum, where nobody is trusted
    dp_seed: Seed = -1  # of the server's noise; -1: the system's entropy. A number is to repeat simulations: ε = ∞

    name: ClassVar[str] = "tally-private"
    paper: ClassVar[str] = "tally under central differential privacy"
    individual: ClassVar[str] = ""  # all it needs is sums
    validated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse shares that are not those of one budget."""
        if self.shares[0] == 0 or not math.isclose(sum(self.shares), 1.0):
            raise UserError(
                f"shares={self.shares} of counts, pairs and transitions: counts need one, and all add up to 1"
            )

    def fitted(self, n_items: int, ordered: bool) -> tuple[Self, str]:
        """Without order, what transitions would have goes to pairs."""
        if ordered or not self.shares[2]:
            return self, ""
        shares = (self.shares[0], 1 - self.shares[0], 0.0)
        return replace(self, shares=shares), "these data have no order: no transitions are summed"

    def with_shared_noise(self) -> Self:
        """As it is for a secure sum: each client adds its share of the noise."""
        return replace(self, noise="clients")

    @cached_property
    def ratio(self) -> float:
        """σ: the noise's deviation where all that a user sends has norm 1."""
        return smallest(lambda ratio: gaussian_epsilon(ratio, self.delta), self.epsilon)

    def spent(self, rounds: int) -> float:
        """ε after this many rounds; Gaussian releases of norms √a and √b, one after the other, are one of √(a + b)."""
        if self.dp_seed >= 0 and self.noise == "server":
            return math.inf
        return gaussian_epsilon(self.ratio / math.sqrt(self.shares[0] if rounds < 2 else 1.0), self.delta)

    def leaves(self) -> Leaves:
        """What a client ranks with."""
        return dict.fromkeys(("inputs", "count", "B", "V"), shared())

    def length(self, asked: int | None = None) -> int:
        """Counts; then pairs and transitions."""
        return 2

    def asks(self, round: int) -> bool:
        """Each release has an upload of its own."""
        return round <= 2

    # what a client sends

    def init_server(self, federation: Federation) -> State:
        """Nothing yet."""
        return {}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """Which items to sum over, once they are chosen; then the model. The same for everybody."""
        return Payload(ids, {n: Shared(server[n]) for n in self.leaves() if n in server})

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """Counts of all items; then pairs and transitions of the chosen ones."""
        users = data.users.numpy()
        client, slot = np.nonzero(users >= 0)
        train = data.federation.split.train
        sequences = [train[u] for u in users[client, slot]]
        many, n_items = users.shape[1] > 1, data.federation.n_items
        if "inputs" not in down:
            parts = self.counted(sequences, n_items)
        else:
            parts = self.summed(sequences, down["inputs"].numpy(), n_items)
        fields = {n: sparse_field(c, client, shape, many) for n, (c, shape) in parts.items()}
        if self.noise == "server":
            return Payload(data.ids, fields)
        whole = {n: torch.zeros(len(users), *f.shape) for n, f in fields.items()}  # every cell gets a share of noise
        for name, f in fields.items():
            whole[name].view(len(users), -1).index_put_((f.client, f.index), f.value)
        return Payload(data.ids, {n: Each(x) for n, x in whole.items()})

    def counted(self, sequences: list[Ints], n_items: int) -> dict[str, tuple[Cells, tuple[int, int]]]:
        """The first release, of norm √share a user, and its shape."""
        factor = np.array([math.sqrt(self.shares[0] / max(len(s), 1)) for s in sequences])
        found = counts(Sequences.of(sequences)).scaled(factor)
        return {"count": (replace(found, row=found.column, column=found.row), (n_items, 1))}

    def summed(self, sequences: list[Ints], inputs: Ints, n_items: int) -> dict[str, tuple[Cells, tuple[int, int]]]:
        """The second one: of norm √(both shares) where a user has two of the items."""
        size = len(inputs)
        laid = Sequences.of(chosen(sequences, inputs, n_items))
        out = {}
        for name, share in (("S", self.shares[1]), ("T", self.shares[2])):
            if share:
                cells = _pairs(laid) if name == "S" else transitions(laid, (self.window,), (self.decay,), size)
                norm = np.sqrt(np.maximum(cells.squares(len(sequences)), 1e-12))
                shape = (1, size * (size - 1) // 2) if name == "S" else (size, size)
                out[name] = cells.scaled(math.sqrt(share) / norm), shape
        return out

    def footprint(self, size: int, n_items: int) -> int:
        """Cells of the sums; a cell is in memory about as long and as often as a fourth of a table's row."""
        if self.noise == "clients":
            return (self.inputs or MOST) ** 2
        return (size * size // 2 + 2 * size * self.window) // 4

    # what the server makes of it

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Sum, add the noise, and go on with what is released."""
        sums: State = {}
        for up in uplinks:
            for name, part in up.fields.items():
                part.add_to(sums.setdefault(name, torch.zeros(part.one_shape)))
        for name, total in sums.items():
            if self.noise == "server":
                add_noise(total, self.ratio, f"tally-private/{name}", self.dp_seed)
            total /= math.sqrt(self.shares[("count", "S", "T").index(name)])
        if "count" in sums:
            count = sums["count"].ravel()
            often = int((count >= self.least * self.ratio).sum())
            kept = self.inputs or min(max(often, FEWEST), MOST)
            top = count.argsort(descending=True, stable=True)[:kept].sort().values
            return {"inputs": top.int(), "count": count, "B": torch.zeros(0), "V": torch.zeros(0)}
        weight = self._weight(server["count"], server["inputs"])
        if "S" in sums:
            server = server | {"V": self._vectors(sums["S"].ravel(), weight)}
        if "T" in sums:
            chance = torch.outer(weight, weight) * (sums["T"].sum() / weight.sum() ** 2)
            server = server | {"B": (sums["T"] - chance) / (weight + self.ridge * weight.mean())[:, None]}
        return server

    def _vectors(self, pairs: Tensor, weight: Tensor) -> Tensor:
        """(K, r) V, by the noisy pairs."""
        low = torch.zeros(len(weight), len(weight))
        low[tuple(torch.tril_indices(len(weight), len(weight), -1))] = pairs
        root = weight.sqrt()
        vectors: Tensor = torch.linalg.eigh((low + low.T) / root / root[:, None])[1]  # ascending
        return vectors[:, -self.rank :].clone()

    @staticmethod
    def _weight(count: Tensor, inputs: Tensor) -> Tensor:
        """(K,) noisy counts of the chosen items, at least one user's."""
        return count[inputs.long()].clamp(min=1.0)

    # how a client ranks

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The model, and each user's histories as sparse rows (C·U, K): h_now and x."""
        n_items, users = data.federation.n_items, data.users.numpy().ravel()
        train, inputs = data.federation.split.train, down["inputs"].numpy()
        held = [np.zeros(0, dtype=np.int64) if u < 0 else train[u] for u in users]
        laid = Sequences.of(chosen(held, inputs, n_items))
        now, seen = recent(laid, (self.reach,), (self.fade,), len(inputs)), counts(laid)
        rows = {"now": now, "seen": seen}
        return {
            **{n: down[n] for n in self.leaves()},
            "shape": torch.tensor([*data.users.shape, n_items]),
            **{n: sparse_matrix(c.owner, c.column, c.value, len(users), len(inputs)) for n, c in rows.items()},
        }

    def scores(self, p: State) -> Tensor:
        """(C, U, M); items without a row by their noisy counts, behind all others."""
        inputs, shape = p["inputs"].long(), p["shape"].tolist()
        out = standardised(p["count"].clone()).add_(BELOW).repeat(shape[0] * shape[1], 1)
        parts = []
        if len(p["B"]):
            parts.append(standardised(p["now"] @ p["B"]))
        if len(p["V"]):
            root = self._weight(p["count"], inputs).sqrt()[:, None]
            parts.append(standardised((p["seen"] @ (p["V"] / root)) @ (p["V"] * root).T).mul_(self.blend))
        if parts:
            out[:, inputs] = sum(parts[1:], parts[0])
        return out.view(shape)


def chosen(sequences: list[Ints], inputs: Ints, n_items: int) -> list[Ints]:
    """What is left of sequences when only `inputs` count, by their places among these."""
    place = places(inputs, n_items)
    return [p[p >= 0] for p in (place[s] for s in sequences)]


def _pairs(laid: Sequences) -> Cells:
    """Every two different items of a sequence once, in one row: i > j is at i(i − 1)/2 + j."""
    cells = gram(laid)
    apart = cells.row > cells.column
    owner, row, column = cells.owner[apart], cells.row[apart], cells.column[apart]
    return Cells(owner, np.zeros_like(row), row * (row - 1) // 2 + column, cells.value[apart])
