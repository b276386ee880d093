"""What travels between server and clients, with its exact bytes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

State: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Shared:
    """One value that every client of the payload gets or sends alike."""

    value: Tensor

    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send."""
        return clients * self.value.nbytes

    def dense(self) -> Tensor:
        """The value itself."""
        return self.value


@dataclass(frozen=True)
class Each:
    """A value per client: leading axis C. `private` values are what a privacy mechanism has to cover."""

    value: Tensor
    private: bool = True

    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send."""
        return self.value.nbytes

    def dense(self) -> Tensor:
        """The value itself."""
        return self.value


@dataclass(frozen=True)
class Rows:
    """A whole table per client that differs from `base` only in the rows a client touched.

    The base is one for all clients, or one for each where the server sends them different tables.

    The simulation keeps the touched rows; on the wire goes the whole table, because naming the touched rows
    would tell the server what the client holds. Its bytes are therefore those of the table.
    """

    value: Tensor  # (C, L, …) new values of the touched rows
    rows: Tensor  # (C, L)
    real: Tensor  # (C, L)
    base: Tensor  # (M, …) or (C, M, …)
    private: bool = True

    @property
    def own_base(self) -> bool:
        """Whether every client has a base of its own."""
        return self.base.dim() == self.value.dim()

    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send: a whole table each."""
        return self.base.nbytes if self.own_base else clients * self.base.nbytes

    def change(self) -> Tensor:
        """(C, L, …) what the clients added to the base; zero on padding."""
        mask = self.real.view(*self.real.shape, *[1] * (self.value.dim() - 2))
        return (self.value - rows_of(self.base, self.rows, self.own_base)) * mask

    def dense(self) -> Tensor:
        """(C, M, …) the tables written out."""
        out = self.base.new_empty(len(self.value), *self.base.shape[self.own_base :])
        self.write_to(out, torch.arange(len(out)))
        return out

    def write_to(self, tables: Tensor, ids: Tensor) -> None:
        """Write the tables of these clients (C,) to their places in (N, M, …), with nothing of that size beside it."""
        tables[ids] = self.base
        client = ids[:, None].expand_as(self.rows)
        tables[client[self.real], self.rows[self.real]] = self.value[self.real]


def rows_of(table: Tensor, rows: Tensor, own: bool) -> Tensor:
    """(C, L, …) these rows (C, L) of one table (M, …), or of each client's own (C, M, …)."""
    if own:
        return rows_at(table, torch.arange(len(rows)), rows)
    return table.index_select(0, rows.flatten()).view(*rows.shape, *table.shape[1:])


def rows_at(tables: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """(C, L, …) rows (C, L) of the tables (N, M, …) at these places (C,); flat, which is faster than two indices."""
    flat = places[:, None] * tables.shape[1] + rows
    return rows_of(tables.flatten(0, 1), flat, own=False)


@dataclass(frozen=True)
class Sparse:
    """A value per client that is zero almost everywhere: cells of a `shape`, by flat index, and what they hold.

    On the wire a cell is its index (4 bytes where that is enough, else 8) and a float32.
    """

    client: Tensor  # (n,) whose cell it is, as a place in the payload's ids
    index: Tensor  # (n,)
    value: Tensor  # (n,)
    shape: tuple[int, ...]
    private: bool = True

    @property
    def wire_index(self) -> torch.dtype:
        """The type an index travels in."""
        return torch.int32 if math.prod(self.shape) <= 2**31 else torch.int64

    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send."""
        return len(self.value) * (self.wire_index.itemsize + 4)

    def dense(self) -> Tensor:
        """(C, *shape), for clients up to the last one that has a cell; only small shapes can afford it."""
        clients = int(self.client.max()) + 1 if len(self.client) else 0
        size = math.prod(self.shape)
        flat = torch.zeros(clients * size, dtype=self.value.dtype)
        return flat.scatter_add_(0, self.client * size + self.index, self.value).view(clients, *self.shape)

    def add_to(self, total: Tensor) -> None:
        """Add the sum over clients to a tensor of the field's shape, in place."""
        total.view(-1).scatter_add_(0, self.index, self.value.to(total.dtype))


@dataclass(frozen=True)
class Product:
    """A square matrix per client, M × M, as the product of two thin ones.

    The simulation keeps the factors; on the wire goes the matrix, whose factors the server is not to see. Its bytes are
    therefore those of the matrix.
    """

    left: Tensor  # (C, M, r)
    right: Tensor  # (C, M, r)
    private: bool = True

    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send: a whole matrix each."""
        return clients * self.left.shape[1] ** 2 * self.left.element_size()

    def dense(self) -> Tensor:
        """(C, M, M) the matrices written out."""
        return self.left @ self.right.mT

    def add_to(self, total: Tensor) -> None:
        """Add the sum over clients to an (M, M) tensor in place: one product for all of them."""
        left, right = (x.transpose(0, 1).flatten(1) for x in (self.left, self.right))  # (M, C · r)
        total.addmm_(left.to(total.dtype), right.to(total.dtype).T)


@dataclass(frozen=True)
class Few:
    """One of a few values for each client: what the clients of a group get alike. Groups may differ in the last axis.

    On the wire go the values that anyone of the payload gets, once; who gets which is an address, like the ids.
    """

    values: tuple[Tensor, ...]  # (…, d_g) by group
    group: Tensor  # (C,)
    width: int  # the longest last axis

    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send."""
        each = torch.tensor([value.nbytes for value in self.values])
        return int(each[self.group].sum())

    @property
    def stack(self) -> Tensor:
        """(G, …, d) the values with zeros behind the shorter ones."""
        return torch.stack([F.pad(value, (0, self.width - value.shape[-1])) for value in self.values])

    def dense(self) -> Tensor:
        """(C, …, d) every client's value with zeros behind it."""
        return self.stack[self.group]


@dataclass(frozen=True)
class Cut:
    """A value per client of which it has some columns, those of its group; the others are zero and do not travel.

    Which columns are whose is an address, like the ids.
    """

    of: Each | Rows  # (C, …, d), zero outside the columns
    columns: Tensor  # (C, 2) the first of a client's columns and the first behind them

    @property
    def private(self) -> bool:
        """Whether a privacy mechanism has to cover it."""
        return self.of.private

    def nbytes(self, clients: int) -> int:
        """Bytes that all these clients receive or send."""
        value = self.of.value if isinstance(self.of, Each) else self.of.base
        rows = math.prod(value.shape[-1 - self._axes : -1])
        return int((self.columns[:, 1] - self.columns[:, 0]).sum()) * rows * value.element_size()

    @property
    def _axes(self) -> int:
        """Axes of one client's value before the last one."""
        return self.of.value.dim() - 2

    def mask(self) -> Tensor:
        """(C, 1, …, d) true on a client's columns."""
        place = torch.arange(self.of.value.shape[-1])
        inside = (place >= self.columns[:, :1]) & (place < self.columns[:, 1:])
        return inside.view(len(inside), *[1] * self._axes, -1)

    def dense(self) -> Tensor:
        """(C, …, d) with zeros outside the columns."""
        return self.of.dense()


Field: TypeAlias = Shared | Each | Rows | Sparse | Product | Few | Cut


class BadPayload(ValueError):
    """Bytes that are not a payload."""


@dataclass(frozen=True)
class Payload:
    """Named fields for the clients `ids`. The ids are addresses: they are not counted as content."""

    ids: Tensor  # (C,)
    fields: Mapping[str, Field]

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name].dense()

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def nbytes(self) -> int:
        """Content bytes that pass between the server and all these clients."""
        return sum(f.nbytes(len(self.ids)) for f in self.fields.values())

    def only(self, places: Tensor) -> "Payload":
        """The payload of some of its clients, by their places in `ids`."""
        return Payload(self.ids[places], {n: _only(f, places, len(self.ids)) for n, f in self.fields.items()})

    def encode(self) -> bytes:
        """The safetensors layout: a JSON header and raw tensors; nothing in it can execute."""
        tensors: State = {"ids": self.ids}
        kinds: dict[str, dict[str, Any]] = {}
        for name, field in self.fields.items():
            if isinstance(field, Few):
                kinds[name] = {"kind": "few", "values": len(field.values), "width": field.width}
                tensors[f"group.{name}"] = field.group.clone()
                used = set(field.group.tolist())
                for place, value in enumerate(field.values):
                    tensors[f"field.{name}.{place}"] = (value if place in used else value[..., :0]).clone(
                        memory_format=torch.contiguous_format
                    )
                continue
            kinds[name] = {"kind": "shared" if isinstance(field, Shared) else "private" if field.private else "each"}
            if isinstance(field, Cut):
                whole = field.dense()
                kinds[name]["cut"] = list(whole.shape[1:])
                tensors[f"columns.{name}"] = field.columns.clone()
                tensors[f"field.{name}"] = whole[field.mask().expand_as(whole)]
            elif isinstance(field, Sparse):
                order = torch.argsort(field.client, stable=True)
                kinds[name]["shape"] = list(field.shape)
                tensors[f"cells.{name}"] = torch.bincount(field.client, minlength=len(self.ids))
                tensors[f"index.{name}"] = field.index[order].to(field.wire_index)
                tensors[f"field.{name}"] = field.value[order].float()
            else:  # a copy: safetensors refuses one memory under two names
                tensors[f"field.{name}"] = field.dense().clone(memory_format=torch.contiguous_format)
        return save_tensors(tensors, metadata={"kinds": json.dumps(kinds)})


def stacked(parts: Sequence[Payload]) -> Payload:
    """One payload for the clients of all parts, in their order; touched rows are written out as whole tables."""
    start = torch.tensor([0, *(len(part.ids) for part in parts)]).cumsum(0)
    fields: dict[str, Field] = {}
    for name, first in parts[0].fields.items():
        each = [part.fields[name] for part in parts]
        if isinstance(first, Shared):
            fields[name] = first
        elif isinstance(first, Few):
            fields[name] = Few(first.values, torch.cat([f.group for f in each if isinstance(f, Few)]), first.width)
        elif isinstance(first, Cut):
            columns = torch.cat([f.columns for f in each if isinstance(f, Cut)])
            fields[name] = Cut(Each(torch.cat([f.dense() for f in each]), first.private), columns)
        elif isinstance(first, Sparse):
            cells = [f for f in each if isinstance(f, Sparse)]
            fields[name] = Sparse(
                torch.cat([f.client + s for f, s in zip(cells, start, strict=False)]),
                torch.cat([f.index for f in cells]),
                torch.cat([f.value for f in cells]),
                first.shape,
                first.private,
            )
        else:
            fields[name] = Each(torch.cat([f.dense() for f in each]), first.private)
    return Payload(torch.cat([part.ids for part in parts]), fields)


def _only(field: Field, places: Tensor, clients: int) -> Field:
    if isinstance(field, Shared):
        return field
    if isinstance(field, Sparse):
        new = torch.full((clients,), -1).index_put((places,), torch.arange(len(places)))[field.client]  # (n,)
        kept = new >= 0
        return Sparse(new[kept], field.index[kept], field.value[kept], field.shape, field.private)
    if isinstance(field, Rows):
        base = field.base[places] if field.own_base else field.base
        return Rows(field.value[places], field.rows[places], field.real[places], base, field.private)
    if isinstance(field, Product):
        return Product(field.left[places], field.right[places], field.private)
    if isinstance(field, Few):
        return Few(field.values, field.group[places], field.width)
    if isinstance(field, Cut):
        of = _only(field.of, places, clients)
        assert isinstance(of, Each | Rows)
        return Cut(of, field.columns[places])
    return Each(field.value[places], field.private)


def decode(blob: bytes, most: float = math.inf) -> Payload:
    """Rebuild a payload; anything malformed raises BadPayload, as does what would unfold to more than `most` bytes."""
    try:
        tensors = load_tensors(blob)
        length = int.from_bytes(blob[:8], "little")
        kinds = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"]["kinds"])
        ids = tensors["ids"]
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise ValueError("ids are not a list of whole numbers")
        return Payload(ids, {n: _field(n, kind, tensors, most) for n, kind in kinds.items()})
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadPayload(f"not a payload: {error}") from error


def _field(name: str, kind: dict[str, Any], tensors: State, most: float) -> Field:
    if kind["kind"] == "few":
        return _few(name, int(kind["values"]), int(kind["width"]), tensors)
    value, clients = tensors[f"field.{name}"], len(tensors["ids"])
    if kind["kind"] == "shared":
        return Shared(value)
    if kind["kind"] not in ("private", "each"):
        raise KeyError(kind["kind"])
    private = kind["kind"] == "private"
    if "cut" in kind:
        return _cut(name, tuple(int(n) for n in kind["cut"]), private, tensors, most)
    if "shape" in kind:
        return _sparse(name, tuple(int(n) for n in kind["shape"]), private, tensors)
    if value.shape[:1] != (clients,):
        raise ValueError(f"'{name}' of shape {tuple(value.shape)} is not a value for each of {clients} clients")
    return Each(value, private)


def _sparse(name: str, shape: tuple[int, ...], private: bool, tensors: State) -> Sparse:
    cells, index, value = (tensors[f"{part}.{name}"] for part in ("cells", "index", "field"))
    whole = {cells.dtype, index.dtype} <= {torch.int32, torch.int64}
    if not whole or {cells.dim(), index.dim(), value.dim()} != {1} or min(shape, default=0) < 1:
        raise ValueError(f"'{name}' is not a list of cells")
    if len(cells) != len(tensors["ids"]) or (cells < 0).any() or not int(cells.sum()) == len(value) == len(index):
        raise ValueError(f"'{name}' has cells that do not add up")
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < math.prod(shape):
        raise ValueError(f"'{name}' has a cell outside its shape")
    owner = torch.repeat_interleave(torch.arange(len(cells)), cells)
    return Sparse(owner, index.long(), value, shape, private)


def _few(name: str, count: int, width: int, tensors: State) -> Few:
    values = tuple(tensors[f"field.{name}.{place}"] for place in range(count))
    group = tensors[f"group.{name}"]
    if group.dtype != torch.int64 or group.shape != tensors["ids"].shape or not values:
        raise ValueError(f"'{name}' does not say who gets which of its values")
    if len(group) and not 0 <= int(group.min()) <= int(group.max()) < count:
        raise ValueError(f"'{name}' has no value for some client")
    if any(v.dim() == 0 or v.shape[:-1] != values[0].shape[:-1] or v.shape[-1] > width for v in values):
        raise ValueError(f"'{name}' has values that do not go together")
    return Few(values, group, width)


def _cut(name: str, shape: tuple[int, ...], private: bool, tensors: State, most: float) -> Cut:
    columns, value, clients = tensors[f"columns.{name}"], tensors[f"field.{name}"], len(tensors["ids"])
    if columns.dtype != torch.int64 or columns.shape != (clients, 2) or not shape or min(shape) < 0 or value.dim() != 1:
        raise ValueError(f"'{name}' does not say which columns are whose")
    first, behind = columns.unbind(1)
    if bool(((first < 0) | (behind < first) | (behind > shape[-1])).any()):
        raise ValueError(f"'{name}' has columns outside its shape")
    if int((behind - first).sum()) * math.prod(shape[:-1]) != len(value):
        raise ValueError(f"'{name}' has cells that do not add up")
    if clients * math.prod(shape) * value.element_size() > most:
        raise ValueError(f"'{name}' of the shape {shape} is more than {most:,.0f} bytes")
    whole = Cut(Each(value.new_zeros(clients, *shape), private), columns)
    whole.of.value.masked_scatter_(whole.mask(), value)
    return whole
