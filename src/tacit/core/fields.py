"""The kinds of fields that a payload can have: each knows its bytes, its sums, and how it comes back from the wire."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from tacit.core.reading import Wire, flag

State: TypeAlias = dict[str, Tensor]
KINDS: dict[str, type["Field"]] = {}  # by the name on the wire


@dataclass(frozen=True)
class Change:
    """What clients added to what the server had sent, or all there is where it sent nothing of the kind."""

    value: Tensor  # (C, L, …) of touched rows, or (C, …); free to be written to
    base: Tensor | None = None  # what the server had sent, (…) or (C, …)
    touched: "Rows | None" = None  # where the touched rows are

    def onto(self, out: Tensor) -> Tensor:
        """Add the change and the base to (C, …), in place."""
        if self.touched is None:
            out += self.value
        else:
            rows, real = self.touched.rows, self.touched.real
            client = torch.arange(len(rows))[:, None].expand_as(rows)
            out[client[real], rows[real]] += self.value[real]
        return out if self.base is None else out.add_(self.base)


class Field(ABC):
    """Something under a name that clients get or send. What is written here is for a value per client, (C, …)."""

    kind: ClassVar[str]  # its name on the wire
    own: ClassVar[bool] = True  # whether every client has a value of its own
    alike: ClassVar[bool] = False  # whether all clients have the same

    def __init_subclass__(cls) -> None:
        """A kind that can be read is found by its name."""
        if "decoded" in vars(cls):
            KINDS[cls.kind] = cls

    @property
    def private(self) -> bool:
        """Whether a privacy mechanism has to cover it."""
        return False

    @abstractmethod
    def _form(self) -> tuple[Sequence[int], torch.dtype]: ...

    @property
    def one_shape(self) -> tuple[int, ...]:
        """Of one client's value."""
        return tuple(self._form()[0])

    @property
    def wire_dtype(self) -> torch.dtype:
        """The type its values travel in."""
        return self._form()[1]

    @abstractmethod
    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The values written out."""

    @abstractmethod
    def only(self, places: Tensor, clients: int) -> "Field":
        """That of some of this many clients, by their places."""

    def joined(self, others: Sequence["Field"], counts: Sequence[int]) -> "Field":
        """One field for the clients of this one and of others of its kind, of this many clients each."""
        return Each(torch.cat([f.dense() for f in (self, *others)]), self.private)

    # on the wire

    def encoded(self, clients: int) -> tuple[dict[str, Any], State]:
        """What is told of it, and its tensors; copies, because one memory cannot go under two names."""
        return {"private": self.private}, {"field": self.dense().clone(memory_format=torch.contiguous_format)}

    @classmethod
    def decoded(cls, told: Mapping[str, Any], wire: Wire) -> "Field":
        """Back from what `encoded` gave; ValueError where it cannot be."""
        raise ValueError(f"{cls.kind} cannot be read")

    def most_bytes(self, clients: int) -> int:
        """Of this many clients' fields of this kind, as they come and unfolded."""
        return clients * math.prod(self.one_shape) * self.wire_dtype.itemsize

    # on a client

    def spread(self, clients: int, rows: Tensor | None = None) -> Tensor:
        """What every client has of it: all (C, …), or these rows (C, L) of a table, (C, L, …)."""
        return self.dense() if rows is None else rows_of(self.dense(), rows, own=True)

    def typical(self) -> "Field":
        """What a client gets that the server does not know: the mean of what these clients got."""
        value = self.dense()
        return Each(value.double().mean(0, keepdim=True).to(value.dtype), self.private)

    def write_to(self, tables: Tensor, ids: Tensor) -> None:
        """Write the values of these clients (C,) to their places in (N, …)."""
        tables[ids] = self.dense()

    # on the server

    @property
    def origin(self) -> Tensor | float:
        """What `add_weighted` counts from."""
        return 0.0

    def add_weighted(self, weights: Tensor, total: Tensor | None) -> Tensor:
        """The sum of w_c (x_c − origin) over clients, in double precision, added to the sum so far."""
        part: Tensor = torch.tensordot(weights, self._own_values().double(), dims=1)
        return part if total is None else total + part

    def add_to(self, total: Tensor) -> None:
        """Add the sum over clients to a tensor of one client's shape, in place."""
        total += self._own_values().to(total.dtype).sum(0)

    def _own_values(self) -> Tensor:
        if not self.own:
            raise TypeError("what clients have alike is neither summed nor averaged over them")
        return self.dense()

    def _listed(self) -> Tensor:
        """(C, …), or (1, …) where all clients have the same."""
        return self.dense()

    def held(self) -> Tensor:
        """Every number it holds, in any shape."""
        return self.dense()

    def norms(self, sent: "Field | None", clients: int) -> Tensor:
        """(C,) of the clients' changes against what was sent, where that is of the same shape."""
        value = self._listed()
        if sent is not None:
            base = sent.dense()
            if base.shape in (value.shape, value.shape[1:]):
                value = value.to(torch.float64) - base
        norms: Tensor = torch.linalg.vector_norm(value.reshape(len(value), math.prod(value.shape[1:])).double(), dim=1)
        return norms

    def item_rows(self, items: int, clients: int) -> Tensor | None:
        """(C, M, K) where it has real numbers for each of M items, or (1, M, K) of one value for all."""
        value = self._listed()
        fits = value.dim() > 1 and value.shape[1] == items and value.is_floating_point()
        return value.reshape(len(value), items, math.prod(value.shape[2:])) if fits else None

    # under a privacy mechanism or in a secure sum

    def uncovered(self) -> str:
        """Why noise cannot cover it; empty where it can."""
        if not self.own:
            return "is one value for all clients; noise needs one for each of them"
        kind = str(self.wire_dtype).removeprefix("torch.")
        real = self.wire_dtype.is_floating_point
        return "" if real else f"is of type {kind}: noise can be added to real numbers alone"

    def against(self, sent: "Field | None") -> Change:
        """What the clients added to what was sent to them under that name."""
        whole, base = self.dense(), self._base(sent)
        return Change(whole.clone() if base is None else whole - base, base)

    def _base(self, sent: "Field | None") -> Tensor | None:
        return sent.dense() if sent is not None and sent.one_shape == self.one_shape else None

    def noisy(self, value: Tensor) -> "Field":
        """What is sent in its place: values (C, …) with noise on each."""
        return Each(value)

    def of_one(self) -> Tensor:
        """The only client's value, in double precision."""
        return self.dense()[0].double()

    def of_sum(self, value: Tensor) -> "Field":
        """A field of one client that stands for all, from as many numbers as a client's value has."""
        return Each(value.view(1, *self.one_shape), self.private)


@dataclass(frozen=True)
class Shared(Field):
    """One value that every client of the payload gets or sends alike."""

    kind: ClassVar[str] = "shared"
    own: ClassVar[bool] = False
    alike: ClassVar[bool] = True
    value: Tensor

    def _form(self) -> tuple[Sequence[int], torch.dtype]:
        return self.value.shape, self.value.dtype

    def nbytes(self, clients: int) -> int:
        """The value once for each client."""
        return clients * self.value.nbytes

    def dense(self) -> Tensor:
        """The value itself."""
        return self.value

    def only(self, places: Tensor, clients: int) -> "Shared":
        """All have the same."""
        return self

    def joined(self, others: Sequence[Field], counts: Sequence[int]) -> "Shared":
        """All have the same."""
        return self

    def encoded(self, clients: int) -> tuple[dict[str, Any], State]:
        """The value once; nothing in it is private."""
        return {}, super().encoded(clients)[1]

    @classmethod
    def decoded(cls, told: Mapping[str, Any], wire: Wire) -> "Shared":
        """Any value."""
        return cls(wire.take("field"))

    def most_bytes(self, clients: int) -> int:
        """The value once, for however many clients."""
        return self.value.nbytes

    def spread(self, clients: int, rows: Tensor | None = None) -> Tensor:
        """The value, seen by every client."""
        return self.value.expand(clients, *self.value.shape) if rows is None else rows_of(self.value, rows, own=False)

    def typical(self) -> "Shared":
        """What all get."""
        return self

    def _listed(self) -> Tensor:
        return self.value[None]


@dataclass(frozen=True)
class Each(Field):
    """A value per client: leading axis C. `private` values are what a privacy mechanism has to cover."""

    kind: ClassVar[str] = "each"
    value: Tensor
    private: bool = True

    def _form(self) -> tuple[Sequence[int], torch.dtype]:
        return self.value.shape[1:], self.value.dtype

    def nbytes(self, clients: int) -> int:
        """The values themselves."""
        return self.value.nbytes

    def dense(self) -> Tensor:
        """The value itself."""
        return self.value

    def only(self, places: Tensor, clients: int) -> "Each":
        """The values of some."""
        return Each(self.value[places], self.private)

    @classmethod
    def decoded(cls, told: Mapping[str, Any], wire: Wire) -> "Each":
        """A value for every client."""
        value = wire.take("field")
        if value.shape[:1] != (wire.clients,):
            raise ValueError(f"{tuple(value.shape)} is not the shape of a value for each of {wire.clients} clients")
        return cls(value, flag(told["private"]))


@dataclass(frozen=True)
class Rows(Field):
    """A whole table per client that differs from `base` only in the rows a client touched.

    The base is one for all clients, or one for each where the server sends them different tables.

    The simulation keeps the touched rows; on the wire goes the whole table, because naming the touched rows
    would tell the server what the client holds. Its bytes are therefore those of the table.
    """

    kind: ClassVar[str] = "each"
    value: Tensor  # (C, L, …) new values of the touched rows
    rows: Tensor  # (C, L)
    real: Tensor  # (C, L)
    base: Tensor  # (M, …) or (C, M, …)
    private: bool = True

    @property
    def own_base(self) -> bool:
        """Whether every client has a base of its own."""
        return self.base.dim() == self.value.dim()

    def _form(self) -> tuple[Sequence[int], torch.dtype]:
        return self.base.shape[self.own_base :], self.base.dtype

    def nbytes(self, clients: int) -> int:
        """A whole table each."""
        return self.base.nbytes if self.own_base else clients * self.base.nbytes

    def change(self) -> Tensor:
        """(C, L, …) what the clients added to the base; zero on padding."""
        mask = self.real.view(*self.real.shape, *[1] * (self.value.dim() - 2))
        return (self.value - rows_of(self.base, self.rows, self.own_base)) * mask

    def dense(self) -> Tensor:
        """(C, M, …) the tables written out."""
        out = self.base.new_empty(len(self.value), *self.one_shape)
        self.write_to(out, torch.arange(len(out)))
        return out

    def write_to(self, tables: Tensor, ids: Tensor) -> None:
        """As any field's, with nothing of the size of the tables beside them."""
        tables[ids] = self.base
        client = ids[:, None].expand_as(self.rows)
        tables[client[self.real], self.rows[self.real]] = self.value[self.real]

    def only(self, places: Tensor, clients: int) -> "Rows":
        """The touched rows of some."""
        base = self.base[places] if self.own_base else self.base
        return Rows(self.value[places], self.rows[places], self.real[places], base, self.private)

    @property
    def origin(self) -> Tensor | float:
        """The base where clients have the same."""
        return 0.0 if self.own_base else self.base

    def add_weighted(self, weights: Tensor, total: Tensor | None) -> Tensor:
        """As the change against the base where clients have the same: that costs only the touched rows."""
        if self.own_base:
            return super().add_weighted(weights, total)
        total = torch.zeros(self.base.shape, dtype=torch.float64) if total is None else total
        change = self.change().double() * weights.view(-1, *[1] * (self.value.dim() - 1))
        return total.index_add_(0, self.rows.flatten(), change.flatten(0, 1))

    def against(self, sent: Field | None) -> Change:
        """Only of touched rows where what was sent is the base; over another one whole tables differ."""
        base = self._base(sent)
        return Change(self.change(), base, self) if base is self.base else super().against(sent)


def rows_of(table: Tensor, rows: Tensor, own: bool) -> Tensor:
    """(C, L, …) these rows (C, L) of one table (M, …), or of each client's own (C, M, …)."""
    if own:
        return rows_at(table, torch.arange(len(rows)), rows)
    return table.index_select(0, rows.flatten()).view(*rows.shape, *table.shape[1:])


def rows_at(tables: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """(C, L, …) rows (C, L) of the tables (N, M, …) at these places (C,); flat, which is faster than two indices."""
    flat = places[:, None] * tables.shape[1] + rows
    return rows_of(tables.flatten(0, 1), flat, own=False)
