"""SGD and Adam over stacked clients. A client that is not active in a step stays exactly where it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        self.parts: dict[tuple[str, int, int], Part] = {}

    @torch.no_grad()
    def step(self, grads: Mapping[str, Tensor], lr: Mapping[str, float], active: Runs) -> None:
        """Move the leaves that have a gradient, for the clients in `active` only.

        The clients of a run have the same past, so the first one's count of steps is everyone's.
        """
        together: dict[float, list[tuple[Part, Tensor]]] = {}
        for name, grad in grads.items():
            for run in active:
                part = self._part(name, run)
                part.taken.add_(1)
                rate = lr[name] if self.decay == 1.0 else lr[name] * self.decay ** (float(part.taken) - 1)
                whole = run.stop - run.start == len(grad)
                together.setdefault(rate, []).append((part, grad if whole else grad[run]))
        for rate, moves in together.items():
            if self.kind == "adam":
                self._adam(moves, rate)
            else:
                for part, grad in moves:
                    part.leaf.sub_(grad, alpha=rate)

    def _part(self, name: str, run: slice) -> "Part":
        key = (name, run.start, run.stop)
        if key not in self.parts:
            leaf = self.leaves[name][run]
            moments = (torch.zeros_like(leaf), torch.zeros_like(leaf)) if self.kind == "adam" else (leaf, leaf)
            self.parts[key] = Part(leaf, *moments, torch.zeros(()))
        return self.parts[key]

    def _adam(self, moves: "list[tuple[Part, Tensor]]", rate: float) -> None:
        # The kernel behind torch.optim.Adam(fused=True), which keeps a count of steps for each tensor it is given:
        # one part per run gives every client its own bias correction. Called without the optimiser object, whose
        # bookkeeping costs as much as the arithmetic at this size (docs/decisions/0002-engine.md).
        torch._fused_adam_(
            [part.leaf for part, _ in moves],
            [grad.contiguous() for _, grad in moves],  # the kernel reads plain memory
            [part.first for part, _ in moves],
            [part.second for part, _ in moves],
            [],
            [part.taken for part, _ in moves],
            lr=rate,
            beta1=_BETA1,
            beta2=_BETA2,
            weight_decay=0.0,
            eps=_EPS,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True)
class Part:
    """A run of clients within a leaf, with Adam's moments and the steps taken so far."""

    leaf: Tensor
    first: Tensor
    second: Tensor
    taken: Tensor
