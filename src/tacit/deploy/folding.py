"""On a node: one upload for all of its clients, where the server needs no more than their sum."""

import torch

from tacit.core.aggregate import one_for_all
from tacit.core.bounds import USUAL
from tacit.core.fleet import Sent, SimulatedFleet, Traffic
from tacit.core.payload import Each, Payload
from tacit.errors import UserError


def trained(
    fleet: SimulatedFleet, sent: Sent, down: Payload, round: int, traffic: Traffic, fold: object
) -> list[Payload]:
    """What the clients of a round upload: each of them, or with `fold` one for all.

    `fold` has the limits by field that every client's change is clipped to before it is added; empty: none. With limits
    the clients' own changes go along, in order of size, so that nobody's is told: the server takes their median.
    """
    if fold is None:
        return list(fleet.train_on(sent, down.ids, round, traffic))
    limits = _limits(fold)
    one = one_for_all(fleet.train_on(sent, down.ids, round, traffic, limits or None), down)
    norms = {USUAL + n: torch.cat([part[n] for part in traffic.norms]).sort().values for n in limits}
    return [Payload(one.ids, {**one.fields, **{n: Each(x.float()[None], False) for n, x in norms.items()}})]


def _limits(fold: object) -> dict[str, float]:
    """What the server may ask for: a length by the name of a field."""
    if not isinstance(fold, dict) or not all(type(x) in (int, float) and x >= 0 for x in fold.values()):
        raise UserError("the server asks for a sum within limits that are no lengths; update the older of the two")
    return {str(n): float(x) for n, x in fold.items()}
