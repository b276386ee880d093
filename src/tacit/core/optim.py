"""SGD and Adam over stacked clients. A client that is not active in a step stays exactly where it is."""

from collections.abc import Mapping, Sequence
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
        self.taken = {n: torch.zeros(clients) for n in leaves}  # steps of each client so far
        self.first = {n: torch.zeros_like(x) for n, x in self.leaves.items()} if kind == "adam" else {}
        self.second = {n: torch.zeros_like(x) for n, x in self.leaves.items()} if kind == "adam" else {}

    @torch.no_grad()
    def step(self, grads: Mapping[str, Tensor], lr: Mapping[str, float], active: Runs) -> None:
        """Move the leaves that have a gradient, for the clients in `active` only.

        The clients of a run have the same past, so the first one's count of steps is everyone's.
        """
        together: dict[float, list[tuple[str, slice]]] = {}
        for name in grads:
            for run in active:
                self.taken[name][run] += 1
                rate = lr[name]
                if self.decay != 1.0:
                    rate *= self.decay ** (float(self.taken[name][run.start]) - 1)
                together.setdefault(rate, []).append((name, run))
        for rate, parts in together.items():
            if self.kind == "adam":
                self._adam(grads, rate, parts)
            else:
                for name, run in parts:
                    self.leaves[name][run].sub_(grads[name][run], alpha=rate)

    def _adam(self, grads: Mapping[str, Tensor], rate: float, parts: list[tuple[str, slice]]) -> None:
        # The kernel behind torch.optim.Adam(fused=True), which keeps a count of steps for each tensor it is given:
        # one slice per run gives every client its own bias correction. Called without the optimiser object, whose
        # bookkeeping costs as much as the arithmetic at this size (docs/decisions/0002-engine.md).
        torch._fused_adam_(
            [self.leaves[name][run] for name, run in parts],
            [grads[name][run].contiguous() for name, run in parts],  # the kernel reads plain memory
            [self.first[name][run] for name, run in parts],
            [self.second[name][run] for name, run in parts],
            [],
            [self.taken[name][run.start] for name, run in parts],
            lr=rate,
            beta1=_BETA1,
            beta2=_BETA2,
            weight_decay=0.0,
            eps=_EPS,
            amsgrad=False,
            maximize=False,
        )
