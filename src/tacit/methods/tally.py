"""tally: clients share additive statistics, the server solves in closed form; one upload, and able to forget."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from tacit.core.closed_form import ClosedForm
from tacit.core.leaves import Leaves, shared
from tacit.core.method import Method, Moment
from tacit.core.payload import Payload, Shared, State
from tacit.core.scorers import added_rows, standardised
from tacit.core.settings import (
    Amount,
    Choices,
    Count,
    Decay,
    Positives,
    Probability,
    Search,
    Seed,
    Shares,
    Whole,
    Windows,
)
from tacit.data.cohort import Cohort, Federation
from tacit.data.splits import Orders
from tacit.errors import UserError
from tacit.methods.gfcf import graph_filter, leading
from tacit.methods.history_sums import Cells, Sequences, counts, places, recent, sparse_field
from tacit.methods.large_sums import added, total_of
from tacit.methods.ridge import ease_solution, factor_of, solved
from tacit.methods.ridge_revision import factored, revised, scale_of, sparse_matrix
from tacit.methods.tally_choice import CELLS, DEAR, HOPELESS, Candidate, affordable, candidates
from tacit.methods.tally_limits import beyond, not_a_history
from tacit.methods.tally_small import shares_of
from tacit.methods.tally_sums import Sums
from tacit.privacy.gaussian import add_noise, gaussian_epsilon

_NOTHING = np.zeros(0, dtype=np.int64)
FEWER = (1, 20), (1.0, 0.9)  # windows and decays where more are not affordable


@dataclass(frozen=True)
class Tally(ClosedForm):
    """Next item from decayed recent history by ridge regression, blended with EASE, all from three sums.

    For a user with items i_1 … i_n, oldest first, h_t = Σ_{s<t, t−s≤W} γ^(t−s−1) e_{i_s} is the recent history before
    step t. Clients add up

        A = Σ_t h_t h_tᵀ,   C = Σ_t h_t e_{i_t}ᵀ,   G = x xᵀ

    and the server solves B = (A + λI)⁻¹ C and EASE's weights E from G. A user's score is
    (1 − w) · standardised(h_now B) + w · standardised(x E), where w grows with the history (`shares_of`). With several
    time scales (W, γ) the histories stand side by side. One upload serves every candidate: each round tries the next,
    and validation chooses; either part alone is among them. Data without times have no order, so that of them A and C
    are not even uploaded.

    Large catalogues outgrow memory and time. With `inputs`, histories consist of that many of the most popular items
    (all items are still ranked): the clients count items in a round of their own, and the sums are the rows, and for A
    the columns too, of these items.
    """

    windows: Windows = (1, 5, 40)  # W of each time scale
    decays: tuple[Decay, ...] = (1.0, 0.8, 0.95)  # γ of each time scale
    ridge: Positives = (0.2, 1.0, 4.0)  # λ, as a multiple of A's mean diagonal (to a power of two)
    blend: Shares = (0.3, 0.0, 0.5, 1.0)  # w: 0 is the ridge alone, 1 the item weights alone
    tilt: Amount = 0.08  # what w between 0 and 1 gains with every doubling of a history
    inputs: Whole = 0  # how many of the most popular items histories consist of; 0: as many as fit
    weights: Annotated[Literal["ease", "gfcf"], Choices()] = "ease"  # what is made of G
    ease_ridge: Positives = (200.0, 50.0, 100.0, 500.0, 1000.0)  # λ of EASE alone; blended, the first
    denoise: tuple[Amount, ...] = (0.0, 0.1, 0.3)  # q: λ + q · an item's count; all but the first with the smallest λ
    gfcf_rank: Annotated[Count, Search(32, 512, log=True, when="weights=gfcf")] = 128  # of GF-CF's ideal filter
    gfcf_ideal: Annotated[Amount, Search(0, 1, when="weights=gfcf")] = 0.3  # its weight
    history: Literal["train", "known"] = "train"  # known: the device's validation item counts as input at test
    clip: Amount = 0.0  # L2 bound on a user's whole contribution; 0: none
    dp_noise: Amount = 0.0  # standard deviation of the Gaussian noise on the sums, in units of clip
    delta: Probability = 1e-6
    dp_seed: Seed = -1  # of the noise; -1: the system's entropy. A number is for repeatable simulations: ε = ∞
    epsilon: Amount = 0.0  # a privacy budget: its private form, `tacit methods tally-private`; 0: none
    small: Amount = 0.0  # MB of the model that every client downloads, cut from the solution; 0: the whole solution

    name: ClassVar[str] = "tally"
    paper: ClassVar[str] = "FedCIA's idea taken to its end"
    individual: ClassVar[str] = ""  # all it needs is sums

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if len(self.windows) != len(self.decays):
            raise UserError(f"tally needs a decay for each window: windows={self.windows}, decays={self.decays}")
        if self.inputs and (self.clip or self.weights == "gfcf"):
            raise UserError(f"inputs={self.inputs} is invalid with clip or weights=gfcf; leave it out")

    @classmethod
    def refined(cls, settings: Mapping[str, Any]) -> type[Method]:
        """At a privacy budget, and with a small model, classes of their own."""
        from tacit.methods.tally_shipped import form_of

        return form_of(settings) or cls

    def leaves(self) -> Leaves:
        """What a client ranks with."""
        return dict.fromkeys(("inputs", "B", "E", "blend"), shared())

    def fitted(self, n_items: int, ordered: bool) -> tuple[Self, str]:
        """Without order the item weights alone, and as many inputs as are affordable; and what was chosen."""
        chosen, said = self, []
        if not ordered and min(self.blend) < 1:
            chosen, said = replace(self, blend=(1.0,)), ["these data have no order: item weights alone"]
        elif self.denoise == Tally.denoise:
            chosen = replace(chosen, denoise=self.denoise[:1])  # where next items are learnt, it hardly matters
        if ordered and self.ridge == Tally.ridge and self._sums.ridge_work(n_items, n_items) > DEAR:
            chosen = replace(chosen, ridge=self.ridge[:2])  # the third is for small data
        if not self.inputs and not self.clip and self.weights == "ease":
            fit = affordable(chosen._sums, n_items, chosen.candidates())
            if fit < n_items and ordered and chosen.windows == Tally.windows:
                chosen = replace(chosen, windows=FEWER[0], decays=FEWER[1])
                fit = affordable(chosen._sums, n_items, chosen.candidates())
                said.append(f"two time scales, the last item and the last {FEWER[0][1]}")
            if fit < n_items:
                chosen = replace(chosen, inputs=fit)
                said.append(f"of {n_items:,} items, histories consist of the {fit:,} most popular")
        return chosen, "; ".join(said)

    def candidates(self) -> list[Candidate]:
        """Every solution that is tried, in the order of the rounds."""
        many = slice(None) if self.weights == "ease" else slice(1)
        return candidates(self.ridge, self.blend, self.ease_ridge[many], self.denoise[many])

    def chosen(self, round: int) -> Self:
        """The method with the candidate of this round alone."""
        one = self.candidates()[max(round - 1 - bool(self.inputs), 0)]
        alone = replace(self, ridge=(one.ridge,), blend=(one.blend,))
        return replace(alone, ease_ridge=(one.ease_ridge,), denoise=(one.denoise,))

    def choice(self, round: int) -> str:
        """What this round's candidate is, in words."""
        return str(self.chosen(round).candidates()[0])

    def length(self, asked: int | None = None) -> int:
        """A round for each candidate, after one for counting where histories are cut down."""
        return len(self.candidates()) + bool(self.inputs)

    def settled(self, values: Sequence[float]) -> bool:
        """Item weights alone come last: where the first of them are far below the best, others are, too."""
        alone = sum(one.blend < 1 for one in self.candidates()) + bool(self.inputs)
        return len(values) > alone > 0 and values[alone] < HOPELESS * max(values)

    def asks(self, round: int) -> bool:
        """One upload serves every candidate."""
        return round <= 1 + bool(self.inputs)

    def spent(self, rounds: int) -> float | None:
        """One release of the sums; what follows is computed from them. Noise from a known seed protects nobody."""
        if not self.clip or not self.dp_noise:
            return None
        return gaussian_epsilon(self.dp_noise, self.delta) if self.dp_seed < 0 else math.inf

    def init_server(self, federation: Federation) -> State:
        """No sums yet."""
        rows = min(self.inputs or federation.n_items, federation.n_items)
        if self._sums.whole(rows, federation.n_items) > 2 * CELLS:
            raise UserError(f"{rows:,} inputs are more than tally holds in memory; try --set inputs=1000")
        return {"tried": torch.zeros(1).long()}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """Nothing before there is a choice of items or a solution; of that, what the blend takes."""
        idle = {0.0: "E", 1.0: "B"}.get(float(server["blend"][0])) if "blend" in server else None
        sent = {n: torch.zeros(0) if n == idle else server[n] for n in self.leaves() if n in server}
        return Payload(ids, {n: Shared(x) for n, x in sent.items()})

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """A, C and G of each client, as the cells that are not zero; before them, where asked, its counts of items."""
        users = data.users.numpy()
        client, slot = np.nonzero(users >= 0)
        split, these = data.federation.split, users[client, slot].tolist()
        many, n_items = users.shape[1] > 1, data.federation.n_items
        if self.inputs and "inputs" not in down:
            found = counts(Sequences.of([split.train[u] for u in these]))
            return Payload(data.ids, {"count": sparse_field(found, client, (1, n_items), many)})
        chosen = down["inputs"].numpy() if self.inputs else None
        histories = [split.orders(u) for u in these]
        return Payload(data.ids, self._sums.cells(histories, client, n_items, many, chosen))

    def impossible(self, up: Payload, down: Payload, sizes: Tensor, users: int, n_items: int) -> str:
        """Why no clients of at most this many users with `sizes` (C,) interactions send this; empty: they may."""
        if reason := beyond(self._sums, up, sizes, users):
            return reason
        whole = users == 1 and 1 in self.windows and "C" in up and not self.inputs and not self.clip
        return not_a_history(self._sums, up, sizes, n_items) if whole else ""

    def footprint(self, size: int, n_items: int) -> int:
        """Cells of the three sums; a cell is in memory about as long and as often as a fourth of a table's row."""
        return (size * size // 2 + 2 * size * sum(self.windows)) // 4

    @cached_property
    def _sums(self) -> Sums:
        ordered, blind = min(self.blend) < 1, max(self.blend) > 0
        return Sums(self.windows, self.decays, ordered, blind, self.weights == "gfcf", self.clip)

    # what the server makes of it

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Sum in the first round, after choosing the items of histories by their counts; then solve candidates."""
        if self.inputs and "inputs" not in server:
            chosen = (
                total_of(uplinks, "count").ravel().argsort(descending=True, stable=True)[: self.inputs].sort().values
            )
            return server | {"inputs": chosen.int(), "B": torch.zeros(0), "E": torch.zeros(0), "blend": torch.zeros(1)}
        server = added(dict(server), uplinks, written=self.clip > 0)
        tried = int(server["tried"])
        if not tried and self.clip and self.dp_noise:
            self._add_noise(server)
        this, before = self.candidates()[tried], self.candidates()[tried - 1] if tried else None
        if this.blend == 1:  # from here on item weights alone
            server = {n: x for n, x in server.items() if n not in ("A", "C", "B", "L", "W", "sign", "lambda")}
        elif before is None or before.ridge != this.ridge:
            server |= self._solve(server, this.ridge)
        if "G" in server and (before is None or before[2:] != this[2:]):
            server |= self._weigh(server, this)
        for name in ("B", "E"):
            server.setdefault(name, torch.zeros(0))
        return server | {"tried": torch.tensor([tried + 1]), "blend": torch.tensor([this.blend, self.tilt])}

    def _solve(self, server: State, ridge: float) -> State:
        """B = (A + λI)⁻¹ C through the Cholesky factor L, which later revisions need too."""
        scale = ridge * scale_of(server["A"])
        corner = self._corner(server)
        factor = factor_of(server["A"], scale, corner, server.get("L"))
        made = solved(factor, server["C"], corner, server.get("B"))
        return {"B": made, "lambda": torch.tensor([scale])} | factored(factor)

    def _corner(self, server: State) -> int:
        """How many of A's first rows are diagonal among themselves: a window of one item holds no pairs."""
        alone = self.windows[0] == 1 and not self.dp_noise
        return len(server["A"]) // len(self.windows) if alone else 0

    def _weigh(self, server: State, tried: Candidate) -> State:
        """The item weights E: EASE's, or GF-CF's filter from Σ_u x xᵀ / n_u."""
        if self.weights == "ease":
            return ease_solution(server, tried.ease_ridge, tried.denoise)
        full = server["G"] + server["G"].tril(-1).T
        return {"E": graph_filter(full, leading(full, self.gfcf_rank), self.gfcf_ideal)}

    def _add_noise(self, server: State) -> None:
        """Gaussian noise on every cell of the sums' lower halves."""
        for name in [n for n in ("A", "C", "G") if n in server]:
            add_noise(server[name], self.clip * self.dp_noise, f"tally/{name}", self.dp_seed)
            if name != "C":
                server[name].tril_()

    # how a client ranks

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The solution, and each user's histories as sparse rows (C·U, …): h_now and x."""
        now, seen = self._histories(down, data, known=part == "test" and self.history == "known")
        rows, tall = data.users.numel(), len(down["inputs"]) if self.inputs else data.federation.n_items
        return {
            "B": down["B"],
            "E": down["E"],
            "blend": down["blend"],
            "shape": torch.tensor([*data.users.shape, data.federation.n_items]),
            "now": sparse_matrix(now.owner, now.column, now.value, rows, len(self.windows) * tall),
            "seen": sparse_matrix(seen.owner, seen.column, seen.value, rows, tall),
        }

    def _histories(self, down: Payload, data: Cohort, known: bool) -> tuple[Cells, Cells]:
        """h_now and x of every user, a row each."""
        split, n_items = data.federation.split, data.federation.n_items
        users = data.users.numpy().ravel()
        held = [_NOTHING if u < 0 else split.train[u] for u in users]
        if known:
            held = [s if u < 0 else np.concatenate([s, split.valid[u]]) for s, u in zip(held, users, strict=True)]
        told = held if known else [None] * len(held)
        orders = [(_NOTHING,) if u < 0 else split.orders(u, x) for u, x in zip(users.tolist(), told, strict=True)]
        now = recent(Sequences.of_orders(orders), self.windows, self.decays, n_items)
        seen = counts(Sequences.of(held))
        if self.inputs:
            chosen = down["inputs"].numpy()
            now = now.at(None, self._sums.places(chosen, n_items))
            seen = seen.at(None, places(chosen, n_items))
        return now, seen

    def scores(self, p: State) -> Tensor:
        """(C, U, M)."""
        blend, share = float(p["blend"][0]), blended(p)[:, None]
        parts = []
        if blend < 1 and len(p["B"]):
            parts.append(standardised(added_rows(p["now"], p["B"])).mul_(1 - share))
        if blend > 0 and len(p["E"]):
            parts.append(standardised(added_rows(p["seen"], p["E"])).mul_(share))
        shape = p["shape"].tolist()
        if not parts:  # items have been counted, nothing is solved
            return torch.zeros(shape)
        return (parts[0] if len(parts) == 1 else parts[0].add_(parts[1])).view(shape)

    def fixed(self) -> str:
        """Sums with noise are released once."""
        return "its sums have noise on them, and their privacy budget is spent; train again" if self.clip else ""

    def revise(self, server: State, old: Orders, new: Orders) -> State:
        """The sums and the solution after one user's history becomes another; none: was not there, or goes.

        Sums change in the user's own cells; the solution changes by as many dimensions as steps go and come
        (`shift_ridge`). λ and `inputs` stay what they were.
        """
        tried = self.candidates()[int(server["tried"]) - 1]
        corner = self._corner(server) if "A" in server else 0
        server = revised(dict(server), self._sums, old, new, corner, tried.denoise)
        return server | (self._weigh(server, tried) if self.weights == "gfcf" and "G" in server else {})


def blended(p: State) -> Tensor:
    """(C·U,) w of each user, from what `serve` gave; before there was a tilt, all had the same."""
    blend, *tilt = p["blend"].tolist()
    lengths = p["seen"].crow_indices().diff().numpy()
    return torch.from_numpy(shares_of(blend, sum(tilt), lengths)).float()
