"""FedMF: federated matrix factorisation, the backbone of the family, and its centralised reference."""

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.optim import Optimizer
from tacit.core.trained import Trained


@dataclass(frozen=True)
class FedMF(Trained):
    """Score p_u · q_i. The item table is shared and averaged by |D_u|; the user vector is private.

    The table's rate is the better of 1000 and 3000 on validation over three seeds (NDCG@10 .0712 and .0696,
    MovieLens-100K, `strict`); the other settings come from a coarser search on one seed. A mean over clients shrinks a
    row's change by the share of clients that touched it, so the table's rate is a thousand times the user's. PFedCLR's
    own setting of this baseline is epochs=10 optimizer=adam lr=0.01 table_lr=0 init=0.01 aggregated=0.6.
    """

    lr: float = 1.0
    table_lr: float = 1000.0
    epochs: int = 1
    optimizer: Optimizer = "sgd"
    init: float = 0.1

    name: ClassVar[str] = "fedmf"
    paper: ClassVar[str] = "Chai et al. 2020, in the form PFedCLR and PLGC compare with"


@dataclass(frozen=True)
class MF(FedMF):
    """The same model on pooled data: one client holds all users; a round is an epoch."""

    lr: float = 0.01
    table_lr: float = 0.0
    batch: int = 2048
    rounds: int = 30
    optimizer: Optimizer = "adam"
    init: float = 0.01

    name: ClassVar[str] = "mf"
    paper: ClassVar[str] = "Koren et al. 2009, centralised"
    pooled: ClassVar[bool] = True
