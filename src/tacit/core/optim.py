"""SGD and Adam over stacked clients. A client that is not active in a step stays exactly where it is."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Optimizer = Literal["sgd", "adam"]
Runs = Sequence[slice]  # runs of neighbouring clients that take the same steps

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # Adam's published constants


class Stacked:
    """One optimiser per client, all stepped at once: leaves and gradients have a leading axis C.

    `decay` multiplies a client's rates after each of its own steps.
    """

    def __init__(self, leaves: Mapping[str, Tensor], kind: Optimizer, decay: float = 1.0) -> None:
        self.leaves = {n: x.detach() for n, x in leaves.items()}
        self.kind = kind
        self.decay = decay
        clients = len(next(iter(self.leaves.values())))
        self.taken = {n: [0] * clients for n in leaves}  # steps of each client so far
        self.first = {n: torch.zeros_like(x) for n, x in self.leaves.items()} if kind == "adam" else {}
        self.second = {n: torch.zeros_like(x) for n, x in self.leaves.items()} if kind == "adam" else {}
        self.scratch: dict[str, Tensor] = {}  # memory for gradients, at the disposal of whoever computes them
        self._views: dict[tuple[str, int, int], list[Tensor]] = {}  # of a run: leaf and moments

    @torch.no_grad()
    def step(self, grads: Mapping[str, Tensor], lr: Mapping[str, float], active: Runs) -> None:
        """Move the leaves that have a gradient, for the clients in `active` only.

        The clients of a run have the same past, so the first one's count of steps is everyone's.
        """
        together: dict[float, list[tuple[list[Tensor], Tensor, int]]] = {}
        for name, grad in grads.items():
            for run in active:
                taken = self.taken[name][run.start] + 1
                self.taken[name][run] = [taken] * (run.stop - run.start)
                rate = lr[name] if self.decay == 1.0 else lr[name] * self.decay ** (taken - 1)
                whole = run.stop - run.start == len(self.taken[name])
                together.setdefault(rate, []).append((self._view(name, run), grad if whole else grad[run], taken))
        for rate, moves in together.items():
            if self.kind == "adam":
                self._adam(moves, rate)
            else:
                for (leaf,), grad, _ in moves:
                    leaf.sub_(grad, alpha=rate)

    def _view(self, name: str, run: slice) -> list[Tensor]:
        """The run's part of leaf and moments; kept, because slicing costs as much as a small step."""
        key = (name, run.start, run.stop)
        if key not in self._views:
            self._views[key] = [x[name][run] for x in (self.leaves, self.first, self.second) if x]
        return self._views[key]

    def _adam(self, moves: list[tuple[list[Tensor], Tensor, int]], rate: float) -> None:
        # The kernel behind torch.optim.Adam(fused=True), which keeps a count of steps for each tensor it is given:
        # one slice per run gives every client its own bias correction. Called without the optimiser object, whose
        # bookkeeping costs as much as the arithmetic at this size (docs/decisions/0002-engine.md).
        torch._fused_adam_(
            [leaf for (leaf, _, _), _, _ in moves],
            [grad.contiguous() for _, grad, _ in moves],  # the kernel reads plain memory
            [first for (_, first, _), _, _ in moves],
            [second for (_, _, second), _, _ in moves],
            [],
            [_count(taken) for _, _, taken in moves],
            lr=rate,
            beta1=_BETA1,
            beta2=_BETA2,
            weight_decay=0.0,
            eps=_EPS,
            amsgrad=False,
            maximize=False,
        )


def adam(gradient: Tensor, first: Tensor, second: Tensor, taken: int) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's direction at its step number `taken`, for one who keeps the moments; and the moments after it."""
    first = _BETA1 * first + (1 - _BETA1) * gradient
    second = _BETA2 * second + (1 - _BETA2) * gradient.square()
    unbiased = (second / (1 - _BETA2**taken)).sqrt()
    return first / (1 - _BETA1**taken) / (unbiased + _EPS), first, second


@cache
def _count(steps: int) -> Tensor:
    """A number of steps in the form the kernel reads; made once, because making it costs more than reading it."""
    return torch.tensor(float(steps))
