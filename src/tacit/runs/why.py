"""Why an item is on a list: which items of the history brought it there.

Of a linear scorer (tally, EASE, GF-CF) the reasons are exact: what each item of the history adds, and the sum of all is
the score. Of the others the known items nearest to it in the item table are named, which is a likeness and no cause.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core.fleet import SimulatedFleet
from tacit.core.payload import State
from tacit.methods.tally import blended
from tacit.runs.model import Model

Kind = Literal["exact", "nearest", "none"]


@dataclass(frozen=True)
class Reason:
    """An item of the history and what it adds to the score, or how like it is: a cosine."""

    item: str
    title: str
    share: float


@dataclass(frozen=True)
class Why:
    """The reasons of every line of a list, the strongest first."""

    kind: Kind
    reasons: list[list[Reason]]


def why(model: Model, items: Sequence[str], user: str | None = None, had: Sequence[str] = (), most: int = 3) -> Why:
    """Of these recommended items, for a user or for somebody new who has `had`."""
    wanted = [model.item_index(item) for item in items]
    if user is not None:
        row, fleet, server = model.user_index(user), model.run.fleet, model.server
        known = model.run.split.train[row]
    else:
        known = np.array(list(dict.fromkeys(map(model.item_index, had))), dtype=np.int64)
        row, fleet, server = 0, model.newcomer(known), model.for_newcomers
    added = _added(model, fleet, server, row, wanted)
    kind: Kind = "exact"
    if added is None:
        kind, added = "nearest", _likeness(server, known, wanted, model.data.n_items)
    if added is None:
        return Why("none", [[] for _ in items])
    owners, shares = added  # (n,), (n, wanted)
    out = []
    for column in shares.T:
        order = torch.argsort(column, descending=True)[:most].tolist()
        found = [(int(owners[i]), float(column[i])) for i in order]
        out.append([Reason(str(model.data.item_ids[i]), model.data.title(i), v) for i, v in found if v > 0])
    return Why(kind, out)


def _added(
    model: Model, fleet: SimulatedFleet, server: State, user: int, wanted: list[int]
) -> tuple[Tensor, Tensor] | None:
    """(n,) items of the history and (n, wanted) what each adds to a score; None where scores are not such sums."""
    p = served(fleet, server, user)
    n_items = model.data.n_items
    total = torch.zeros(n_items, len(wanted), dtype=torch.float64)
    seen = False
    for rows, parts in _linear(p, n_items):
        seen = True
        total.index_add_(0, rows, parts[:, wanted])
    owners = total.abs().sum(1).nonzero()[:, 0]
    return (owners, total[owners]) if seen else None


def _linear(p: State, n_items: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(n,) items and (n, M) what each adds to all scores, a part at a time."""
    if "history" in p and ("weights" in p or "filter" in p):
        (weights,) = (p[name] for name in ("weights", "filter") if name in p)
        yield _parts(p["history"][0], weights)
    elif {"now", "seen", "B", "E", "blend"} <= set(p):
        blend = float(blended(p))
        inputs = p["inputs"].long() if "inputs" in p and len(p["inputs"]) else torch.arange(n_items)
        for history, matrix, share in ((p["now"], p["B"], 1 - blend), (p["seen"], p["E"], blend)):
            if share > 0 and len(matrix):
                rows, parts = _parts(history, matrix)
                parts = parts - parts.mean(1, keepdim=True)
                whole = parts.sum(0)
                deviation = float(torch.linalg.vector_norm(whole)) / max(n_items - 1, 1) ** 0.5
                yield inputs[rows % len(inputs)], share * parts / max(deviation, 1e-12)


def _parts(history: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    dense = (history.to_dense() if history.layout != torch.strided else history).reshape(-1)
    rows = dense.nonzero()[:, 0]
    return rows, dense[rows, None].double() * matrix[rows].double()


def served(fleet: SimulatedFleet, server: State, user: int) -> State:
    """What a user's client ranks with."""
    ids = torch.tensor([fleet.federation.client_of(user)])
    whole = fleet.federation.people(ids)
    slot = (whole.users == user).nonzero()[:, 1:]  # (1, 1)
    data = whole.with_users(whole.users.gather(1, slot))
    down = fleet.method.downlink(server, ids)
    with torch.no_grad():
        p = fleet.method.serve(fleet.store.read(data), down, data, "test")
    return p | ({"inputs": down["inputs"]} if "inputs" in down else {})


def _likeness(server: State, known: np.ndarray, wanted: list[int], n_items: int) -> tuple[Tensor, Tensor] | None:
    """(n,) known items and (n, wanted) cosines in the server's item table."""
    table = server.get("items")
    if table is None or table.dim() != 2 or len(table) != n_items or not len(known):
        return None
    unit = torch.nn.functional.normalize(table.double(), dim=1)
    mine = torch.from_numpy(known)
    return mine, unit[mine] @ unit[wanted].T
