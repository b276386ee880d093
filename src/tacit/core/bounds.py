"""What one client may do to a mean: no more weight than it announced, no larger change than is usual.

What is usual is the median over a round's clients, and bounds the next round: neither the order nor the chunks in
which uploads arrive show in it, and less than half of the clients cannot raise it beyond what honest ones send.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tacit import rng
from tacit.core.fields import Change
from tacit.core.local import local_round
from tacit.core.method import Method
from tacit.core.payload import Cut, Each, Field, Payload, Rows, State
from tacit.core.store import ClientStore
from tacit.core.trained import Trained
from tacit.data.cohort import Federation
from tacit.data.interactions import Interactions
from tacit.data.splits import split
from tacit.errors import UserError

TYPICAL = 100.0  # root mean square of a change, at most, where nobody says otherwise
BOUND = 1.0  # times what is usual: what a server of strangers allows where nobody says otherwise
USUAL = "usual/"  # and a field's name: where the server's state keeps the median


def made_up(n_items: int, size: int = 2, seed: int = 0) -> Federation:
    """One client of one user with this many training interactions: enough to try things on where there are no data."""
    count = max(1, min(size + 2 if size > 2 else size, n_items - 1))  # the last two of more are held out
    item = rng.generator(seed, "made up").permutation(n_items)[:count]
    user, names = np.zeros(count, dtype=np.int64), np.arange(n_items).astype(np.str_)
    data = Interactions("made up", user, item, np.arange(count, dtype=np.float64), names[:1], names)
    return Federation.of_users(split(data, "strict", seed))


def made_up_upload(
    method: Method, server: State, client: int, round: int, alone: Federation
) -> tuple[Payload, Payload]:
    """(what it is sent, what it uploads) of a made-up client in the place of a real one."""
    data = method.data(alone, torch.zeros(1, dtype=torch.long), round)
    down = method.downlink(server, torch.tensor([client]))
    return down, local_round(method, ClientStore(method, alone).read(data, training=True), down, data)[1]


def boundable(method: Method) -> bool:
    """Whether clients train and upload tables, so that their change can be bounded."""
    alone = made_up(16)
    down, up = made_up_upload(method, method.init_server(alone), 0, 1, alone)
    return isinstance(method, Trained) and bool(bounded(up, down, {})[1])


def heaviest(like: Payload, sizes: Tensor) -> Tensor:
    """(C,) the most that clients with `sizes` (C,) interactions weigh, `like` being a made-up one's upload."""
    weight = float(like["weight"])
    return torch.ones_like(sizes, dtype=torch.float64) if weight == 1 else sizes.double() * max(1.0, weight / 2)


def overweight(up: Payload, like: Payload, sizes: Tensor) -> str:
    """Why the weights of an upload are not those of clients with `sizes` (C,) interactions; empty: they can be.

    `like` is the upload of a made-up client of two interactions: a method or a mechanism under which that one weighs
    one gives everybody a weight of one.
    """
    if "weight" not in up:
        return ""
    weight = up["weight"].double().flatten()
    if float(like["weight"]) == 1:
        return "" if bool((weight == 1).all()) else "'weight' is not 1, which is everybody's here"
    over = (weight > heaviest(like, sizes)) | ~(weight >= 0)
    if not bool(over.any()):
        return ""
    first = int(over.nonzero()[0])
    return f"'weight' is {float(weight[first]):g} of a client that announced {int(sizes[first]):,} interactions"


def bounded(up: Payload, down: Payload, limits: Mapping[str, float]) -> tuple[Payload, State]:
    """Clients' changes clipped to the limits by field, and (C,) how large the largest of each client's was.

    A table is clipped row by row: what an item may gain from a client is what an honest one gives to an item. Anything
    else is clipped as a whole.
    """
    fields, found = dict(up.fields), {}
    for name, field in up.fields.items():
        if name == "weight" or not isinstance(field, Each | Rows | Cut):
            continue
        change = field.against(down.fields.get(name))
        rows = change.value if change.value.dim() > 2 else change.value[:, None]  # (C, L, …)
        norms = rows.flatten(2).double().norm(dim=2)  # (C, L)
        found[name] = norms.max(1).values
        if name in limits and bool((norms > limits[name]).any()):
            factor = (limits[name] / norms.clamp(min=1e-300)).clamp(max=1).to(change.value.dtype)
            fields[name] = _scaled(field, change, factor.view(*norms.shape, *[1] * (rows.dim() - 2)))
    return Payload(up.ids, fields), found


def _scaled(field: Each | Rows | Cut, change: Change, factor: Tensor) -> Field:
    factor = factor if change.value.dim() > 2 else factor[:, 0]
    if isinstance(field, Rows) and change.touched is not None:
        return Rows(field.value - change.value * (1 - factor), field.rows, field.real, field.base, field.private)
    value = Change(change.value * factor, change.base).onto(torch.zeros_like(field.dense()))
    return field.noisy(value) if isinstance(field, Cut) else Each(value, field.private)


def reach(norms: Tensor, limit: float, heaviest: Tensor, weight: float | None) -> float:
    """How far a row of many clients' mean can be at most, or of their sum where they have no weight.

    Their largest rows moved by `norms` (C,) before each was clipped to the limit. Which of them weighs how much of the
    `weight` of all is not known: those that moved the most are taken to weigh as much as anyone may.
    """
    far = norms.double().clamp(max=limit).sort(descending=True).values  # (C,)
    if weight is None:
        return float(far.sum())
    if not weight:
        return limit
    most = heaviest.double().sort(descending=True).values.cumsum(0).clamp(max=weight)
    return float(most.diff(prepend=most.new_zeros(1)) @ far) / weight


def usual(found: Sequence[Mapping[str, Tensor]]) -> State:
    """What the server's state keeps of a round: the median over its clients, by field."""
    names = found[0] if found else ()
    return {USUAL + n: torch.cat([part[n] for part in found]).median()[None] for n in names}


def limits_of(
    method: Method, server: State, ids: Tensor, round: int, federation: Federation, times: float
) -> dict[str, float]:
    """This many times what was usual in the round before.

    Before the first round there is none: the server trains a made-up client of the median announced size itself.
    """
    known = {n.removeprefix(USUAL): x for n, x in server.items() if n.startswith(USUAL)}
    if not known:
        size = max(int(np.median(federation.sizes[ids.numpy()])), 1)
        alone = made_up(federation.n_items, size, federation.seed)
        down, up = made_up_upload(method, server, int(ids[0]), round, alone)
        known = bounded(up, down, {})[1]
        if not known:
            raise UserError(f"{method.name} uploads no table whose change --bound could clip; leave it out")
    return {n: times * float(x) for n, x in known.items()}
