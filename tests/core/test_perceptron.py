from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from tacit.core import perceptron
from tacit.core.perceptron import chosen_pairs, every_pair, through
from tacit.data.cohort import Batch

DRAW = torch.Generator().manual_seed(0)


def net(widths, clients=3):
    return {
        name: torch.randn(clients, *shape, generator=DRAW).double()
        for n, (rows, columns) in enumerate(pairwise((10, *widths)))
        for name, shape in ((f"w{n}", (rows, columns)), (f"b{n}", (columns,)))
    }


def written(own, user, row, leak):
    """One user with one row, layer by layer."""
    hidden = torch.cat([user, row])
    for n in range(len(own) // 2):
        hidden = (F.leaky_relu(hidden, leak) if n else hidden) @ own[f"w{n}"] + own[f"b{n}"]
    return hidden[0]


@pytest.mark.parametrize("leak", [0.0, 0.2])
@pytest.mark.parametrize("widths", [(1,), (7, 1), (7, 3, 1)])
def test_scores_are_those_of_the_layers_one_by_one(widths, leak):
    own, users, items = net(widths), torch.randn(3, 2, 5).double(), torch.randn(3, 4, 5).double()
    every = every_pair(own, users, items, leak)
    slot, row = torch.randint(2, (3, 6), generator=DRAW), torch.randint(4, (3, 6), generator=DRAW)
    some = chosen_pairs(own, users, items, slot, row, leak)
    for c in range(3):
        mine = {n: x[c] for n, x in own.items()}
        for u in range(2):
            for i in range(4):
                torch.testing.assert_close(every[c, u, i], written(mine, users[c, u], items[c, i], leak))
        torch.testing.assert_close(some[c], every[c, slot[c], row[c]])


@pytest.mark.parametrize("leak", [0.0, 0.2])
@pytest.mark.parametrize("widths", [(1,), (7, 1), (7, 3, 1)])
def test_gradients_are_those_of_autograd_over_the_written_formula(widths, leak):
    """Weights of every client's own; rows that occur in different numbers, the last client out of samples."""
    own = net(widths) | {"user": torch.randn(3, 1, 5).double(), "rows": torch.randn(3, 4, 5).double()}
    count = torch.tensor([[2.0, 1, 0, 3], [1, 1, 1, 1], [0, 0, 0, 0]])[:, None].double()
    positive = torch.tensor([[1.0, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]])[:, None].double()
    batch = Batch(torch.tensor([6.0, 4.0, 1.0]).double(), torch.tensor([True, True, False]), [], count, positive)
    leaves = {n: x.clone().requires_grad_() for n, x in own.items()}
    layers = {n: x for n, x in leaves.items() if n not in ("user", "rows")}
    logits = torch.stack(
        [
            torch.stack([written({n: x[c] for n, x in layers.items()}, leaves["user"][c, 0], r, leak) for r in rows])
            for c, rows in enumerate(leaves["rows"])
        ]
    )[:, None]
    each = count * F.softplus(logits) - positive * logits
    expected = each.sum((1, 2)) / batch.size
    slopes = dict(zip(leaves, torch.autograd.grad(expected.sum(), list(leaves.values())), strict=True))
    plain = {n: x for n, x in own.items() if n not in ("user", "rows")}
    loss, grads, of_user, of_rows = through(plain, own["user"], own["rows"], batch, leak)
    torch.testing.assert_close(loss, expected.detach())
    for name, slope in slopes.items():
        torch.testing.assert_close((grads | {"user": of_user, "rows": of_rows})[name], slope)


@pytest.mark.parametrize("pairs", [1, 9, 1000])
def test_one_net_for_all_clients_and_any_blocks_give_the_same(monkeypatch, pairs):
    monkeypatch.setattr(perceptron, "PAIRS", pairs)
    own, users = net((7, 3, 1)), torch.randn(3, 2, 5, generator=DRAW).double()
    items = torch.randn(4, 5, generator=DRAW).double().expand(3, -1, -1)
    shared = {n: x[:1].expand(x.shape) for n, x in own.items()}
    expected = every_pair({n: x.clone() for n, x in shared.items()}, users, items.clone())
    torch.testing.assert_close(every_pair(shared, users, items), expected)
    each = torch.cat(
        [every_pair({n: x[c : c + 1] for n, x in own.items()}, users[c : c + 1], items[:1]) for c in range(3)]
    )
    torch.testing.assert_close(every_pair(own, users, items), each)
