"""An upload is looked at before it is used: what does not look as the method's uploads look never reaches a sum."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from tacit.core.fleet import Protection
from tacit.core.local import local_round
from tacit.core.method import Method
from tacit.core.payload import BadPayload, Each, Few, Field, Payload, Product, Rows, Shared, Sparse, State, decode
from tacit.core.store import ClientStore
from tacit.data.cohort import Federation
from tacit.data.interactions import Interactions
from tacit.data.splits import split

TYPICAL = 100.0  # root mean square of a change, at most, where nobody says otherwise
ROOM = 64 << 10  # bytes of headers


class Refused(ValueError):
    """An upload that is not used, and why."""


def made_up(n_items: int) -> Federation:
    """One client of one user with one interaction: enough to try things on where there are no data."""
    first = np.zeros(1, dtype=np.int64)
    items = np.array([str(i) for i in range(n_items)], dtype=np.str_)
    return Federation.of_users(split(Interactions("made up", first, first, None, np.array(["0"]), items), "strict"))


def template(
    method: Method, server: State, client: int, round: int, n_items: int, protection: Protection | None = None
) -> Payload:
    """What an upload of one client looks like: the method's own, from a made-up client."""
    federation = made_up(n_items)
    ids = torch.zeros(1, dtype=torch.long)
    down = method.downlink(server, torch.tensor([client]))
    data = method.data(federation, ids, round)
    up = local_round(method, ClientStore(method, federation).read(data, training=True), down, data)[1]
    return protection(up, down, 0, round) if protection else up


def most_bytes(like: Payload, clients: int) -> int:
    """The size of the largest upload that so many clients can have."""
    total = ROOM + clients * 8
    for field in like.fields.values():
        if isinstance(field, Sparse):
            total += clients * (8 + math.prod(field.shape) * (field.wire_index.itemsize + 4))
        else:
            value = field.dense()
            total += (1 if isinstance(field, Shared) else clients) * value.nbytes
    return total


def checked(blob: bytes, like: Payload, down: Payload, users: int, n_items: int, max_norm: float = 0.0) -> Payload:
    """The upload of the clients that `down` went to; raises Refused with the reason.

    `users` is the most users a client has. `max_norm` bounds the norm of a client's change in every field against
    what it was sent, or of the field itself where nothing of that name was sent; 0: `TYPICAL` for each value.
    """
    if len(blob) > most_bytes(like, len(down.ids)):
        raise Refused(f"{len(blob):,} bytes, more than {most_bytes(like, len(down.ids)):,}")
    try:
        up = decode(blob, most_bytes(like, len(down.ids)))
    except BadPayload as error:
        raise Refused(str(error)) from error
    if sorted(up.ids.tolist()) != sorted(down.ids.tolist()):
        raise Refused("it is not from the clients that were asked")
    if set(up.fields) != set(like.fields):
        raise Refused(f"its fields are {_few(up.fields)}, not {_few(like.fields)}")
    order = {client: place for place, client in enumerate(down.ids.tolist())}
    sent = down.only(torch.tensor([order[client] for client in up.ids.tolist()], dtype=torch.long))
    for name, field in up.fields.items():
        _check_form(name, field, like.fields[name])
        _check_values(name, field, sent.fields.get(name), len(up.ids), max_norm, float(users * n_items))
    return up


def plausible(up: Payload, down: Payload, clients: int, users: int, n_items: int, max_norm: float = 0.0) -> None:
    """Refuse a secure sum that honest clients could not have given: what can be checked where no summand is seen.

    A weighted mean is within a client's own bound; a plain sum within that of all of them.
    """
    mean = "weight" in up
    for name, field in up.fields.items():
        sent = down.fields.get(name) if mean else None
        _check_values(name, field, sent, 1, max_norm, float(users * n_items), 1 if mean else clients)


def _few(names: Iterable[object]) -> str:
    text = ", ".join(sorted(map(str, names)))
    return text if len(text) < 200 else text[:200] + "…"


def _check_form(name: str, field: Field, like: Field) -> None:
    kind = Each if isinstance(like, Rows | Product) else type(like)  # both are written out on the wire
    if type(field) is not kind:
        raise Refused(f"'{name}' is {type(field).__name__.lower()}, not {kind.__name__.lower()}")
    if not isinstance(like, Shared | Few) and not isinstance(field, Shared | Few) and field.private != like.private:
        raise Refused(f"'{name}' is marked {'private' if field.private else 'public'}, and is not")
    if isinstance(field, Sparse) and isinstance(like, Sparse):
        if field.shape != like.shape:
            raise Refused(f"'{name}' has the shape {field.shape}, not {like.shape}")
        if field.value.dtype != torch.float32:
            raise Refused(f"'{name}' holds {field.value.dtype}, not torch.float32")
        return
    value, model = field.dense(), like.dense()
    if value.dtype != model.dtype:
        raise Refused(f"'{name}' holds {value.dtype}, not {model.dtype}")
    first = 0 if isinstance(like, Shared) else 1
    if value.shape[first:] != model.shape[first:]:
        raise Refused(f"'{name}' has the shape {tuple(value.shape[first:])}, not {tuple(model.shape[first:])}")


def _check_values(
    name: str, field: Field, sent: Field | None, clients: int, max_norm: float, most: float, times: int = 1
) -> None:
    value = field.value if isinstance(field, Sparse) else field.dense()
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise Refused(f"'{name}' holds values that are not finite")
    if name == "weight":
        if bool((value < 0).any()) or bool((value > most).any()):
            raise Refused(f"'weight' is outside 0 to {most:,.0f}")
        return
    norm, size = _norm(field, sent, clients)
    bound = times * (max_norm or TYPICAL * math.sqrt(size))
    if len(norm) and float(norm.max()) > bound:
        raise Refused(f"'{name}' has a norm of {float(norm.max()):.3g}, more than {bound:.3g}")


def _norm(field: Field, sent: Field | None, clients: int) -> tuple[Tensor, int]:
    """(C,) norms of the clients' changes, and how many values each has."""
    if isinstance(field, Sparse):
        square = torch.zeros(clients, dtype=torch.float64)
        return square.index_add_(0, field.client, field.value.double() ** 2).sqrt(), math.prod(field.shape)
    value = field.dense()
    value = value[None] if isinstance(field, Shared) else value
    if sent is not None:
        base = sent.dense()
        if base.shape in (value.shape, value.shape[1:]):
            value = value.to(torch.float64) - base
    flat = value.reshape(len(value), -1)
    return torch.linalg.vector_norm(flat.double(), dim=1), flat.shape[1]
