"""CGFedRec: clients share which items belong together, not where they lie."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit import rng
from tacit.core.aggregate import weighted_mean
from tacit.core.cluster import kmeans
from tacit.core.leaves import Leaves, kept
from tacit.core.method import Moment
from tacit.core.payload import Each, Field, Payload, Shared, State
from tacit.core.settings import Count, Search, Starts
from tacit.data.cohort import Cohort, Federation
from tacit.methods.alignment import Aligned
from tacit.methods.personal import Personal


@dataclass(frozen=True)
class CGFedRec(Personal, Aligned):
    """PFedRec's score on a table that stays with the client; the server clusters the mean and sends only labels.

    Symbols: E_p -> items, Θ_p -> head and bias, c -> labels, k -> clusters, λ -> strength, τ -> temperature. Variants
    of Table 3 send the mean table as well: `e` alone, `ec` with its labels, `erc` with random ones.
    Departures from the paper: docs/decisions/0011-cgfedrec.md.
    """

    lr: float = 0.1  # η, of the head
    table_lr: float = 1000.0  # η'
    epochs: int = 2
    init: float = 0.1
    clusters: Annotated[Count, Search(5, 80, log=True)] = 20  # k
    smooth: bool = True
    variant: Literal["c", "e", "ec", "erc"] = "c"

    name: ClassVar[str] = "cgfedrec"
    paper: ClassVar[str] = "CGFedRec, cluster-guided federated recommendation"
    starts: ClassVar[Starts] = (
        {
            "dim": 16,
            "lr": 1.0,
            "table_lr": 3000.0,
            "epochs": 1,
            "init": 0.3,
            "anchors": 16,
            "strength": 0.01,
            "weighting": "size",
            "own_decay": 1.0,
            "own_share": 0.01,
        },
    )
    individual: ClassVar[str] = ""  # the mean is clustered
    every_row: ClassVar[bool] = True  # the alignment moves every row

    def leaves(self) -> Leaves:
        """PFedRec's, with a table that stays."""
        return super().leaves() | {"items": kept(table=True)}

    def init_server(self, federation: Federation) -> State:
        """The mean table, and a label for every item: none yet."""
        kind = torch.uint8 if self.clusters <= 256 else torch.int32
        return super().init_server(federation) | {"labels": torch.zeros(federation.n_items, dtype=kind)}

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Everyone starts from the same table."""
        table = self.starting(federation, "items", federation.n_items, self.dim)
        return {"items": table.expand(len(ids), *table.shape)}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """A byte an item (Eq. 6); the variants of Table 3 and a nearer table need the mean table, too."""
        fields: dict[str, Field] = {} if self.variant == "e" else {"labels": Shared(server["labels"])}
        whole = self.variant != "c" or self.own_share < 1 or self.own_decay > 0
        return Payload(ids, fields | ({"items": Shared(server["items"])} if whole else {}))

    def common(self, down: Payload, data: Cohort) -> State:
        """The mean table."""
        return {"items": down["items"].expand(len(data.ids), -1, -1)}

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Its own table, or the server's in the variants; labels and anchors beside it."""
        p = self.decayed(clients, down, data) if self.variant == "c" else clients | self.common(down, data)
        return p | (self.guide(down["labels"], data) if "labels" in down else {})

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """The whole table, as Algorithm 1 has it; every client counts alike (Eq. 4)."""
        return Payload(data.ids, {"items": Each(p["items"]), "weight": self.weight(data)})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """The mean table (Eq. 4) and its clusters (Eq. 5), fitted afresh every round (Algorithm 1, line 14)."""
        new = server | weighted_mean(uplinks, "items")
        if self.variant == "e":
            return new
        seed = int(rng.generator(now.seed, "clusters", now.round).integers(2**31))
        labels, _ = kmeans(new["items"], self.clusters, seed)
        if self.variant == "erc":
            drawn = rng.generator(now.seed, "labels", now.round).integers(self.clusters, size=len(labels))
            labels = torch.from_numpy(drawn)
        new["labels"] = labels.to(server["labels"].dtype)
        return new

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """Its own head and table."""
        return self.nearer(clients, down, data, self.own_share)
