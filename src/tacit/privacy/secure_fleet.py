"""Secure aggregation over any method whose server needs only a sum: what it gets is one upload of everybody."""

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from tacit.core.aggregate import EVERYBODY
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Method
from tacit.core.payload import Each, Field, Payload, State
from tacit.core.trained import singly
from tacit.errors import UserError
from tacit.privacy.fixed_point import FixedPoint, Reals, Words
from tacit.privacy.secure_sum import Stage, simulate

BOUND = 2.0**20  # of every value; 64 bits leave 33 behind the point for a thousand clients
MOST = 1_000_000  # values of a client: all of them are masked once for every neighbour


def check_sum(method: Method) -> None:
    """Refuse a method whose server needs more than a sum."""
    if method.pooled:
        raise UserError(
            f"{method.name} is centralised: one client holds all data, and there is nothing to sum securely"
        )
    if reason := singly(method):
        raise UserError(
            f"{method.name} does not work with a secure sum, because the server needs every client's own upload: "
            f"{reason}; run it without --secure"
        )


class SecureFleet(SimulatedFleet):
    """Simulated clients whose uploads reach the server only as a sum.

    A client weighs its own upload: where there is a field `weight`, the sums are of w · (x − what the server sent) and
    of w, and the server gets the weighted mean with the total weight; elsewhere the sums are of the fields themselves.
    The bytes are those of all messages of the protocol.
    """

    drops: Mapping[Stage, Collection[int]] = {}  # clients that fall silent at a stage, in every round

    def train(self, server: State, ids: Tensor, round: int, traffic: Traffic) -> Iterator[Payload]:
        """Train these clients for a round and yield one upload, that of everybody."""
        check_sum(self.method)
        before = traffic.bytes_up
        uploads = super().train(server, ids, round, traffic)
        first = next(uploads, None)
        if first is None:
            return
        layout = Layout(self.method, first, self.method.downlink(server, first.ids[:1]))
        if not layout.length:  # nothing is sent
            yield from chain([first], uploads)
            return
        point = FixedPoint(BOUND, len(ids))

        def vectors() -> Iterator[tuple[int, Words]]:
            for up in chain([first], uploads):
                for place, client in enumerate(up.ids.tolist()):
                    yield client, layout.encoded(layout.vector(up.only(torch.tensor([place]))), point)

        done = simulate(ids.tolist(), vectors(), self.drops)
        traffic.bytes_up = before + done.bytes_up
        traffic.bytes_down += done.bytes_down
        yield layout.everybody(point.decode(done.total))


class Layout:
    """How the fields of an upload stand in one vector; the weight, where there is one, is the last value."""

    def __init__(self, method: Method, like: Payload, down: Payload) -> None:
        """Of uploads such as `like`, after the server sent `down`."""
        self.method = method
        self.weighted = "weight" in like
        self.fields = {n: f for n, f in like.fields.items() if n != "weight"}
        for name, field in self.fields.items():
            if not field.own:
                raise UserError(
                    f"'{name}' of {method.name}'s upload is the same for all clients: there is nothing to sum"
                )
        self.shapes = {n: f.one_shape for n, f in self.fields.items()}  # under a mask no columns are left out
        sent = down.fields if self.weighted else {}
        # a change is smaller than a table
        self.bases = {
            n: f.dense().double().numpy().ravel()
            for n, f in sent.items()
            if n in self.fields and f.alike and f.one_shape == self.shapes[n]
        }
        self.length = sum(math.prod(s) for s in self.shapes.values()) + self.weighted
        if self.length > MOST:
            raise UserError(
                f"a client of {method.name} would send {self.length:,} values, and a secure sum masks every one of "
                f"them, zeros too: {MOST:,} at most; choose a smaller model, as tally with --set inputs=100"
            )

    def vector(self, up: Payload) -> Reals:
        """One client's fields side by side, weighted."""
        parts = [up.fields[n].of_one().numpy().ravel() - self.bases.get(n, 0.0) for n in self.fields]
        if not self.weighted:
            return np.concatenate(parts)
        weight = float(up["weight"])
        return np.concatenate([*(weight * part for part in parts), [weight]])

    def encoded(self, values: Reals, point: FixedPoint) -> Words:
        """As words; a value that would be clipped or is none is refused, because the mean would be another."""
        largest = float(np.abs(values).max())
        if not largest <= point.bound:
            raise UserError(
                f"an upload of {self.method.name} has a value of {largest:g}, and a secure sum carries "
                f"±{point.bound:,.0f}: training has diverged; try a smaller rate"
            )
        return point.encode(values)

    def everybody(self, total: Reals) -> Payload:
        """The upload of one client that stands for all: their mean and total weight, or their sum."""
        out: dict[str, Field] = {}
        weight = float(total[-1]) if self.weighted else 1.0
        place = 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            value = total[place : place + size] / (weight or 1.0) + self.bases.get(name, 0.0)
            place += size
            out[name] = self.fields[name].of_sum(torch.from_numpy(value))
        if self.weighted:
            out["weight"] = Each(torch.tensor([weight], dtype=torch.float64), private=False)
        return Payload(EVERYBODY, out)
