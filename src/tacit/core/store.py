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
COPIED = 1 << 30  # bytes of a state that may be copied to be saved; of more than that, all is saved as it lies there
TOUCHED = "touched|"  # before the name of an axis: whose leaves a checkpoint has


class ClientStore:
    """Leaves by client (n_clients, …) and, for per-user leaves, by user (n_users, …).

    A node holds only its own `clients` and `users`, which are runs of neighbouring numbers.
    A client or user takes memory once a cohort has it: what was never touched costs nothing but its address.
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
        self.federation = federation
        self.folder = folder
        self.clients = range(federation.n_clients) if clients is None else clients
        self.users = range(federation.n_users) if users is None else users
        self.kinds = method.leaves()
        self.rows: State = {}  # as they lie in memory: those of clients whom nobody has touched are still zero
        self._ready: dict[str, Tensor] = {}  # by axis: whose rows are there
        for axis, owners in self._axes.items():
            first = torch.arange(owners.start, min(owners.start + 1, owners.stop))
            for name, value in self._made(axis, first).items():
                self.rows[name] = self._allocate(name, (len(owners), *value.shape[1:]), value.dtype)
            self._ready[axis] = shared_zeros((len(owners),), torch.bool)
        if own := method.own_leaves():
            one = method.downlink(method.init_server(federation), torch.arange(1))
            for name in own:
                field = one.fields[name]
                shape = (len(self.clients), *field.one_shape)
                self.rows[f"own_{name}"] = self._allocate(f"own_{name}", shape, field.wire_dtype)
            self.rows["trained"] = self._allocate("trained", (len(self.clients),), torch.float32)

    @property
    def _axes(self) -> dict[str, range]:
        return {"clients": self.clients, "users": self.users}

    def _made(self, axis: str, ids: Tensor) -> State:
        """The leaves of these clients or users before their first round."""
        return (self.method.init_users if axis == "users" else self.method.init_clients)(self.federation, ids)

    def _begin(self, axis: str, ids: Tensor) -> None:
        """Give those of these clients or users who are touched for the first time what they begin with."""
        start, ready = self._axes[axis].start, self._ready[axis]
        for some in torch.split(ids[~ready[ids - start]], BLOCK):
            for name, value in self._made(axis, some).items():
                self.rows[name][some - start] = value
            ready[some - start] = True

    def _touch(self, data: Cohort) -> None:
        self._begin("clients", data.ids)
        self._begin("users", data.users[data.users >= 0])

    @property
    def leaves(self) -> State:
        """The leaves of everybody."""
        for axis, owners in self._axes.items():
            self._begin(axis, torch.arange(owners.start, owners.stop))
        return self.rows

    def kept(self) -> State:
        """What a checkpoint holds: the leaves of everybody, or where most were never touched only those of the others.

        Who these are is told under `TOUCHED`; the rest begin as they would have.
        """
        axes = {self._axis(name) for name in self.rows}
        few = {axis: self._ready[axis].nonzero()[:, 0] for axis in axes}
        size = sum(len(few[self._axis(n)]) * x[:1].nbytes for n, x in self.rows.items())
        if size > COPIED or any(2 * len(few[axis]) > len(self._axes[axis]) for axis in axes):
            return self.leaves
        return {n: x[few[self._axis(n)]] for n, x in self.rows.items()} | {TOUCHED + axis: i for axis, i in few.items()}

    def _axis(self, name: str) -> str:
        return "users" if self._is(name, "per_user") else "clients"

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
        self._touch(data)
        out: State = {}
        ids = data.ids - self.clients.start
        for name, leaf in self.rows.items():
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
        self._touch(data)
        ids = data.ids - self.clients.start
        client = ids[:, None].expand_as(data.rows)
        for name, value in kept.items():
            leaf = self.rows[name]
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
        for axis, ready in self._ready.items():
            ready.copy_(torch.ones_like(ready) if TOUCHED + axis not in leaves else torch.zeros_like(ready))
            if TOUCHED + axis in leaves:
                ready[leaves[TOUCHED + axis]] = True
        for name, leaf in self.rows.items():
            if (touched := leaves.get(TOUCHED + self._axis(name))) is None:
                leaf.copy_(leaves[name])
            else:
                leaf[touched] = leaves[name]
