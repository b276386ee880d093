"""FedMF: federated matrix factorisation, the backbone of the family, and its centralised reference."""

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.method import Method


@dataclass(frozen=True)
class FedMF(Method):
    """Score p_u · q_i. The item table is shared and averaged by |D_u|; the user vector is private."""

    name: ClassVar[str] = "fedmf"
    paper: ClassVar[str] = "Chai et al. 2020, in the form PFedCLR and PLGC compare with"


@dataclass(frozen=True)
class MF(FedMF):
    """The same model on pooled data: one client holds all users; a round is an epoch."""

    epochs: int = 1
    batch: int = 2048

    name: ClassVar[str] = "mf"
    paper: ClassVar[str] = "Koren et al. 2009, centralised"
    pooled: ClassVar[bool] = True
