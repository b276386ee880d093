"""Matrix factorisation on every client alone, with averaging from a later round on if asked for."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tacit.core.leaves import Leaves, kept
from tacit.core.method import Moment
from tacit.core.payload import Field, Payload, Rows, State, rows_of
from tacit.core.settings import Whole
from tacit.data.cohort import Cohort, Federation
from tacit.methods.fedmf import FedMF


@dataclass(frozen=True)
class LocalMF(FedMF):
    """FedMF without a server: what a client learns from its own interactions. It ranks with its own table.

    With `aggregate_from` = i, tables are averaged from round i on, as in the study of user embedding skew
    (PFedCLR, Sec. 1 and App. D.1); 0 means never.
    """

    aggregate_from: Whole = 0

    name: ClassVar[str] = "localmf"
    paper: ClassVar[str] = "the floor of every federation; PFedCLR's 'LT w/o GA'"
    individual: ClassVar[str] = ""  # averaged, or not sent at all

    def leaves(self) -> Leaves:
        """FedMF's, and the client's own table, read whole: also the rows that a round does not touch."""
        return super().leaves() | {"local": kept()}

    def alone(self, round: int) -> bool:
        """Whether a client starts this round from its own table."""
        return not self.aggregate_from or round <= self.aggregate_from

    def init_clients(self, federation: Federation, ids: Tensor) -> State:
        """Everyone starts from the same table."""
        table = self.init_server(federation)["items"]
        return {"local": table.expand(len(ids), *table.shape)}

    def receive(self, clients: State, down: Payload, data: Cohort) -> State:
        """The client's own table, or the server's once there is one."""
        p = super().receive(clients, down, data)
        return p | {"items": rows_of(clients["local"], data.rows, own=True)} if self.alone(data.round) else p

    def whole(self, name: str, p: State, down: Payload, data: Cohort) -> Field:
        """The table as training left it, over the one it started from."""
        base = p["local"] if self.alone(data.round) else down["items"]
        return Rows(p["items"], data.rows, data.real, base)

    def keep(self, p: State, down: Payload, data: Cohort) -> dict[str, Tensor | Rows]:
        """The user vector and the whole table."""
        own = self.whole("items", p, down, data)
        assert isinstance(own, Rows)
        return {"user": p["user"], "local": own}

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """Nothing until the server has a part in it."""
        if not self.aggregate_from or data.round < self.aggregate_from:
            return Payload(data.ids, {})
        return super().uplink(p, down, data)

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """FedAvg from the round asked for; before it the uploads are empty."""
        if self.aggregate_from and now.round >= self.aggregate_from:
            return super().aggregate(server, uplinks, now)
        for _ in uplinks:
            pass
        return server

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """Its own table."""
        return clients | {"items": clients["local"]}
