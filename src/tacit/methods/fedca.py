"""FedCA: mixtures of similar and of complementary clients' tables."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit.core.payload import Each, Payload, State
from tacit.core.settings import Amount, Count, Search, Starts
from tacit.core.simplex import project
from tacit.data.cohort import Cohort
from tacit.methods.pfedgraph import PFedGraph, gram, portions

BLOCK = 512  # clients whose angles to all others are computed at a time


@dataclass(frozen=True)
class FedCA(PFedGraph):
    """pFedGraph with another quadratic programme and a table that stays mostly the client's own (FedCA, 2024).

    Symbols: s_ij -> similarity, c_ij -> complement, α -> complementary, β -> similar, ρ -> own. A client sends the
    principal directions of the rows it trained on beside its table.
    Departures from the paper: docs/decisions/0014-mixtures.md.
    """

    own: float = 0.9  # ρ, of a client's own table beside its mixture
    proximity: float = 0.0
    similar: Annotated[Amount, Search(0, 1)] = 0.3  # β
    complementary: Annotated[Amount, Search(0, 1)] = 0.3  # α
    directions: Annotated[Count, Search(1, 8)] = 4  # k, principal directions that a client sends; at most dim of them
    complement: Literal["wide", "code"] = "wide"  # rewards wide angles between clients, or narrow ones as the code does

    name: ClassVar[str] = "fedca"
    paper: ClassVar[str] = "Zhang et al. 2024, Beyond Similarity: Composite Aggregation"
    starts: ClassVar[Starts] = (
        {
            "optimizer": "sgd",
            "lr": 1.0,
            "table_lr": 1000.0,
            "epochs": 1,
            "init": 0.1,
            "share": 1.0,
            "own": 0.0,
            "complementary": 0.0,
            "similar": 0.03,
        },
    )

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """Beside the table, an orthonormal basis (C, k, d) of the rows trained on."""
        up = super().uplink(p, down, data)
        times = torch.zeros(data.rows.shape).scatter_add_(1, data.row, data.label + data.drawn)  # (C, L)
        return Payload(up.ids, {**up.fields, "basis": Each(principal(p["items"], times, self.directions))})

    def graph(self, server: State, traits: State) -> Tensor:
        """(n, n) row i: argmin over the simplex of ‖w − p‖² − 2α Σ_j w_j c_ij − 2β Σ_j w_j s_ij."""
        gain = self.similar * similarity(gram(server["tables"], traits["ids"], server["start"]))
        if self.complementary:  # angles between all pairs are most of the work
            gain += self.complementary * complement(traits["basis"], self.complement)
        return project(portions(traits["weight"]) + gain)


def principal(table: Tensor, times: Tensor, count: int) -> Tensor:
    """The first principal directions of rows that occur this many times, (C, L, d), (C, L) -> (C, k, d) or zeros."""
    weight = (times / times.sum(1, keepdim=True).clamp(min=1))[..., None].double()  # (C, L, 1)
    centred = table - (weight * table).sum(1, keepdim=True)
    spread = centred.mT @ (weight * centred)  # (C, d, d)
    size, found = torch.linalg.eigh(spread)  # ascending
    there = size > 1e-6 * size[:, -1:]  # where rows span less, any direction would do: none is sent
    basis: Tensor = (found * there[:, None]).flip(2)[..., :count]
    return basis.mT.float().contiguous()


def similarity(products: Tensor) -> Tensor:
    """s_ij = 1 / (1 + ‖θ_i − θ_j‖) from the tables' inner products, (n, n)."""
    length = products.diagonal()
    distance: Tensor = (length[:, None] + length - 2 * products).clamp(min=0).sqrt()
    return (1 + distance).reciprocal()


def complement(basis: Tensor, kind: str) -> Tensor:
    """c_ij from the mean principal angle φ between the spans of two bases (n, k, d): 1 − cos φ, or cos φ, (n, n).

    The cosines of the principal angles are the singular values of the bases' inner products (Björck and Golub 1973).
    """
    cosine = torch.empty(len(basis), len(basis), dtype=torch.float64)
    for first in range(0, len(basis), BLOCK):
        some = basis[first : first + BLOCK, None].double() @ basis.double().mT  # (B, n, k, k)
        cosine[first : first + BLOCK] = torch.linalg.svdvals(some).clamp(max=1).acos().mean(-1).cos()
    return 1 - cosine if kind == "wide" else cosine
