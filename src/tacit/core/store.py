"""The private state of clients, of all in a simulation or of those on a node, in memory or in memory-mapped files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core.method import Method
from tacit.core.payload import Field, State, rows_at
from tacit.core.workers import shared_zeros
from tacit.data.cohort import Cohort, Federation

BLOCK = 256  # clients initialised at a time


class ClientStore:
    """Leaves by client (n_clients, …) and, for per-user leaves, by user (n_users, …).

    A node holds only its own `clients` and `users`, which are runs of neighbouring numbers.
    Tables are stored whole; a cohort reads and writes the rows it touches. With a folder the leaves live in
    files that the operating system pages in as needed: N·M·d values need not fit into memory.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        folder: Path | None = None,
        clients: range | None = None,
        users: range | None = None,
    ) -> None:
        self.method = method
        self.folder = folder
        self.clients = range(federation.n_clients) if clients is None else clients
        self.users = range(federation.n_users) if users is None else users
        self.leaves: State = {}
        for owners, fill in ((self.clients, method.init_clients), (self.users, method.init_users)):
            for ids in torch.split(torch.arange(owners.start, owners.stop), BLOCK):
                for name, value in fill(federation, ids).items():
                    if name not in self.leaves:
                        self.leaves[name] = self._allocate(name, (len(owners), *value.shape[1:]), value.dtype)
                    self.leaves[name][ids - owners.start] = value
        self.kinds = method.leaves()
        if own := method.own_leaves():
            one = method.downlink(method.init_server(federation), torch.arange(1))
            for name in own:
                field = one.fields[name]
                shape = (len(self.clients), *field.one_shape)
                self.leaves[f"own_{name}"] = self._allocate(f"own_{name}", shape, field.wire_dtype)
            self.leaves["trained"] = self._allocate("trained", (len(self.clients),), torch.float32)

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.folder is None:
            return shared_zeros(shape, dtype)
        self.folder.mkdir(parents=True, exist_ok=True)
        size = int(np.prod(shape))
        return torch.from_file(str(self.folder / f"{name}.bin"), shared=True, size=size, dtype=dtype).view(shape)

    def _is(self, name: str, what: Literal["table", "per_user"]) -> bool:
        return name in self.kinds and bool(getattr(self.kinds[name], what))

    def read(self, data: Cohort, training: bool = False) -> State:
        """The leaves of a cohort: (C, U, …) per user, (C, L, …) tables, (C, …) the rest.

        In training nothing reads the leaves that are kept only for ranking.
        """
        out: State = {}
        ids = data.ids - self.clients.start
        for name, leaf in self.leaves.items():
            if training and name.startswith("own_"):
                continue
            if self._is(name, "per_user"):
                out[name] = leaf[(data.users - self.users.start).clamp(min=0)]
            elif self._is(name, "table") and not data.every_row:
                out[name] = rows_at(leaf, ids, data.rows)
            else:
                out[name] = leaf.index_select(0, ids)
        return out

    def write(self, data: Cohort, kept: Mapping[str, Tensor | Field]) -> None:
        """Put back what a cohort keeps; padding is not written."""
        ids = data.ids - self.clients.start
        client = ids[:, None].expand_as(data.rows)
        for name, value in kept.items():
            leaf = self.leaves[name]
            if isinstance(value, Field):  # a whole table
                value.write_to(leaf, ids)
            elif self._is(name, "per_user"):
                there = data.users >= 0
                leaf[data.users[there] - self.users.start] = value[there]
            elif self._is(name, "table") and not data.every_row:
                leaf[client[data.real], data.rows[data.real]] = value[data.real]
            else:
                leaf[ids] = value

    def load(self, leaves: State) -> None:
        """Take over the leaves of a checkpoint."""
        for name, leaf in self.leaves.items():
            leaf.copy_(leaves[name])
