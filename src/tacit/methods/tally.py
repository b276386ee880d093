"""tally: clients share additive statistics, the server solves in closed form; one upload, and able to forget."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.method import Method, Phase
from tacit.core.payload import Payload, Shared, Sparse, State
from tacit.data.cohort import Cohort, Federation
from tacit.methods.history_sums import Cells, Sequences, gram, recent, recurrences, steps, transitions
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

    windows: tuple[int, ...] = (20,)  # W of each time scale
    decays: tuple[float, ...] = (0.9,)  # γ of each time scale
    ridge: tuple[float, ...] = (0.5, 1.0, 2.0)  # λ, as a multiple of A's mean diagonal
    blend: tuple[float, ...] = (0.0, 0.15, 0.3, 0.5)  # w: 0 is the ridge alone, 1 the item weights alone
    weights: Literal["ease", "gfcf"] = "ease"  # what is made of G
    ease_ridge: float = 200.0  # λ of EASE
    gfcf_rank: int = 128  # of GF-CF's ideal filter
    gfcf_ideal: float = 0.3  # its weight
    history: Literal["train", "known"] = "train"  # known: the device's validation item counts as input at test
    clip: float = 0.0  # L2 bound on a user's whole contribution; 0: none
    dp_noise: float = 0.0  # standard deviation of the Gaussian noise on the sums, in units of clip
    delta: float = 1e-6

    name: ClassVar[str] = "tally"
    paper: ClassVar[str] = "FedCIA's idea taken to its end"
    closed_form: ClassVar[bool] = True
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
        return gaussian_epsilon(self.dp_noise, self.delta) if self.clip else None

    # what a client sends

    def init_server(self, federation: Federation) -> State:
        """No sums yet; the seed is the noise's."""
        return {"tried": torch.zeros(1).long(), "seed": torch.tensor([federation.seed])}

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

    def aggregate(self, server: State, uplinks: Iterable[Payload]) -> State:
        """Sum in the first round; then solve with the next candidate."""
        server = dict(server)
        for up in uplinks:
            for name, part in up.fields.items():
                assert isinstance(part, Sparse)
                part.add_to(server.setdefault(name, torch.zeros(part.shape)))
        tried = int(server["tried"])
        if not tried and self.clip:
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
        """P = (A + λI)⁻¹ and B = P C."""
        scale = ridge * float(server["A"].diagonal().mean())
        inverse = inverse_of(server["A"], scale)
        return {"P": inverse, "B": inverse @ server["C"], "lambda": torch.tensor([scale])}

    def _gfcf(self, gram: Tensor) -> State:
        """GF-CF's filter from Σ_u x xᵀ / n_u: the linear one, and the ideal one of its first eigenvectors."""
        full = gram + gram.triu(1).T
        degree = full.sum(1).clamp(min=1e-12)  # Σ_u x_ui: what the item counts, because each user adds n_u / n_u
        normal = full / degree.sqrt() / degree.sqrt()[:, None]
        rank = min(self.gfcf_rank, len(normal))
        vectors = torch.linalg.eigh(normal)[1][:, -rank:]
        ideal = (vectors / degree.sqrt()[:, None]) @ (vectors * degree.sqrt()[:, None]).T
        return {"E": normal + self.gfcf_ideal * ideal}

    def _add_noise(self, server: State) -> None:
        """Gaussian noise on every cell of the sums' upper halves."""
        for name in ("A", "C", "G"):
            if name not in server:
                continue
            total = server[name]
            for block in torch.split(torch.arange(len(total)), 256):
                drawn = rng.normal(int(server["seed"]), f"tally/{name}", 0, block, total.shape[1])
                total[block] += self.clip * self.dp_noise * drawn
            if name != "C":
                total.triu_()

    # how a client ranks

    def serve(self, clients: State, down: Payload, data: Cohort, phase: str) -> State:
        """The solution, and the user's recent items as rows of it."""
        split = data.federation.split
        known = phase == "test" and self.history == "known"
        users = data.users.numpy().ravel()
        held = [np.zeros(0, dtype=np.int64) if u < 0 else split.train[u] for u in users]
        if known:
            held = [s if u < 0 else np.concatenate([s, split.valid[u]]) for s, u in zip(held, users, strict=True)]
        laid = Sequences.of(held)
        p = {"B": down["B"], "E": down["E"], "blend": down["blend"], "bags": torch.tensor(data.users.shape)}
        rows, weights, owners = [], [], []
        for scale, (window, decay) in enumerate(zip(self.windows, self.decays, strict=True)):
            inside, weight = recent(laid, window, decay)
            rows.append(scale * data.federation.n_items + laid.items[inside])
            weights.append(weight)
            owners.append(laid.owner[inside])
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        p |= _bags("recent", np.concatenate(rows)[order], np.concatenate(weights)[order], owner[order], len(users))
        return p | _bags("all", laid.items, np.ones(len(laid.items)), laid.owner, len(users))

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
            total = (1 - blend) * standardised(_gather(p, "recent", p["B"]))
        if blend > 0:
            total = total + blend * standardised(_gather(p, "all", p["E"]))
        return total.view(*p["bags"].tolist(), -1)

    # life after training

    def revise(self, server: State, old: Ints, new: Ints) -> State:
        """The sums and the solution after one user's sequence becomes another; empty: the user was not there, or goes.

        With D = ±1 for the steps that come and go, H their histories and Y the items that followed,
        P' = P − U S Uᵀ with U = P Hᵀ, S = (D + H U)⁻¹ (Woodbury), and B' = P' (C + Hᵀ D Y) = B + U (D Y − S (H B + H U D Y)).
        """
        server = dict(server)
        n_items = len(server["G"]) if "G" in server else server["C"].shape[1]
        for sequence, sign in ((old, -1.0), (new, 1.0)):
            for name, part in self.cells([sequence], np.zeros(1, dtype=np.int64), n_items, many=False).items():
                flipped = Sparse(part.client, part.index, sign * part.value, part.shape)
                flipped.add_to(server[name])
        if "P" in server:
            self._revise_ridge(server, old, new, n_items)
        if "G" in server:
            _revise_ease(server, old, new)
        return server

    def _revise_ridge(self, server: State, old: Ints, new: Ints, n_items: int) -> None:
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        histories, followed, signs = [], [], []
        for sequence, sign in ((old, -1.0), (new, 1.0)):
            rows, nexts = steps(sequence, self.windows, self.decays, n_items)
            start = max(same - 1, 0)  # steps inside the common beginning cancel
            histories.append(rows[start:])
            followed.append(nexts[start:])
            signs.append(np.full(len(rows[start:]), sign))
        H = torch.from_numpy(np.concatenate(histories)).float()  # (n, K·M)
        if not len(H):
            return
        sign = torch.from_numpy(np.concatenate(signs)).float()
        target = torch.from_numpy(np.concatenate(followed))
        DY = torch.zeros(len(H), n_items)
        DY[torch.arange(len(H)), target] = sign
        P, B = server["P"], server["B"]
        sparse = H.to_sparse_csr()
        U = (sparse @ P).T.contiguous()  # P is symmetric: P Hᵀ = (H P)ᵀ
        inner = sparse @ U  # H U
        S = torch.linalg.inv((torch.diag(sign) + inner).double()).float()
        step = DY - S @ (sparse @ B + inner @ DY)
        B.addmm_(U, step)
        P.addmm_(U @ S, U.T, alpha=-1.0)


def _revise_ease(server: State, old: Ints, new: Ints) -> None:
    """Two rank-one changes of (G + λI)⁻¹ (Sherman and Morrison), then EASE's weights anew."""
    inverse = server["PG"]
    for items, sign in ((old, -1.0), (new, 1.0)):
        if len(items):
            u = inverse[:, torch.from_numpy(items)].sum(1)
            inverse.addr_(u, u, alpha=-sign / (1 + sign * float(u[torch.from_numpy(items)].sum())))
    server["E"] = ease_weights(inverse)


def inverse_of(upper: Tensor, ridge: float) -> Tensor:
    """(S + λI)⁻¹ of a symmetric S given by its upper half; λ grows until noise leaves it positive definite."""
    for growth in range(12):
        regular = upper.clone()
        regular.diagonal().add_(ridge * 4.0**growth)
        factor, failed = torch.linalg.cholesky_ex(regular, upper=True)
        if not int(failed):
            return torch.cholesky_inverse(factor, upper=True)
    raise ValueError("the sums are not those of any data: no ridge makes them positive definite")


def ease_solution(gram: Tensor, ridge: float) -> State:
    """The inverse of G + λI and EASE's weights."""
    inverse = inverse_of(gram, ridge)
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
        owner, index, value = key // size, key % size, np.bincount(place, weights=value, minlength=len(key))
    return Sparse(torch.from_numpy(owner), torch.from_numpy(index), torch.from_numpy(value).float(), shape)


def _bags(name: str, rows: Ints, weights: NDArray[np.float64], owner: Ints, bags: int) -> State:
    """Rows to be added up for each user, in the form of an embedding bag."""
    start = np.searchsorted(owner, np.arange(bags))
    return {
        f"{name}.rows": torch.from_numpy(rows),
        f"{name}.weights": torch.from_numpy(weights).float(),
        f"{name}.start": torch.from_numpy(start),
    }


def _gather(p: State, name: str, table: Tensor) -> Tensor:
    """(users, M) weighted sums of rows."""
    return F.embedding_bag(
        p[f"{name}.rows"], table, p[f"{name}.start"], mode="sum", per_sample_weights=p[f"{name}.weights"]
    )
