"""Fields that hold less than they stand for: cells, factors, a few values, some columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core.fields import Change, Each, Field, Rows, State, rows_at
from tacit.core.reading import Wire, flag, shape_of, whole
from tacit.errors import UserError


@dataclass(frozen=True)
class Sparse(Field):
    """A value per client that is zero almost everywhere: cells of a `shape`, by flat index, and what they hold.

    On the wire a cell is its index (4 bytes where that is enough, else 8) and a float32.
    """

    kind: ClassVar[str] = "sparse"
    client: Tensor  # (n,) whose cell it is, as a place in the payload's ids
    index: Tensor  # (n,)
    value: Tensor  # (n,)
    shape: tuple[int, ...]
    private: bool = True

    def _form(self) -> tuple[Sequence[int], torch.dtype]:
        return self.shape, torch.float32

    @property
    def wire_index(self) -> torch.dtype:
        """The type an index travels in."""
        return torch.int32 if math.prod(self.shape) <= 2**31 else torch.int64

    def nbytes(self, clients: int) -> int:
        """Indices and values."""
        return len(self.value) * (self.wire_index.itemsize + 4)

    def dense(self) -> Tensor:
        """(C, *shape), for clients up to the last one that has a cell; only small shapes can afford it."""
        return self._written_out(int(self.client.max()) + 1 if len(self.client) else 0)

    def _written_out(self, clients: int) -> Tensor:
        size = math.prod(self.shape)
        flat = torch.zeros(clients * size, dtype=self.value.dtype)
        return flat.scatter_add_(0, self.client * size + self.index, self.value).view(clients, *self.shape)

    def only(self, places: Tensor, clients: int) -> "Sparse":
        """The cells of some, at their new places."""
        new = torch.full((clients,), -1).index_put((places,), torch.arange(len(places)))[self.client]  # (n,)
        kept = new >= 0
        return Sparse(new[kept], self.index[kept], self.value[kept], self.shape, self.private)

    def joined(self, others: Sequence[Field], counts: Sequence[int]) -> "Sparse":
        """The cells of all, at their new places."""
        parts = [self, *(f for f in others if isinstance(f, Sparse))]
        start = torch.tensor([0, *counts]).cumsum(0)
        client = torch.cat([f.client + s for f, s in zip(parts, start, strict=False)])
        index, value = torch.cat([f.index for f in parts]), torch.cat([f.value for f in parts])
        return Sparse(client, index, value, self.shape, self.private)

    def encoded(self, clients: int) -> tuple[dict[str, Any], State]:
        """How many cells each client has, and the cells in the order of clients."""
        order = torch.argsort(self.client, stable=True)
        return {"private": self.private, "shape": list(self.shape)}, {
            "cells": torch.bincount(self.client, minlength=clients),
            "index": self.index[order].to(self.wire_index),
            "field": self.value[order].float(),
        }

    @classmethod
    def decoded(cls, told: Mapping[str, Any], wire: Wire) -> "Sparse":
        """Cells that add up and lie within their shape."""
        shape = shape_of(told["shape"], least=1)
        cells, index = wire.take("cells", torch.int64, dim=1), wire.take("index", torch.int32, torch.int64, dim=1)
        value = wire.take("field", torch.float32, dim=1)
        # each is bounded before their sum, which could wrap
        bad = len(cells) != wire.clients or bool(((cells < 0) | (cells > len(index))).any())
        if bad or not int(cells.sum()) == len(value) == len(index):
            raise ValueError("its cells do not add up")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < math.prod(shape):
            raise ValueError("a cell is outside its shape")
        owner = torch.repeat_interleave(torch.arange(len(cells)), cells)
        return cls(owner, index.long(), value, shape, flag(told["private"]))

    def most_bytes(self, clients: int) -> int:
        """Every cell of every client."""
        return clients * (8 + math.prod(self.shape) * (self.wire_index.itemsize + 4))

    def typical(self) -> Field:
        """There is none."""
        raise UserError("this method sends every client cells of its own; a newcomer has to wait for the next run")

    def write_to(self, tables: Tensor, ids: Tensor) -> None:
        """Write whole tables; only small shapes can afford it."""
        tables[ids] = self._written_out(len(ids))

    def add_weighted(self, weights: Tensor, total: Tensor | None) -> Tensor:
        """A mean of cells is not there: their sum is."""
        raise TypeError("cells have no dense value per client to average")

    def add_to(self, total: Tensor) -> None:
        """Add the cells of all clients to a tensor of the field's shape, in place."""
        total.view(-1).scatter_add_(0, self.index, self.value.to(total.dtype))

    def held(self) -> Tensor:
        """What the cells hold."""
        return self.value

    def norms(self, sent: Field | None, clients: int) -> Tensor:
        """(C,) those of the cells: nothing of their kind is sent to clients."""
        square = torch.zeros(clients, dtype=torch.float64)
        return square.index_add_(0, self.client, self.value.double() ** 2).sqrt()

    def item_rows(self, items: int, clients: int) -> Tensor | None:
        """The absolute values of an item's cells, summed: which cells are named tells more than any model could."""
        if items not in self.shape:
            return None
        axis = max(a for a, length in enumerate(self.shape) if length == items)
        item = self.index // math.prod(self.shape[axis + 1 :]) % items
        flat = torch.zeros(clients * items, dtype=self.value.dtype)
        return flat.index_add_(0, self.client * items + item, self.value.abs()).view(clients, items, 1)

    def uncovered(self) -> str:
        """Its cells are named."""
        return (
            "is sparse: which cells it names tells more than noise on them could hide; "
            "tally has central differential privacy of its own: --set epsilon=8"
        )

    def of_one(self) -> Tensor:
        """The only client's cells, written out."""
        out = torch.zeros(self.shape, dtype=torch.float64)
        self.add_to(out)
        return out

    def of_sum(self, value: Tensor) -> "Sparse":
        """Every cell of the shape."""
        return Sparse(torch.zeros(len(value)).long(), torch.arange(len(value)), value, self.shape, self.private)


@dataclass(frozen=True)
class Product(Field):
    """A square matrix per client, M × M, as the product of two thin ones.

    The simulation keeps the factors; on the wire goes the matrix, whose factors the server is not to see. Its bytes are
    therefore those of the matrix.
    """

    kind: ClassVar[str] = "each"
    left: Tensor  # (C, M, r)
    right: Tensor  # (C, M, r)
    private: bool = True

    def _form(self) -> tuple[Sequence[int], torch.dtype]:
        return (self.left.shape[1],) * 2, self.left.dtype

    def nbytes(self, clients: int) -> int:
        """A whole matrix each."""
        return self.most_bytes(clients)

    def dense(self) -> Tensor:
        """(C, M, M) the matrices written out."""
        return self.left @ self.right.mT

    def only(self, places: Tensor, clients: int) -> "Product":
        """The factors of some."""
        return Product(self.left[places], self.right[places], self.private)

    def add_to(self, total: Tensor) -> None:
        """Add the sum over clients to an (M, M) tensor in place: one product for all of them."""
        left, right = (x.transpose(0, 1).flatten(1) for x in (self.left, self.right))  # (M, C · r)
        total.addmm_(left.to(total.dtype), right.to(total.dtype).T)


@dataclass(frozen=True)
class Few(Field):
    """One of a few values for each client: what the clients of a group get alike. Groups may differ in the last axis.

    On the wire go the values that anyone of the payload gets, once; who gets which is an address, like the ids.
    """

    kind: ClassVar[str] = "few"
    own: ClassVar[bool] = False
    values: tuple[Tensor, ...]  # (…, d_g) by group
    group: Tensor  # (C,)
    width: int  # the longest last axis

    def _form(self) -> tuple[Sequence[int], torch.dtype]:
        return (*self.values[0].shape[:-1], self.width), self.values[0].dtype

    def nbytes(self, clients: int) -> int:
        """Each client's value."""
        each = torch.tensor([value.nbytes for value in self.values])
        return int(each[self.group].sum())

    @property
    def stack(self) -> Tensor:
        """(G, …, d) the values with zeros behind the shorter ones."""
        return torch.stack([F.pad(value, (0, self.width - value.shape[-1])) for value in self.values])

    def dense(self) -> Tensor:
        """(C, …, d) every client's value with zeros behind it."""
        return self.stack[self.group]

    def only(self, places: Tensor, clients: int) -> "Few":
        """The same values for fewer clients."""
        return Few(self.values, self.group[places], self.width)

    def joined(self, others: Sequence[Field], counts: Sequence[int]) -> "Few":
        """The same values for more clients."""
        groups = [f.group for f in (self, *others) if isinstance(f, Few)]
        return Few(self.values, torch.cat(groups), self.width)

    def encoded(self, clients: int) -> tuple[dict[str, Any], State]:
        """Of values that nobody gets, no column."""
        used = set(self.group.tolist())
        sent = [value if place in used else value[..., :0] for place, value in enumerate(self.values)]
        tensors = {str(place): x.clone(memory_format=torch.contiguous_format) for place, x in enumerate(sent)}
        return {"values": len(sent), "width": self.width}, tensors | {"group": self.group.clone()}

    @classmethod
    def decoded(cls, told: Mapping[str, Any], wire: Wire) -> "Few":
        """Values that go together, and one of them for every client."""
        count, width = whole(told["values"]), whole(told["width"])
        values = tuple(wire.take(str(place)) for place in range(count))
        group = wire.take("group", torch.int64, dim=1)
        if len(group) != wire.clients or not values:
            raise ValueError("it does not say who gets which of its values")
        if len(group) and not 0 <= int(group.min()) <= int(group.max()) < count:
            raise ValueError("it has no value for some client")
        first = values[0]
        if any(v.dim() == 0 or v.shape[:-1] != first.shape[:-1] or v.shape[-1] > width for v in values):
            raise ValueError("its values do not go together")
        if any(v.dtype != first.dtype for v in values):
            raise ValueError("its values are of different types")
        wire.unfold(count, *first.shape[:-1], width, itemsize=first.element_size())
        return cls(values, group, width)

    def most_bytes(self, clients: int) -> int:
        """Every value once, and who gets which."""
        return len(self.values) * super().most_bytes(1) + 8 * clients

    def spread(self, clients: int, rows: Tensor | None = None) -> Tensor:
        """Rows come from the stack, without a table for every client."""
        return self.dense() if rows is None else rows_at(self.stack, self.group, rows)

    def typical(self) -> "Few":
        """That of the first of these clients' groups: the smallest."""
        return Few(self.values, self.group.min(0, keepdim=True).values, self.width)


@dataclass(frozen=True)
class Cut(Field):
    """A value per client of which it has some columns, those of its group; the others are zero and do not travel.

    Which columns are whose is an address, like the ids.
    """

    kind: ClassVar[str] = "cut"
    of: Each | Rows  # (C, …, d), zero outside the columns
    columns: Tensor  # (C, 2) the first of a client's columns and the first behind them

    @property
    def private(self) -> bool:
        """As what it is cut from."""
        return self.of.private

    def _form(self) -> tuple[Sequence[int], torch.dtype]:
        return self.of.one_shape, self.of.wire_dtype

    def nbytes(self, clients: int) -> int:
        """Only a client's columns."""
        columns = int((self.columns[:, 1] - self.columns[:, 0]).sum())
        return columns * math.prod(self.one_shape[:-1]) * self.wire_dtype.itemsize

    def mask(self) -> Tensor:
        """(C, 1, …, d) true on a client's columns."""
        *before, width = self.one_shape
        place = torch.arange(width)
        inside = (place >= self.columns[:, :1]) & (place < self.columns[:, 1:])
        return inside.view(len(inside), *[1] * len(before), width)

    def dense(self) -> Tensor:
        """(C, …, d) with zeros outside the columns."""
        return self.of.dense()

    def only(self, places: Tensor, clients: int) -> "Cut":
        """The columns of some."""
        return Cut(self.of.only(places, clients), self.columns[places])

    def joined(self, others: Sequence[Field], counts: Sequence[int]) -> "Cut":
        """The columns of all."""
        parts = [self, *(f for f in others if isinstance(f, Cut))]
        value = Each(torch.cat([f.dense() for f in parts]), self.private)
        return Cut(value, torch.cat([f.columns for f in parts]))

    def encoded(self, clients: int) -> tuple[dict[str, Any], State]:
        """The columns one after another."""
        value = self.dense()
        tensors = {"columns": self.columns.clone(), "field": value[self.mask().expand_as(value)]}
        return {"private": self.private, "shape": list(self.one_shape)}, tensors

    @classmethod
    def decoded(cls, told: Mapping[str, Any], wire: Wire) -> "Cut":
        """Columns within a shape that may be unfolded."""
        shape, private = shape_of(told["shape"]), flag(told["private"])
        columns, value = wire.take("columns", torch.int64, dim=2), wire.take("field", dim=1)
        if columns.shape != (wire.clients, 2) or not shape:
            raise ValueError("it does not say which columns are whose")
        first, behind = columns.unbind(1)
        if bool(((first < 0) | (behind < first) | (behind > shape[-1])).any()):
            raise ValueError("it has columns outside its shape")
        wire.unfold(wire.clients, *shape, itemsize=value.element_size())
        if int((behind - first).sum()) * math.prod(shape[:-1]) != len(value):
            raise ValueError("its cells do not add up")
        made = cls(Each(value.new_zeros(wire.clients, *shape), private), columns)
        made.of.value.masked_scatter_(made.mask(), value)
        return made

    def most_bytes(self, clients: int) -> int:
        """All columns, and which they are."""
        return super().most_bytes(clients) + 16 * clients

    def against(self, sent: Field | None) -> Change:
        """What noise falls outside a client's columns is not sent."""
        return self.of.against(sent)

    def noisy(self, value: Tensor) -> "Cut":
        """Only the columns."""
        return Cut(Each(value * self.mask()), self.columns)
