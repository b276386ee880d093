"""tally: clients share additive statistics, the server solves in closed form; one upload, and able to forget."""

import math
import secrets
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.method import Method, Moment, Phase
from tacit.core.payload import Payload, Shared, Sparse, State
from tacit.data.cohort import Cohort, Federation
from tacit.methods.history_sums import Cells, Sequences, gram, recent, recurrences, steps, sums, transitions
from tacit.methods.ridge import ease_weights, factor_of, inverse_of, solved
from tacit.privacy.gaussian import gaussian_epsilon

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tally(Method):
    """Next item from decayed recent history by ridge regression, blended with EASE, all from three sums.

    For a user with items i_1 … i_n, oldest first, h_t = Σ_{s<t, t−s≤W} γ^(t−s−1) e_{i_s} is the recent history before
    step t. Clients add up

        A = Σ_t h_t h_tᵀ,   C = Σ_t h_t e_{i_t}ᵀ,   G = x xᵀ

    and the server solves B = (A + λI)⁻¹ C and EASE's weights E from G. A user's score is
    (1 − w) · standardised(h_now B) + w · standardised(x E). With several time scales (W, γ) the histories stand side by
    side. One upload serves every (λ, w): each round tries the next pair, and validation chooses.
    """

    windows: tuple[int, ...] = (1, 20)  # W of each time scale
    decays: tuple[float, ...] = (1.0, 0.9)  # γ of each time scale
    ridge: tuple[float, ...] = (0.3, 1.0, 4.0)  # λ, as a multiple of A's mean diagonal (to a power of two)
    blend: tuple[float, ...] = (0.3, 0.5)  # w: 0 is the ridge alone, 1 the item weights alone
    weights: Literal["ease", "gfcf"] = "ease"  # what is made of G
    ease_ridge: float = 200.0  # λ of EASE
    gfcf_rank: int = 128  # of GF-CF's ideal filter
    gfcf_ideal: float = 0.3  # its weight
    history: Literal["train", "known"] = "train"  # known: the device's validation item counts as input at test
    clip: float = 0.0  # L2 bound on a user's whole contribution; 0: none
    dp_noise: float = 0.0  # standard deviation of the Gaussian noise on the sums, in units of clip
    delta: float = 1e-6
    dp_seed: int = -1  # of the noise; -1: the system's entropy, which ε needs. A number is for repeatable simulations

    name: ClassVar[str] = "tally"
    paper: ClassVar[str] = "FedCIA's idea taken to its end"
    closed_form: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    shared: ClassVar[tuple[str, ...]] = ("B", "E", "blend")
    private: ClassVar[tuple[str, ...]] = ()
    tables: ClassVar[tuple[str, ...]] = ()

    # what is tried

    def candidates(self) -> list[tuple[float, float]]:
        """Every (λ, w) in the order of the rounds; a λ's solution is used for all its w."""
        pure = [(self.ridge[0], w) for w in self.blend if w == 1]  # λ does not matter there
        return [*product(self.ridge, [w for w in self.blend if w < 1]), *pure]

    def length(self) -> int:
        """A round for each candidate."""
        return len(self.candidates())

    def asks(self, round: int) -> bool:
        """One upload serves every candidate."""
        return round == 1

    def epsilon(self, rounds: int) -> float | None:
        """One release of the sums; what follows is computed from them."""
        return gaussian_epsilon(self.dp_noise, self.delta) if self.clip and self.dp_noise else None

    # what a client sends

    def init_server(self, federation: Federation) -> State:
        """No sums yet."""
        return {"tried": torch.zeros(1).long()}

    def init_users(self, federation: Federation, users: Tensor) -> State:
        """A user is its history."""
        return {}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """Nothing before there is a solution."""
        return Payload(ids, {n: Shared(server[n]) for n in self.shared if n in server})

    def phases(self, round: int) -> list[Phase]:
        """Nothing is trained."""
        return []

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The sums need nothing from the server."""
        return {}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """A, C and G of each client, as the cells that are not zero."""
        users = data.users.numpy()
        client, slot = np.nonzero(users >= 0)
        train = data.federation.split.train
        sequences = [train[u] for u in users[client, slot]]
        many = users.shape[1] > 1
        return Payload(data.ids, self.cells(sequences, client, data.federation.n_items, many))

    def footprint(self, size: int, n_items: int) -> int:
        """Cells of the three sums; a cell is in memory about as long and as often as a fourth of a table's row."""
        return (size * size // 2 + 2 * size * sum(self.windows)) // 4

    def cells(self, sequences: Sequence[Ints], client: Ints, n_items: int, many: bool) -> dict[str, Sparse]:
        """The statistics of sequences that belong to clients; `many`: of several users, whose cells are added up."""
        laid = Sequences.of(sequences)
        found: dict[str, Cells] = {}
        if min(self.blend) < 1:
            found["A"] = recurrences(laid, self.windows, self.decays, n_items)
            found["C"] = transitions(laid, self.windows, self.decays, n_items)
        if max(self.blend) > 0:
            found["G"] = gram(laid)
            if self.weights == "gfcf":
                found["G"] = found["G"].scaled(np.array([1 / max(len(s), 1) for s in sequences]))
        if self.clip:
            size = np.sqrt(sum((c.squares(len(sequences)) for c in found.values()), start=np.zeros(len(sequences))))
            factor = np.minimum(1.0, self.clip / np.maximum(size, 1e-12))
            found = {n: c.scaled(factor) for n, c in found.items()}
        wide = len(self.windows) * n_items
        shapes = {"A": (wide, wide), "C": (wide, n_items), "G": (n_items, n_items)}
        return {n: _sparse(c, client, shapes[n], many) for n, c in found.items()}

    # what the server makes of it

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Sum in the first round; then solve with the next candidate."""
        server = dict(server)
        for up in uplinks:
            for name, part in up.fields.items():
                assert isinstance(part, Sparse)
                if name not in server:
                    server[name] = torch.zeros(part.shape)
                part.add_to(server[name])
        tried = int(server["tried"])
        if not tried and self.clip and self.dp_noise:
            self._add_noise(server)
        ridge, blend = self.candidates()[tried]
        if "A" in server and blend < 1 and (not tried or self.candidates()[tried - 1][0] != ridge):
            server |= self._solve(server, ridge)
        if "G" in server and not tried:
            server |= ease_solution(server["G"], self.ease_ridge) if self.weights == "ease" else self._gfcf(server["G"])
        for name in ("B", "E"):
            server.setdefault(name, torch.zeros(0))
        return server | {"tried": torch.tensor([tried + 1]), "blend": torch.tensor([blend])}

    def _solve(self, server: State, ridge: float) -> State:
        """B = (A + λI)⁻¹ C through the Cholesky factor L, which later revisions need too."""
        scale = ridge * scale_of(server["A"])
        factor = factor_of(server["A"], scale)
        return {"B": solved(factor, server["C"]), "lambda": torch.tensor([scale])} | _factored(factor)

    def _gfcf(self, gram: Tensor) -> State:
        """GF-CF's filter from Σ_u x xᵀ / n_u: the linear one, and the ideal one of its first eigenvectors."""
        full = gram + gram.tril(-1).T
        degree = full.sum(1).clamp(min=1e-12)  # Σ_u x_ui: what the item counts, because each user adds n_u / n_u
        normal = full / degree.sqrt() / degree.sqrt()[:, None]
        rank = min(self.gfcf_rank, len(normal))
        vectors = torch.linalg.eigh(normal)[1][:, -rank:]
        ideal = (vectors / degree.sqrt()[:, None]) @ (vectors * degree.sqrt()[:, None]).T
        return {"E": normal + self.gfcf_ideal * ideal}

    def _add_noise(self, server: State) -> None:
        """Gaussian noise on every cell of the sums' lower halves."""
        seed = secrets.randbits(62) if self.dp_seed < 0 else self.dp_seed
        for name in [n for n in ("A", "C", "G") if n in server]:
            total = server[name]
            for block in torch.split(torch.arange(len(total)), 256):
                drawn = rng.normal(seed, f"tally/{name}", 0, block, total.shape[1])
                total[block] += self.clip * self.dp_noise * drawn
            if name != "C":
                total.tril_()

    # how a client ranks

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """The solution, and each user's histories as sparse rows (C·U, …): h_now and x."""
        split = data.federation.split
        known = phase == "test" and self.history == "known"
        users = data.users.numpy().ravel()
        held = [np.zeros(0, dtype=np.int64) if u < 0 else split.train[u] for u in users]
        if known:
            held = [s if u < 0 else np.concatenate([s, split.valid[u]]) for s, u in zip(held, users, strict=True)]
        laid = Sequences.of(held)
        p = {"B": down["B"], "E": down["E"], "blend": down["blend"], "shape": torch.tensor(data.users.shape)}
        rows, columns, weights = [], [], []
        for scale, (window, decay) in enumerate(zip(self.windows, self.decays, strict=True)):
            inside, weight = recent(laid, window, decay)
            rows.append(laid.owner[inside])
            columns.append(scale * data.federation.n_items + laid.items[inside])
            weights.append(weight)
        wide = len(self.windows) * data.federation.n_items
        now = _matrix(np.concatenate(rows), np.concatenate(columns), np.concatenate(weights), len(users), wide)
        seen = _matrix(laid.owner, laid.items, np.ones(len(laid.items)), len(users), data.federation.n_items)
        return p | {"now": now, "seen": seen}

    def serving_bytes(self, down: Payload, data: Cohort) -> int:
        """Only the rows of B and E that a client's own items name."""
        lengths = data.federation.split.train.lengths[data.users.numpy().clip(min=0)].ravel()
        rows = sum(int(np.minimum(lengths, w).sum()) for w in self.windows) if len(down["B"]) else 0
        rows += int(lengths.sum()) if len(down["E"]) and float(down["blend"]) else 0
        return rows * data.federation.n_items * 4

    def view(self, p: State) -> Tensor:
        """There is no item table; the rows of B and E are looked up in `score`."""
        return p["B"]

    def score(self, p: State, table: Tensor) -> Tensor:
        """(C, U, M)."""
        blend = float(p["blend"])
        total = torch.zeros(())
        if blend < 1:
            total = (1 - blend) * standardised(p["now"] @ p["B"])
        if blend > 0:
            total = total + blend * standardised(p["seen"] @ p["E"])
        return total.view(*p["shape"].tolist(), -1)

    # life after training

    def revise(self, server: State, old: Ints, new: Ints) -> State:
        """The sums and the solution after one user's sequence becomes another; empty: was not there, or goes.

        Sums change in the user's own cells; the solution changes by as many dimensions as steps go and come (`_shift`).
        λ stays what it was.
        """
        server = dict(server)
        n_items = len(server["G"]) if "G" in server else server["C"].shape[1]
        for sequence, sign in ((old, -1.0), (new, 1.0)):
            for name, part in self.cells([sequence], np.zeros(1, dtype=np.int64), n_items, many=False).items():
                Sparse(part.client, part.index, sign * part.value, part.shape).add_to(server[name])
        if "L" in server:
            same = 0  # a common beginning cancels: its steps neither go nor come
            while same < min(len(old), len(new)) and old[same] == new[same]:
                same += 1
            for sequence, sign in ((old, -1.0), (new, 1.0)):
                self._shift(server, sequence, max(same, 1), sign)
            if len(server["sign"]) > len(server["L"]) // 2:  # carrying so many costs more than a new factor
                server |= _factored(factor_of(server["A"], float(server["lambda"])))
        if "PG" in server:
            _shift_ease(server, old, new)
        elif "G" in server:
            server |= self._gfcf(server["G"])
        return server

    def _shift(self, server: State, items: Ints, first: int, sign: float) -> None:
        """Steps `first` … of a sequence come (+1) or go (−1): recursive least squares in a block.

        With H the histories of these steps, Y the items that followed, P = (A + λI)⁻¹ before, s the sign and
        U = P Hᵀ, the factor R of I + s H U gives W = U R⁻ᵀ, P' = P − s W Wᵀ and B' = B + s W R⁻¹ (Y − H B).
        P itself is never formed: it is L⁻ᵀ L⁻¹ less the s W Wᵀ of earlier revisions.
        """
        n_items, wide = server["B"].shape[1], len(server["L"])
        followed = torch.from_numpy(items[first:])
        if not len(followed):
            return
        step, column, weight = steps(items, self.windows, self.decays, n_items, first)
        H = _matrix(step, column, weight, len(followed), wide)
        U = solved(server["L"], H.to_dense().T)  # (K·M, n)
        U.addmm_(server["W"], ((H @ server["W"]) * server["sign"]).T, alpha=-1)
        inner = (H @ U).double().mul_(sign)
        inner.diagonal().add_(1.0)
        R = torch.linalg.cholesky(inner).float()
        W = torch.linalg.solve_triangular(R.T, U, upper=True, left=False)
        missed = H @ server["B"]  # H B − Y, (n, M)
        missed[torch.arange(len(followed)), followed] -= 1.0
        server["B"].addmm_(W, torch.linalg.solve_triangular(R, missed, upper=False), alpha=-sign)
        server["W"] = torch.cat([server["W"], W], 1)
        server["sign"] = torch.cat([server["sign"], torch.full((len(followed),), sign)])


def _shift_ease(server: State, old: Ints, new: Ints) -> None:
    """Two rank-one changes of (G + λI)⁻¹ (Sherman and Morrison), then EASE's weights anew."""
    inverse = server["PG"]
    for items, sign in ((old, -1.0), (new, 1.0)):
        if len(items):
            place = torch.from_numpy(items)
            u = inverse[place].sum(0)
            inverse.addr_(u, u, alpha=-sign / (1 + sign * float(u[place].sum())))
    ease_weights(inverse, out=server["E"])


def _factored(factor: Tensor) -> State:
    """A fresh factor, with no revisions to carry."""
    return {"L": factor, "W": torch.zeros(len(factor), 0), "sign": torch.zeros(0)}


def scale_of(sums: Tensor) -> float:
    """The mean diagonal to the nearest power of two, so that a user more or less does not move λ."""
    mean = float(sums.diagonal().double().mean())
    return 2.0 ** round(math.log2(mean)) if mean > 0 else 1.0


def ease_solution(gram: Tensor, ridge: float) -> State:
    """The inverse of G + λI and EASE's weights."""
    inverse = inverse_of(factor_of(gram, ridge))
    return {"PG": inverse, "E": ease_weights(inverse)}


def standardised(scores: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the items of each user."""
    return (scores - scores.mean(-1, keepdim=True)) / scores.std(-1, keepdim=True).clamp(min=1e-12)


def _sparse(cells: Cells, client: Ints, shape: tuple[int, int], many: bool) -> Sparse:
    owner, index, value = client[cells.owner], cells.row * shape[1] + cells.column, cells.value
    if many:  # several users of a client may fill one cell
        size = shape[0] * shape[1]
        key, place = np.unique(owner * size + index, return_inverse=True)
        owner, index, value = key // size, key % size, sums(place, value, len(key))
    return Sparse(torch.from_numpy(owner), torch.from_numpy(index), torch.from_numpy(value).float(), shape)


def _matrix(row: Ints, column: Ints, value: NDArray[np.float64], rows: int, columns: int) -> Tensor:
    """A sparse matrix in the layout whose products are fast."""
    place = torch.from_numpy(np.stack([row, column]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        values = torch.from_numpy(value).float()
        return torch.sparse_coo_tensor(place, values, (rows, columns), check_invariants=False).to_sparse_csr()
