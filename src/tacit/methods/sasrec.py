"""SASRec with a full softmax on pooled data: what a transformer makes of the same sequences."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.core.aggregate import weighted_mean
from tacit.core.leaves import Leaves, shared
from tacit.core.method import Method, Moment
from tacit.core.payload import Each, Payload, State
from tacit.core.settings import Choices, Count, Fraction, Positive, Rate, Search, Width
from tacit.data.cohort import Cohort, Federation
from tacit.errors import UserError

Ints = NDArray[np.int64]
ADAM = 0.9, 0.98, 1e-8  # β₁, β₂ and ε


@dataclass(frozen=True)
class SASRec(Method):
    """A causal transformer over each user's items, trained to tell every next item from all others.

    Self-attentive sequential recommendation (Kang and McAuley 2018) with pre-normalised layers, and cross-entropy over
    the whole catalogue in place of one negative an item. Of a long history, the last `window` items. A round is an
    epoch over all users; the best on validation is reported.
    """

    dim: Annotated[Width, Choices((32, 64, 128))] = 64  # d
    layers: Annotated[Count, Search(1, 3)] = 2
    heads: Count = 2
    window: Annotated[Count, Choices((25, 50, 100, 200))] = 100  # items of a history
    dropout: Annotated[Fraction, Search(0, 0.6)] = 0.2
    lr: Rate = 0.001
    batch: Count = 16  # users of a step
    rounds: Count = 60
    init: Positive = 0.02
    history: Literal["train", "known"] = "train"  # known: the device's validation item counts as input at test

    name: ClassVar[str] = "sasrec"
    paper: ClassVar[str] = "Kang and McAuley 2018, centralised"
    individual: ClassVar[str] = ""  # a weighted mean
    pooled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse widths that heads cannot share."""
        if self.dim % self.heads:
            raise UserError(f"dim={self.dim} is not a multiple of heads={self.heads}; try --set heads=1")

    def leaves(self) -> Leaves:
        """All weights in one vector, with Adam's moments and steps."""
        return dict.fromkeys(("weights", "mean", "square", "steps"), shared())

    def length(self, asked: int | None = None) -> int:
        """As many epochs as asked for."""
        return asked or self.rounds

    def init_server(self, federation: Federation) -> State:
        """Normal matrices, unit scales, zero shifts."""
        start = []
        for name, shape in self.shapes(federation.n_items).items():
            if name.endswith("shift"):
                value = torch.zeros(shape)
            elif name.endswith("scale"):
                value = torch.ones(shape)
            else:
                value = self.init * rng.normal(federation.seed, f"init/{name}", 0, torch.zeros(1), *shape)[0]
            start.append(value.ravel())
        weights = torch.cat(start)
        nothing = torch.zeros_like(weights)
        return {"weights": weights, "mean": nothing, "square": nothing.clone(), "steps": torch.zeros(1)}

    def shapes(self, n_items: int) -> dict[str, tuple[int, ...]]:
        """Every weight by name, in the order of the vector; the last row of `items` stands for no item."""
        d = self.dim
        out: dict[str, tuple[int, ...]] = {"items": (n_items + 1, d), "places": (self.window, d)}
        for layer in range(self.layers):
            for name in ("attend", "feed"):
                out |= {f"{layer}.{name}.scale": (d,), f"{layer}.{name}.shift": (d,)}
            out |= {f"{layer}.mix": (3 * d, d), f"{layer}.join": (d, d)}
            out |= {f"{layer}.wide": (d, d), f"{layer}.wide.shift": (d,)}
            out |= {f"{layer}.narrow": (d, d), f"{layer}.narrow.shift": (d,)}
        return out | {"last.scale": (d,), "last.shift": (d,)}

    def parts(self, weights: Tensor, n_items: int) -> State:
        """The vector by its names."""
        shapes = self.shapes(n_items)
        cut = torch.split(weights, [math.prod(shape) for shape in shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(cut, shapes.items(), strict=True)}

    def encoded(self, w: State, items: Tensor, drawn: torch.Generator | None = None) -> Tensor:
        """(N, L, d) what stands at each place of sequences (N, L), M where there is no item; `drawn`: with dropout."""
        N, L = items.shape
        there = items < len(w["items"]) - 1  # (N, L)
        # a place sees those before it and itself; where there is no item, itself alone
        seen = torch.ones(L, L, dtype=torch.bool).tril() & (there[:, None] | torch.eye(L, dtype=torch.bool))
        x = self._dropped(w["items"][items] * math.sqrt(self.dim) + w["places"][-L:], drawn)
        for layer in range(self.layers):
            mixed = _normal(x, w, f"{layer}.attend") @ w[f"{layer}.mix"].T
            q, k, v = mixed.view(N, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (N, heads, L, d / heads) each
            found = F.scaled_dot_product_attention(q, k, v, seen[:, None]).transpose(1, 2).reshape(N, L, -1)
            x = x + self._dropped(found @ w[f"{layer}.join"].T, drawn)
            wide = F.gelu(F.linear(_normal(x, w, f"{layer}.feed"), w[f"{layer}.wide"], w[f"{layer}.wide.shift"]))
            narrow = F.linear(self._dropped(wide, drawn), w[f"{layer}.narrow"], w[f"{layer}.narrow.shift"])
            x = x + self._dropped(narrow, drawn)
        return _normal(x, w, "last")

    def _dropped(self, x: Tensor, drawn: torch.Generator | None) -> Tensor:
        if drawn is None or not self.dropout:
            return x
        return x * (torch.rand(x.shape, generator=drawn) >= self.dropout) / (1 - self.dropout)

    def loss(self, w: State, items: Tensor, drawn: torch.Generator | None = None) -> Tensor:
        """Mean cross-entropy of every next item in sequences (N, L + 1) against the whole catalogue."""
        n_items = len(w["items"]) - 1
        real = (items[:, :-1] < n_items) & (items[:, 1:] < n_items)
        logits = self.encoded(w, items[:, :-1], drawn)[real] @ w["items"][:-1].T
        return F.cross_entropy(logits, items[:, 1:][real])

    def uplink(self, p: State, down: Payload, data: Cohort) -> Payload:
        """An epoch over the users of each client by Adam."""
        train, n_items = data.federation.split.train, data.federation.n_items
        trained: dict[str, list[Tensor]] = {name: [] for name in self.leaves()}
        words = rng.bits(data.federation.seed, "sasrec", data.round, data.ids, 1)[:, 0]
        for word, users in zip(words, data.users.numpy(), strict=True):
            state = {name: down[name].clone() for name in self.leaves()}
            held = [train[u] for u in users if u >= 0 and len(train[u]) > 1]
            drawn = torch.Generator().manual_seed(int(word >> np.uint64(1)))
            for some in _batches(held, self.batch, drawn):
                self._step(state, padded(some, self.window + 1, n_items), n_items, drawn)
            for name, value in state.items():
                trained[name].append(value)
        fields = {name: Each(torch.stack(values)) for name, values in trained.items()}
        return Payload(data.ids, fields | {"weight": Each(data.size.float(), private=False)})

    def _step(self, state: State, items: Tensor, n_items: int, drawn: torch.Generator) -> None:
        """One of Adam, in place."""
        with torch.enable_grad():
            weights = state["weights"].requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(self.parts(weights, n_items), items, drawn), weights)
        first, second, tiny = ADAM
        steps = float(state["steps"].add_(1))
        state["mean"].lerp_(slope, 1 - first)
        state["square"].mul_(second).addcmul_(slope, slope, value=1 - second)
        spread = (state["square"] / (1 - second**steps)).sqrt_().add_(tiny)
        state["weights"] = weights.detach().addcdiv(state["mean"], spread, value=-self.lr / (1 - first**steps))

    def aggregate(self, server: State, uplinks: Iterable[Payload], now: Moment) -> State:
        """What the one client has; the mean of several."""
        return server | weighted_mean(uplinks, *self.leaves())

    def serve(self, clients: State, down: Payload, data: Cohort, part: str) -> State:
        """The weights, and the sequences (C, U, L)."""
        split, n_items = data.federation.split, data.federation.n_items
        known = split.valid if part == "test" and self.history == "known" else None
        held = [
            np.zeros(0, dtype=np.int64)
            if u < 0
            else split.train[u]
            if known is None
            else np.concatenate([split.train[u], known[u]])
            for u in data.users.ravel().tolist()
        ]
        items = padded(held, self.window, n_items).view(*data.users.shape, -1)
        return {"weights": down["weights"], "items": items, "catalogue": torch.tensor([n_items])}

    def scores(self, p: State) -> Tensor:
        """What stands at the last place against every item, (C, U, M)."""
        w = self.parts(p["weights"], int(p["catalogue"]))
        rows = [self.encoded(w, some)[:, -1] for some in torch.split(p["items"].flatten(0, 1), self.batch)]
        return (torch.cat(rows) @ w["items"][:-1].T).view(*p["items"].shape[:2], -1)


def padded(sequences: Sequence[Ints], width: int, nothing: int) -> Tensor:
    """(N, L) the last items of each, at the end of its row; L is the longest, `width` at most and 1 at least."""
    longest = max(1, min(width, max((len(s) for s in sequences), default=0)))
    out = torch.full((len(sequences), longest), nothing)
    for row, sequence in zip(out, sequences, strict=True):
        kept = sequence[-longest:]
        row[longest - len(kept) :] = torch.from_numpy(kept)
    return out


def _batches(held: list[Ints], size: int, drawn: torch.Generator) -> Iterator[list[Ints]]:
    """Users of similar length together, so that little is padded; which ones, and in which order, is drawn."""
    lengths = torch.tensor([len(s) for s in held]) * (1 + 0.2 * torch.rand(len(held), generator=drawn))
    batches = torch.split(lengths.argsort(), size) if held else ()
    for place in torch.randperm(len(batches), generator=drawn).tolist():
        yield [held[i] for i in batches[place].tolist()]


def _normal(x: Tensor, w: State, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.scale"], w[f"{name}.shift"])
