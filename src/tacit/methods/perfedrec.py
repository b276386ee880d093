"""PerFedRec: LightGCN whose users rank with a mixture of the global model, their cluster's and their own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tacit import rng
from tacit.core.cluster import kmeans
from tacit.core.leaves import Leaves, kept
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Rows, Shared, State
from tacit.core.settings import Count, Search, Share
from tacit.data.cohort import Cohort, Federation
from tacit.methods.lightgcn import FedLightGCN


@dataclass(frozen=True)
class PerFedRec(FedLightGCN):
    """The server groups clients by their user vectors and averages tables over all and over each group.

    A client ranks with own · (its table after training) + near · (its cluster's) + wide · (everybody's), then
    propagates over its graph. The user vector is uploaded: the server cannot group users without it. A client of many
    users is grouped by their mean. Until a client's vector is known, its cluster is everybody.
    Departures: docs/decisions/0010-perfedrec.md.
    """

    clusters: Annotated[Count, Search(2, 20, log=True)] = 5  # K
    own: Share = 1 / 3  # the three weights; a client that has not trained yet has its start for its own
    near: Share = 1 / 3
    wide: Share = 1 / 3
    start: Literal["cluster", "global"] = "global"  # the table that training starts from
    weighting: Literal["size", "uniform"] = "uniform"
    scored_with: Literal["server", "own"] = "own"

    name: ClassVar[str] = "perfedrec"
    paper: ClassVar[str] = "Luo et al. 2022, Joint Representation Learning, User Clustering, and Model Adaptation"
    individual: ClassVar[str] = "it groups clients by their user vectors and averages tables within each group"

    def leaves(self) -> Leaves:
        """LightGCN's, of which the user vector is uploaded, too."""
        return super().leaves() | {"user": kept(per_user=True)}

    def init_server(self, federation: Federation) -> State:
        """One table for all and for every cluster; nobody's vector is known."""
        server = super().init_server(federation)
        return server | {
            "near": server["items"].repeat(self.clusters, 1, 1),  # (K, M, d)
            "centres": torch.zeros(self.clusters, self.dim),
            "tastes": torch.zeros(federation.n_clients, self.dim),
            "label": torch.full((federation.n_clients,), -1),  # of a client's cluster; −1: not grouped yet
            "known": torch.zeros(federation.n_clients, dtype=torch.bool),
        }

    def downlink(self, server: State, ids: Tensor) -> Payload:
        """The table that training starts from, and the other one, which ranking needs as well."""
        near, wide = Each(tables(server)[server["label"][ids]], private=False), Shared(server["items"])
        first, second = (near, wide) if self.start == "cluster" else (wide, near)
        return Payload(ids, {"items": first, "second": second})

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """The trained table, the mean user vector and the weight."""
        there = (data.users >= 0).float()[..., None]  # (C, U, 1)
        taste = (p["user"] * there).sum(1) / there.sum(1).clamp(min=1)
        fields = {"items": self.whole("items", p, down, data), "taste": Each(taste)}
        return Payload(data.ids, fields | {"weight": self.weight(data)})

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """Means over all and over each cluster as it was in this round, then the clusters again.

        Sums are of the changes against what each client started from, in double precision.
        """
        size = server["items"].shape
        base = tables(server)  # (K + 1, M, d), the last one everybody's
        total, weights = torch.zeros(base.shape, dtype=torch.float64), torch.zeros(len(base), dtype=torch.float64)
        tastes, known = server["tastes"].clone(), server["known"].clone()
        for up in uplinks:
            group, weight, field = server["label"][up.ids] % len(base), up["weight"].double(), up.fields["items"]
            began = group if self.start == "cluster" else torch.full_like(group, self.clusters)
            if isinstance(field, Rows):
                change = field.change().double() * weight.view(-1, 1, 1)
                place = group[:, None] * size[0] + field.rows
                total.view(-1, size[1]).index_add_(0, place.flatten(), change.flatten(0, 1))
            else:
                total.index_add_(0, group, (field.dense() - base[began]).double() * weight.view(-1, 1, 1))
            weights.index_add_(0, group, weight)
            tastes[up.ids], known[up.ids] = up["taste"], True
        if not weights.any():
            return server
        before = base if self.start == "cluster" else server["items"].expand(base.shape)
        everybody = ((weights.view(-1, 1, 1) * before + total).sum(0) / weights.sum()).float()
        moved = (before + total / weights.clamp(min=1e-12).view(-1, 1, 1)).float()
        near = torch.where((weights > 0).view(-1, 1, 1), moved, base)[:-1]
        new = {"items": everybody, "near": near, "tastes": tastes, "known": known}
        return server | new | self._grouped(server, new, now)

    def _grouped(self, server: State, new: State, now: Moment) -> State:
        """Clusters of the vectors known so far, from the last centres on, so that a cluster keeps its table."""
        ids = new["known"].nonzero().flatten()
        if len(ids) < self.clusters:
            return {}
        grouped = bool((server["label"] >= 0).any())
        seed = int(rng.bits(now.seed, "perfedrec/clusters", now.round, torch.zeros(1), 1)[0, 0])
        found, centres = kmeans(new["tastes"][ids], self.clusters, seed, server["centres"] if grouped else None)
        label = server["label"].clone()
        label[ids] = found
        fresh = {} if grouped else {"near": new["items"].repeat(self.clusters, 1, 1)}  # nobody has trained in it yet
        return {"label": label, "centres": centres} | fresh

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The mixture of the three tables."""
        p = super().serve(clients, down, data, part)
        first, second = down["items"], down["second"]
        near, wide = (first, second) if self.start == "cluster" else (second, first)
        return p | {"items": self.own * p["items"] + self.near * near + self.wide * wide}


def tables(server: State) -> Tensor:
    """(K + 1, M, d) the clusters' tables and, behind them, everybody's, which label −1 finds."""
    return torch.cat([server["near"], server["items"][None]])
