"""CoFedRec: every round a group of clients that agree on one kind of items shares a table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit import rng
from tacit.core.cluster import kmeans
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Shared, State
from tacit.core.settings import Count, Search
from tacit.data.cohort import Cohort, Federation
from tacit.methods.alignment import Aligned

BLOCK = 256  # items of all clients at a time, so that nothing as large as the tables is written beside them


@dataclass(frozen=True)
class CoFedRec(Aligned):
    """PFedRec whose server groups items, then clients by one group of items (CoFedRec, 2024).

    Items are clustered by k-means over the mean table. A client and a cluster are drawn; the clients whose rows of that
    cluster are most like the drawn client's, up to the elbow of the sorted similarities, get the mean of their tables;
    everybody else goes on from their own. The labels of the items come down as well: clients keep rows of one cluster
    together by a supervised contrast over the whole table, from the second round on.
    Departures from the paper: docs/decisions/0015-cofedrec.md.
    """

    epochs: int = 2
    scored_with: Literal["server", "own"] = "server"  # the group's table, where a client is in the group
    clusters: Annotated[Count, Search(5, 80, log=True)] = 30
    strength: float = 0.005  # λ, of the contrast
    anchors: int = 16  # rows drawn a round whose denominators stand for those of all; 0: all of them

    name: ClassVar[str] = "cofedrec"
    paper: ClassVar[str] = "He et al. 2024, Co-clustering for Federated Recommender System"
    individual: ClassVar[str] = "it groups clients by their tables and averages within the group alone"

    def init_server(self, federation: Federation) -> State:
        """The same table for every client, all items in one cluster."""
        start = super().init_server(federation)["items"]
        kind = torch.uint8 if self.clusters <= 256 else torch.int16  # what a label travels in
        labels = torch.zeros(federation.n_items, dtype=kind)
        return {"tables": start.expand(federation.n_clients, *start.shape), "labels": labels}

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """Each client's own table, and the labels for all."""
        return Payload(ids, {"items": Each(server["tables"][ids]), "labels": Shared(server["labels"])})

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """Beside the table, from the second round on, the labels (M,) and the round's anchors (C, a)."""
        return super().receive(clients, down, data) | self.guide(down["labels"], data)

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Take the tables over, cluster the items of their mean, share one table in a group of clients."""
        tables = server["tables"].clone()
        came: list[Tensor] = []
        for up in uplinks:
            tables[up.ids] = up["items"]
            came.append(up.ids)
        if not came:
            return server
        ids = torch.cat(came).sort().values
        draw = rng.generator(now.seed, "cofedrec", now.round)
        labels, _ = kmeans(mean(tables, ids), min(self.clusters, tables.shape[1]), int(draw.integers(2**32)))
        one = ids[int(draw.integers(len(ids)))]
        kind = int(draw.integers(int(labels.max()) + 1))
        group = ids[similar(tables, ids, one, (labels == kind).nonzero()[:, 0])]
        tables[group] = mean(tables, group)
        return {"tables": tables, "labels": labels.to(server["labels"].dtype)}


def mean(tables: Tensor, ids: Tensor) -> Tensor:
    """(M, d) of these clients' tables."""
    return torch.cat([block[ids].double().mean(0).float() for block in torch.split(tables, BLOCK, 1)])


def similar(tables: Tensor, ids: Tensor, one: Tensor, items: Tensor) -> Tensor:
    """Places in `ids` of the clients most like `one` on these items: those before the elbow, and the elbow itself."""
    rows = F.normalize(tables[ids[:, None], items].double(), dim=-1)  # (n, |items|, d)
    likeness = (rows * F.normalize(tables[one, items].double(), dim=-1)).sum((1, 2))
    order = likeness.argsort(descending=True, stable=True)
    return order[: elbow(likeness[order]) + 1]


def elbow(values: Tensor) -> int:
    """Place of the value farthest from the line between the first and the last.

    The distance from a line is the vertical one times a constant.
    """
    line = torch.linspace(0, 1, len(values), dtype=values.dtype)
    return int((values - torch.lerp(values[0], values[-1], line)).abs().argmax())
