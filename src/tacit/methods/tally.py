"""tally: clients share additive statistics, the server solves in closed form; one upload, and able to forget."""

import math
import secrets
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.method import Method, Moment, Phase
from tacit.core.payload import Payload, Shared, Sparse, State
from tacit.data.cohort import Cohort, Federation
from tacit.methods.history_sums import Cells, Sequences, gram, recent, recurrences, steps, sums, transitions
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
            share = np.array([1 / max(len(s), 1) if self.weights == "gfcf" else 1.0 for s in sequences])
            found["G"] = gram(laid).scaled(share)
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
        solved = torch.cholesky_solve(server["C"], factor)
        return {"B": solved, "lambda": torch.tensor([scale])} | _factored(factor)

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

        Sums change in the user's own cells. The solution changes by as many dimensions as steps come and go: with
        D = ±1 for each such step, H its history, Y the item that followed and P = (A + λI)⁻¹ before,
        U = P Hᵀ and S = (D + H U)⁻¹ give P' = P − U S Uᵀ (Woodbury) and
        B' = P' (C + Hᵀ D Y) = B + U (D Y − S (H B + H U D Y)).
        P itself is never formed: it is L⁻ᵀ L⁻¹ less the U S Uᵀ of earlier revisions. λ stays what it was.
        """
        server = dict(server)
        n_items = len(server["G"]) if "G" in server else server["C"].shape[1]
        for sequence, sign in ((old, -1.0), (new, 1.0)):
            for name, part in self.cells([sequence], np.zeros(1, dtype=np.int64), n_items, many=False).items():
                Sparse(part.client, part.index, sign * part.value, part.shape).add_to(server[name])
        if "L" in server:
            self._revise_ridge(server, old, new, n_items)
        if "PG" in server:
            _revise_ease(server, old, new)
        return server

    def _revise_ridge(self, server: State, old: Ints, new: Ints, n_items: int) -> None:
        shared = 0  # a common beginning cancels: its steps neither come nor go
        while shared < min(len(old), len(new)) and old[shared] == new[shared]:
            shared += 1
        parts = [
            [x[max(shared - 1, 0) :] for x in steps(sequence, self.windows, self.decays, n_items)]
            for sequence in (old, new)
        ]
        rows = np.concatenate([p[0] for p in parts])  # (n, K·M), almost all zero
        if not len(rows):
            return
        row, column = np.nonzero(rows)
        H = _matrix(row, column, rows[row, column], *rows.shape)
        sign = torch.cat([torch.full((len(p[0]),), s) for p, s in zip(parts, (-1.0, 1.0), strict=True)])
        DY = torch.zeros(len(rows), n_items)
        DY[torch.arange(len(rows)), torch.from_numpy(np.concatenate([p[1] for p in parts]))] = sign
        U = torch.cholesky_solve(torch.from_numpy(rows.T).float(), server["L"])
        U -= server["U"] @ (server["S"] @ (H @ server["U"]).T)  # what earlier revisions changed
        inner = H @ U
        S = torch.linalg.inv((torch.diag(sign) + inner).double()).float()
        server["B"].addmm_(U, DY - S @ (H @ server["B"] + inner @ DY))
        server["U"] = torch.cat([server["U"], U], 1)
        done = len(server["S"])
        both = torch.zeros(done + len(S), done + len(S))
        both[:done, :done], both[done:, done:] = server["S"], S
        server["S"] = both
        if len(both) > len(U) // 4:  # carrying so many costs more than a new factor
            server |= _factored(factor_of(server["A"], float(server["lambda"])))


def _revise_ease(server: State, old: Ints, new: Ints) -> None:
    """Two rank-one changes of (G + λI)⁻¹ (Sherman and Morrison), then EASE's weights anew."""
    inverse = server["PG"]
    for items, sign in ((old, -1.0), (new, 1.0)):
        if len(items):
            u = inverse[:, torch.from_numpy(items)].sum(1)
            inverse.addr_(u, u, alpha=-sign / (1 + sign * float(u[torch.from_numpy(items)].sum())))
    server["E"] = ease_weights(inverse)


def factor_of(lower: Tensor, ridge: float) -> Tensor:
    """Cholesky factor of S + λI, S symmetric by its lower half; λ grows until noise leaves it positive definite."""
    for growth in range(12):
        regular = lower.clone()
        regular.diagonal().add_(ridge * 4.0**growth)
        factor, failed = torch.linalg.cholesky_ex(regular)
        if not int(failed):
            return cast(Tensor, factor)
    raise ValueError("the sums are not those of any data: no ridge makes them positive definite")


def _factored(factor: Tensor) -> State:
    """A fresh factor, with no revisions to carry."""
    return {"L": factor, "U": torch.zeros(len(factor), 0), "S": torch.zeros(0, 0)}


def scale_of(sums: Tensor) -> float:
    """The mean diagonal to the nearest power of two, so that a user more or less does not move λ."""
    mean = float(sums.diagonal().double().mean())
    return 2.0 ** round(math.log2(mean)) if mean > 0 else 1.0


def ease_solution(gram: Tensor, ridge: float) -> State:
    """The inverse of G + λI and EASE's weights."""
    inverse = torch.cholesky_inverse(factor_of(gram, ridge))
    return {"PG": inverse, "E": ease_weights(inverse)}


def ease_weights(inverse: Tensor) -> Tensor:
    """−P / diag(P) with a zero diagonal (Steck 2019, Eq. 8)."""
    return (-inverse / inverse.diagonal()).fill_diagonal_(0.0)


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
