"""The first of the two loops: training on clients, stacked. The same code runs in simulation and on a device."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tacit.core.method import Method, Phase
from tacit.core.optim import Stacked
from tacit.core.payload import Payload, Rows, State
from tacit.data.cohort import Batch, Cohort


def local_round(
    method: Method, clients: State, down: Payload, data: Cohort
) -> tuple[dict[str, Tensor | Rows], Payload, Tensor]:
    """Train C clients for one round: (what they keep, what they send, their mean loss in the last epoch (C,))."""
    p = method.receive(clients, down, data)
    loss = torch.full((len(data.ids),), torch.nan)  # of a round that trains nothing
    for number, phase in enumerate(method.phases(data.round)):
        p, loss = _train(method, p, phase, number, data)
    return method.keep(p, down, data), method.uplink(p, down, data), loss


def _train(method: Method, p: State, phase: Phase, number: int, data: Cohort) -> tuple[State, Tensor]:
    names = sorted({name for turn in phase.turns for name in turn})
    p = p | {n: p[n].clone(memory_format=torch.contiguous_format).requires_grad_() for n in names}
    optimiser = Stacked({n: p[n] for n in names}, phase.optimizer, phase.decay)
    mean, total = torch.zeros(len(data.ids)), torch.zeros(len(data.ids))
    for epoch in range(phase.epochs):
        p |= method.epoch_start(p)
        last = epoch == phase.epochs - 1
        for batch in data.batches(number, epoch, phase.batch, report=last, ranked=phase.ranked):
            for turn in phase.turns[:-1]:  # the last turn's loss is the one that is read
                _step(method, p, phase, replace(batch, report=False), turn, optimiser)
            loss = _step(method, p, phase, batch, phase.turns[-1], optimiser)
            if last:
                mean += loss * batch.size * batch.active
                total += batch.size * batch.active
    p = {n: x.detach() for n, x in p.items()}
    return p, mean / total.clamp(min=1)


def _step(
    method: Method, p: State, phase: Phase, batch: Batch, turn: Mapping[str, float], optimiser: Stacked
) -> Tensor:
    """One step of each active client; a leaf that the loss does not reach stays."""
    by_hand = phase.by_hand or (method.by_hand if phase.loss == method.loss else None)
    if by_hand is not None:
        with torch.no_grad():
            found = by_hand(p, batch, turn, optimiser.scratch)
        if found is not None:
            optimiser.step(found[1], turn, batch.runs)
            return found[0]
    loss = phase.loss(p, batch)  # (C,)
    # each client's loss depends on its own leaves alone, so the gradient of the sum is everyone's own gradient
    grads = torch.autograd.grad(loss, [p[n] for n in turn], torch.ones_like(loss), allow_unused=True)
    moved = {n: g for n, g in zip(turn, grads, strict=True) if g is not None}
    optimiser.step(moved, turn, batch.runs)
    return loss.detach()
