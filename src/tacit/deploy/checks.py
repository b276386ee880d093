"""Uploads are checked before they are used: what does not look like the method's own never reaches a sum."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.core.aggregate import EVERYBODY
from tacit.core.bounds import TYPICAL, USUAL, bounded, heaviest, made_up, made_up_upload, overweight, reach
from tacit.core.capabilities import Telling
from tacit.core.fleet import Protection
from tacit.core.method import Method
from tacit.core.payload import BadPayload, Field, Payload, State, decode

ROOM = 64 << 10  # bytes of headers
HAIR = 1e-6  # for rounding to float32


class Refused(ValueError):
    """An upload that is not used, and why."""


def template(
    method: Method, server: State, client: int, round: int, n_items: int, protection: Protection | None = None
) -> Payload:
    """What an upload of one client looks like: the method's own, from a made-up client."""
    down, up = made_up_upload(method, server, client, round, made_up(n_items))
    return protection(up, down, 0, round) if protection else up


def most_bytes(like: Payload, clients: int) -> int:
    """The size of the largest upload that this many clients can have."""
    return ROOM + clients * 8 + sum(field.most_bytes(clients) for field in like.fields.values())


def checked(
    blob: bytes,
    like: Payload,
    down: Payload,
    users: int,
    n_items: int,
    max_norm: float = 0.0,
    sizes: Tensor | None = None,
    method: Method | None = None,
) -> Payload:
    """The upload of the clients that `down` went to, in their order; raises Refused with the reason.

    `users` is the most users a client has. `max_norm` bounds the norm of a client's change in every field against
    what it was sent, or of the field itself where nothing of that name was sent; 0: `TYPICAL` for each value. `sizes`
    (C,) are the interactions that the clients announced: nobody weighs more, and where the `method` can tell, nobody
    sends what no history of that length gives.
    """
    try:
        up = decode(blob, most_bytes(like, len(down.ids)), like.kinds())
    except BadPayload as error:
        raise Refused(str(error)) from error
    if sorted(up.ids.tolist()) != sorted(down.ids.tolist()):
        raise Refused("it is not from the clients that were asked")
    order = {client: place for place, client in enumerate(down.ids.tolist())}
    for name, field in up.fields.items():
        _check_form(name, field, like.fields[name])
    if up.ids.tolist() != down.ids.tolist():
        up = up.only(torch.tensor([order[client] for client in up.ids.tolist()], dtype=torch.long).argsort())
    for name, field in up.fields.items():
        _check_values(name, field, down.fields.get(name), len(up.ids), max_norm, float(users * n_items))
    if sizes is not None:
        reason = overweight(up, like, sizes)
        if not reason and isinstance(method, Telling):
            reason = method.impossible(up, down, sizes, users, n_items)
        if reason:
            raise Refused(reason)
    return up


def checked_sum(
    blob: bytes, like: Payload, down: Payload, sizes: Tensor, limits: Mapping[str, float], max_norm: float = 0.0
) -> tuple[Payload, State]:
    """One upload for all clients that `down` went to, and how far each of them moved, by field; or Refused.

    It weighs no more, and is no farther from what was sent, than these clients could bring it together: a node can do
    to a model what it could do with their single uploads. With `limits`, to which it clips each client, it says beside
    it how far their largest rows moved before that; rows beyond what follows from this are clipped.
    """
    clients = len(down.ids)
    kinds = dict.fromkeys([*like.fields, *(USUAL + n for n in limits)], "each")
    try:
        up = decode(blob, most_bytes(like, 1) + 4 * clients * len(limits), kinds)
    except BadPayload as error:
        raise Refused(str(error)) from error
    if up.ids.tolist() != EVERYBODY.tolist():
        raise Refused("it is not one upload for all clients of the node")
    norms = {n: _norms(up.fields[USUAL + n], clients) for n in limits}
    up = Payload(up.ids, {n: f for n, f in up.fields.items() if n in like.fields})
    for name, field in up.fields.items():
        _check_form(name, field, like.fields[name])
    plausible(up, down, like, sizes, max_norm)
    weight = float(up["weight"]) if "weight" in up else None
    most = heaviest(like, sizes) if weight is not None else sizes
    rows = {n: reach(norms[n], limit, most, weight) * (1 + HAIR) for n, limit in limits.items()}
    return bounded(up, down, rows)[0], norms


def _norms(field: Field, clients: int) -> Tensor:
    """(C,) how far a node says that its clients moved."""
    value = field.dense()
    if value.dtype != torch.float32 or value.shape != (1, clients):
        raise Refused(f"it does not say how far each of {clients:,} clients moved")
    if not bool((value >= 0).all()) or not bool(torch.isfinite(value).all()):
        raise Refused("what it says of how far clients moved is no length")
    return value[0].double()


def plausible(up: Payload, down: Payload, like: Payload, sizes: Tensor, max_norm: float = 0.0) -> None:
    """Refuse a sum that honest clients could not have given: what can be checked where no summand is seen.

    A weighted mean is within a client's own bound; a plain sum within that of all of them. Together clients weigh no
    more than each of them may; `sizes` (C,) are the interactions that they announced.
    """
    mean = "weight" in up
    most = float(heaviest(like, sizes).sum()) * (1 + HAIR) if mean else 0.0
    for name, field in up.fields.items():
        sent = down.fields.get(name) if mean else None
        _check_values(name, field, sent, 1, max_norm, most, 1 if mean else len(sizes))


def _check_form(name: str, field: Field, like: Field) -> None:
    if field.private != like.private:
        raise Refused(f"'{name}' is marked {'private' if field.private else 'public'}, and is not")
    if field.wire_dtype != like.wire_dtype:
        raise Refused(f"'{name}' holds {field.wire_dtype}, not {like.wire_dtype}")
    if field.one_shape != like.one_shape:
        raise Refused(f"'{name}' has the shape {field.one_shape}, not {like.one_shape}")


def _check_values(
    name: str, field: Field, sent: Field | None, clients: int, max_norm: float, most: float, times: int = 1
) -> None:
    value = field.held()
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise Refused(f"'{name}' holds values that are not finite")
    if name == "weight":
        if bool((value < 0).any()) or bool((value > most).any()):
            raise Refused(f"'weight' is outside 0 to {most:,.0f}")
        return
    norm = field.norms(sent, clients)
    bound = times * (max_norm or TYPICAL * math.sqrt(math.prod(field.one_shape)))
    if len(norm) and float(norm.max()) > bound:
        raise Refused(f"'{name}' has a norm of {float(norm.max()):.3g}, more than {bound:.3g}")
