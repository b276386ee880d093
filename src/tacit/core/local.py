"""The first of the two loops: training on clients, stacked. The same code runs in simulation and on a device."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tacit.core.capabilities import Renewing
from tacit.core.method import Method
from tacit.core.objective import by_autograd, gradient_of
from tacit.core.optim import Stacked
from tacit.core.payload import Payload, Rows, State
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Batch, Cohort


def local_round(
    method: Method, clients: State, down: Payload, data: Cohort
) -> tuple[dict[str, Tensor | Rows], Payload, Tensor]:
    """Train C clients for one round: (what they keep, what they send, their mean loss in the last epoch (C,))."""
    p = method.receive(clients, down, data)
    loss = torch.full((len(data.ids),), torch.nan)  # of a round that trains nothing
    for number, phase in enumerate(method.phases(data.round) if isinstance(method, Trained) else []):
        p, loss = _train(method, p, phase, number, data)
    return method.keep(p, down, data), method.uplink(p, down, data), loss


def _train(method: Method, p: State, phase: Phase, number: int, data: Cohort) -> tuple[State, Tensor]:
    names = sorted({name for turn in phase.turns for name in turn})
    p = p | {n: p[n].clone(memory_format=torch.contiguous_format) for n in names}
    optimiser = Stacked({n: p[n] for n in names}, phase.optimizer, phase.decay)
    mean, total = torch.zeros(len(data.ids)), torch.zeros(len(data.ids))
    for epoch in range(phase.epochs):
        if isinstance(method, Renewing):
            p |= method.epoch_start(p)
        last = epoch == phase.epochs - 1
        for batch in data.batches(number, epoch, phase.batch, report=last, ranked=phase.ranked):
            for turn in phase.turns[:-1]:  # the last turn's loss is the one that is read
                _step(p, phase, replace(batch, report=False), turn, optimiser)
            loss = _step(p, phase, batch, phase.turns[-1], optimiser)
            if last:
                mean += loss * batch.size * batch.active
                total += batch.size * batch.active
    return p, mean / total.clamp(min=1)


def _step(p: State, phase: Phase, batch: Batch, turn: Mapping[str, float], optimiser: Stacked) -> Tensor:
    """One step of each active client; a leaf that the loss does not reach stays."""
    gradient, found = gradient_of(phase.loss), None
    if gradient is not None:
        with torch.no_grad():
            found = gradient(p, batch, turn, optimiser.scratch)
    loss, grads = found or by_autograd(phase.loss, p, batch, turn)
    optimiser.step(grads, turn, batch.runs)
    return loss
