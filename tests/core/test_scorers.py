import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tacit.core import scorers
from tacit.core.scorers import affine_step, dot, pair_bce, pair_bpr, pick, put, row_bce, take
from tacit.data.cohort import Batch

DRAW = torch.Generator().manual_seed(0)
NO_RUNS = []


def explicit_batches(clients=3, rows=6, longest=9):
    """Samples (row, label) of each client, of different numbers, repeats and both labels of one row included."""
    draw = torch.Generator().manual_seed(1)
    out = []
    for c in range(clients):
        n = longest - 2 * c
        out.append((torch.randint(rows, (n,), generator=draw), torch.randint(2, (n,), generator=draw).float()))
    return out


def as_counts(samples, rows=6):
    count, positive = torch.zeros(len(samples), 1, rows), torch.zeros(len(samples), 1, rows)
    for c, (row, label) in enumerate(samples):
        for r, y in zip(row.tolist(), label.tolist(), strict=True):
            count[c, 0, r] += 1
            positive[c, 0, r] += y
    size = torch.tensor([float(len(row)) for row, _ in samples])
    return Batch(size, size > 0, NO_RUNS, count=count, positive=positive)


def as_pairs(samples):
    longest = max(len(row) for row, _ in samples)
    row, label = torch.zeros(len(samples), longest, dtype=torch.long), torch.zeros(len(samples), longest)
    mask = torch.zeros(len(samples), longest, dtype=torch.bool)
    for c, (r, y) in enumerate(samples):
        row[c, : len(r)], label[c, : len(r)], mask[c, : len(r)] = r, y, True
    size = mask.sum(1).float()
    return Batch(size, size > 0, NO_RUNS, slot=torch.zeros_like(row), row=row, label=label, mask=mask)


def written_formula(logits, batch):
    """−Σ [p ln σ(z) + (n − p) ln(1 − σ(z))] / size, in double precision."""
    z, n, p = logits.double(), batch.count.double(), batch.positive.double()
    each = p * torch.log(torch.sigmoid(z)) + (n - p) * torch.log(1 - torch.sigmoid(z))
    return -each.sum((1, 2)) / batch.size.double()


def test_row_loss_by_hand():
    """One row with z = ln 3 (σ = 3/4), twice a positive and once a negative: −(2 ln ¾ + ln ¼) / 3."""
    batch = Batch(torch.tensor([3.0]), torch.tensor([True]), [], torch.tensor([[[3.0]]]), torch.tensor([[[2.0]]]))
    loss = row_bce(torch.tensor([[[math.log(3)]]]), batch)
    assert loss.item() == pytest.approx(-(2 * math.log(0.75) + math.log(0.25)) / 3)


def test_row_loss_and_its_gradient_are_those_of_the_written_formula():
    batch = as_counts(explicit_batches())
    logits = (3 * torch.randn(3, 1, 6, generator=DRAW)).requires_grad_()
    upstream = torch.tensor([1.0, 0.5, -2.0])
    loss = row_bce(logits, batch)
    (grad,) = torch.autograd.grad(loss, logits, upstream)
    double = logits.detach().double().requires_grad_()
    expected = written_formula(double, batch)
    (expected_grad,) = torch.autograd.grad(expected, double, upstream.double())
    torch.testing.assert_close(loss.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(grad.double(), expected_grad, atol=1e-6, rtol=1e-6)


def test_both_forms_are_torchs_loss_over_the_explicit_samples_of_each_client():
    samples = explicit_batches()
    scores = torch.randn(3, 1, 6, generator=DRAW).requires_grad_()
    expected = torch.stack(
        [F.binary_cross_entropy_with_logits(scores[c, 0, row], label) for c, (row, label) in enumerate(samples)]
    )
    (expected_grad,) = torch.autograd.grad(expected.sum(), scores)
    pairs = as_pairs(samples)
    for loss in (row_bce(scores, as_counts(samples)), pair_bce(scores[:, 0].gather(1, pairs.row), pairs)):
        torch.testing.assert_close(loss, expected)
        (grad,) = torch.autograd.grad(loss.sum(), scores)
        torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_logits_neither_overflow_nor_vanish(sign):
    logits = torch.full((1, 1, 1), sign * 200.0).requires_grad_()
    batch = Batch(torch.ones(1), torch.ones(1, dtype=torch.bool), [], torch.ones(1, 1, 1), torch.zeros(1, 1, 1))
    loss = row_bce(logits, batch)
    assert loss.item() == pytest.approx(200.0 if sign > 0 else 0.0, abs=1e-6)
    assert torch.autograd.grad(loss, logits, torch.ones(1))[0].item() == pytest.approx(1.0 if sign > 0 else 0.0)


@pytest.mark.parametrize("users", [1, 3])
def test_dot_and_its_gradients_are_those_of_plain_products(users):
    user = torch.randn(4, users, 5, generator=DRAW).double().requires_grad_()
    table = torch.randn(4, 7, 5, generator=DRAW).double().requires_grad_()
    upstream = torch.randn(4, users, 7, generator=DRAW).double()
    plain = torch.einsum("cud,cld->cul", user, table)
    made = dot(user, table)
    torch.testing.assert_close(made, plain)
    for got, expected in zip(
        torch.autograd.grad(made, (user, table), upstream),
        torch.autograd.grad(plain, (user, table), upstream),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)
    assert torch.autograd.gradcheck(dot, (user, table))


def test_a_frozen_side_costs_no_gradient():
    user, table = torch.randn(2, 1, 3, requires_grad=True), torch.randn(2, 4, 3)
    dot(user, table).sum().backward()
    torch.testing.assert_close(user.grad, table.sum(1, keepdim=True))


def test_pick_takes_rows_of_each_clients_own_table():
    table = torch.arange(24.0).view(2, 4, 3)
    index = torch.tensor([[3, 0], [1, 1]])
    assert torch.equal(pick(table, index), torch.stack([table[0, [3, 0]], table[1, [1, 1]]]))


def test_the_ranking_loss_by_hand():
    """Margins ln 3 and −ln 3 (σ = ¾ and ¼) and one of padding: −(ln ¾ + ln ¼) / 2."""
    margin = torch.tensor([[math.log(3), -math.log(3), 5.0]])
    batch = Batch(torch.tensor([2.0]), torch.tensor([True]), [], mask=torch.tensor([[True, True, False]]))
    assert pair_bpr(margin, batch).item() == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)


@pytest.mark.parametrize("report", [True, False])
def test_affine_step_is_autograd_over_the_written_formula(report):
    batch = replace(as_counts(explicit_batches()), report=report)
    head, bias, table = (torch.randn(3, *shape, generator=DRAW) for shape in ((1, 5), (1, 1), (6, 5)))
    leaves = [x.double().requires_grad_() for x in (head, bias, table)]
    logits = torch.einsum("cud,cld->cul", leaves[0], leaves[2]) + leaves[1]
    expected = written_formula(logits, batch)
    gradients = torch.autograd.grad(expected.sum(), leaves)
    scratch = {}
    loss, grads = affine_step(head, bias, table, batch, ("head", "bias", "items"), scratch)
    torch.testing.assert_close(loss, expected.float() if report else torch.zeros(3))
    for name, gradient in zip(("head", "bias", "items"), gradients, strict=True):
        torch.testing.assert_close(grads[name], gradient.float())
    assert grads["items"] is scratch["items"], "the large gradient goes to the memory that is kept"
    assert set(affine_step(head, bias, table, batch, ("bias",), scratch)[1]) == {"bias"}


def test_rows_taken_out_of_a_table_go_back_to_their_places():
    """Only rows of the batch come back; what an earlier step left in the memory is gone."""
    samples = explicit_batches()
    samples[1] = (torch.tensor([2, 2, 4]), torch.tensor([1.0, 0.0, 1.0]))
    batch = as_counts(samples)
    few, rows = batch.occurring
    table = torch.randn(3, 6, 5, generator=DRAW)
    chosen = take(table, rows)
    back = put(chosen, rows, few, table, {"items": torch.full((3, 6, 5), 9.0)})
    there = batch.count[:, 0] > 0
    assert torch.equal(back[there], table[there])
    assert not back[~there].any()
    for c, (row, label) in enumerate(samples):
        for r in set(row.tolist()):
            place = (rows[c] == r) & (few.count[c, 0] > 0)
            assert int(place.sum()) == 1
            assert float(few.count[c, 0][place]) == float((row == r).sum())
            assert float(few.positive[c, 0][place]) == float(label[row == r].sum())


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("often", [0, 1000])
def test_rows_added_up_are_a_sparse_product(often, monkeypatch):
    monkeypatch.setattr(scorers, "OFTEN", often)
    few = (torch.rand(30, 40) * (torch.rand(30, 40) < 0.2)).index_fill_(0, torch.tensor([0, 7, 29]), 0.0)
    table = torch.randn(40, 600)
    torch.testing.assert_close(scorers.added_rows(few.to_sparse_csr(), table), few @ table)
    assert scorers.added_rows(torch.zeros(2, 40).to_sparse_csr(), table).shape == (2, 600)
