"""GF-CF: a graph filter in closed form, and the function that tally shares with it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import eigsh
from torch import Tensor

from tacit.core.closed_form import ClosedForm, added_up, gram, history, linear
from tacit.core.leaves import Leaves, shared
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, State
from tacit.core.settings import Amount, Counts, Search
from tacit.data.cohort import Cohort, Federation

WHOLE = 4_000  # items up to which all eigenvectors are computed
SPARSE = 0.1  # of the cells: below, products with those alone are faster


@dataclass(frozen=True)
class GFCF(ClosedForm):
    """Score x_u (R̃ᵀR̃ + α D^(−½) V Vᵀ D^(½)): a linear filter and an ideal low-pass one (Shen et al. 2021, Eq. 9).

    R̃ is the interaction matrix with both degrees' roots divided out, D the items' degrees and V the first singular
    vectors of R̃. Every round tries the next rank of V; the best on validation is reported.
    """

    rank: Counts = (32, 64, 128, 256)  # columns of V
    ideal: Annotated[Amount, Search(0, 1)] = 0.3  # α
    history: Literal["train", "known"] = "train"  # known: the device's validation item counts as input at test

    name: ClassVar[str] = "gfcf"
    paper: ClassVar[str] = "Shen et al. 2021, centralised"
    individual: ClassVar[str] = ""  # Gram matrices are summed
    pooled: ClassVar[bool] = True

    def leaves(self) -> Leaves:
        """The filter."""
        return {"filter": shared()}

    def length(self, asked: int | None = None) -> int:
        """A round for each rank."""
        return len(self.rank)

    def chosen(self, round: int) -> Self:
        """With the rank of this round alone."""
        return replace(self, rank=self.rank[round - 1 : round])

    def choice(self, round: int) -> str:
        """The rank of this round."""
        return f"rank {self.rank[round - 1]}"

    def init_server(self, federation: Federation) -> State:
        """Nothing yet."""
        size = federation.n_items
        return {
            "gram": torch.zeros(size, size),
            "vectors": torch.zeros(size, min(max(self.rank), size)),
            "filter": torch.zeros(size, size),
            "tried": torch.zeros(1).long(),
        }

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """Σ_u x xᵀ / n_u, (C, M, M)."""
        return Payload(data.ids, {"gram": Each(gram(data, power=1.0))})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Sum and decompose in the first round; filter with the next rank in every round."""
        tried = server["tried"]
        found = added_up(uplinks, "gram")
        total, vectors = (server["gram"] if found is None else found), server["vectors"]
        if found is not None:
            vectors = leading(total, vectors.shape[1])
        filtering = graph_filter(total, vectors[:, : self.rank[int(tried)]], self.ideal)
        return {"gram": total, "vectors": vectors, "filter": filtering, "tried": tried + 1}

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The user's history and the filter."""
        return {"history": history(data, part, self.history), "filter": down["filter"]}

    def scores(self, p: State) -> Tensor:
        """x_u F, (C, U, M)."""
        return linear(p["history"], p["filter"])


def leading(gram: Tensor, rank: int) -> Tensor:
    """(M, rank) the first right singular vectors of R̃, from Σ_u x xᵀ / n_u."""
    normal = _normalised(gram)[0]
    if len(normal) <= WHOLE:
        vectors: Tensor = torch.linalg.eigh(normal)[1]  # ascending
        return vectors[:, -rank:].flip(1)
    matrix = normal.numpy()
    few = sparse.csr_matrix(matrix) if torch.count_nonzero(normal) < SPARSE * normal.numel() else matrix
    start = np.ones(len(matrix), dtype=matrix.dtype)  # the same every time
    found = eigsh(few, rank, which="LA", v0=start)[1]  # ascending
    return torch.from_numpy(found[:, ::-1].copy())


def graph_filter(gram: Tensor, vectors: Tensor, ideal: float) -> Tensor:
    """(M, M) R̃ᵀR̃ + α D^(−½) V Vᵀ D^(½) from Σ_u x xᵀ / n_u and V; an item that nobody touched has zeros."""
    normal, root, inverse = _normalised(gram)
    return normal + ideal * (vectors * inverse[:, None]) @ (vectors * root[:, None]).T


def _normalised(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R̃ᵀR̃, and the roots of the items' degrees with their inverses."""
    root = gram.sum(1).clamp(min=0).sqrt()  # Σ_j G_ij is what the item counts, because each user adds n_u / n_u
    inverse = torch.where(root > 0, 1 / root, 0)
    return gram * inverse * inverse[:, None], root, inverse
