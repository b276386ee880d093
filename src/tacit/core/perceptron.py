"""Perceptrons over [user, item], stacked: `net` holds w0, b0, w1, b1, … with a leading axis C."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core.payload import State
from tacit.core.scorers import one_for_all, pick, row_slope
from tacit.data.cohort import Batch

PAIRS = 1 << 14  # pairs whose hidden units stay in the cache from layer to layer


def every_pair(net: State, users: Tensor, items: Tensor, leak: float = 0.0) -> Tensor:
    """(C, U, L) logits of users (C, U, d) and items (C, L, d); the first layer's halves are added.

    `leak` is the slope of the units below zero. Pairs stand in columns, (C, h, B): products are then wide.
    """
    (C, U, d), L = users.shape, items.shape[1]
    if C > 1 and all(one_for_all(x) for x in (items, *net.values())):
        return every_pair({n: x[:1] for n, x in net.items()}, users.reshape(1, -1, d), items[:1], leak).view(C, U, L)
    of_user, of_item = net["w0"][:, :d].mT, net["w0"][:, d:].mT  # (C, h, d) each
    one = torch.baddbmm(net["b0"][..., None], of_user, users.mT)[..., None]  # (C, h, U, 1)
    other = (of_item @ items.mT)[:, :, None]  # (C, h, 1, L)
    out = []
    for some in torch.split(torch.arange(C), max(1, PAIRS // (U * L))):
        here = slice(int(some[0]), int(some[-1]) + 1)
        for part in torch.split(one[here], max(1, PAIRS // L), 2):
            hidden = (part + other[here]).flatten(2)  # (c, h, B)
            for n in range(1, len(net) // 2):
                active = F.leaky_relu_(hidden, leak) if leak else F.relu_(hidden)
                hidden = torch.baddbmm(net[f"b{n}"][here, :, None], net[f"w{n}"][here].mT, active)
            out.append(hidden.reshape(-1, L))
    return torch.cat(out).view(C, U, L)


def chosen_pairs(net: State, users: Tensor, items: Tensor, slot: Tensor, row: Tensor, leak: float = 0.0) -> Tensor:
    """(C, B) logits of the users in these slots and the items in these rows."""
    both = torch.cat([pick(users, slot), pick(items, row)], -1)
    return _deeper(net, torch.baddbmm(net["b0"][:, None], both, net["w0"]), leak)


def _deeper(net: State, hidden: Tensor, leak: float) -> Tensor:
    """All layers after the first: (C, B, h) -> (C, B)."""
    for n in range(1, len(net) // 2):
        active = F.leaky_relu(hidden, leak) if leak else F.relu(hidden)
        hidden = torch.baddbmm(net[f"b{n}"][:, None], active, net[f"w{n}"])
    return hidden[..., 0]


def through(
    net: State, users: Tensor, rows: Tensor, batch: Batch, leak: float = 0.0
) -> tuple[Tensor, State, Tensor, Tensor]:
    """`row_bce` of one user (C, 1, d) with all rows (C, B, d), and gradients: of the net, of the users, of the rows."""
    d, depth = rows.shape[2], len(net) // 2 - 1
    of_user, of_row = net["w0"][:, :d], net["w0"][:, d:]  # (C, d, h) each
    hidden = [torch.baddbmm(torch.baddbmm(net["b0"][:, None], users, of_user), rows, of_row)]
    for n in range(1, depth + 1):
        hidden.append(torch.baddbmm(net[f"b{n}"][:, None], F.leaky_relu_(hidden[-1], leak), net[f"w{n}"]))
    loss, slope = row_slope(hidden.pop().mT, batch)
    back = slope.mT  # (C, B, h) of the layer's output
    grads: State = {}
    for n in range(depth, 0, -1):
        inputs = hidden.pop()
        grads[f"w{n}"], grads[f"b{n}"] = inputs.mT @ back, back.sum(1)
        # ReLU's slope is the sign of what it gave
        back = (back @ net[f"w{n}"].mT).mul_(torch.where(inputs > 0, 1.0, leak) if leak else inputs.sign_())
    total = back.sum(1, keepdim=True)
    grads |= {"b0": total[:, 0], "w0": torch.cat([users.mT @ total, rows.mT @ back], 1)}
    return loss, grads, total @ of_user.mT, back @ of_row.mT
