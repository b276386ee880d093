from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from tacit.core.leaves import private
from tacit.core.local import local_round
from tacit.core.objective import gradient_of
from tacit.core.store import ClientStore
from tacit.core.trained import Phase, Trained
from tacit.data.cohort import Federation
from tacit.data.splits import split
from toys import few_clients, random_data

SHORT = {"dim": 4, "epochs": 2, "batch": 16, "lr": 0.05, "init": 0.3}


def of_users():
    return Federation.of_users(split(random_data(items=60), "strict"))


def trained(method, federation, ids=None, round=1):
    """One local round: (data, kept, uploads, losses)."""
    ids = torch.arange(federation.n_clients) if ids is None else ids
    data = method.data(federation, ids, round)
    down = method.downlink(method.init_server(federation), ids)
    return data, *local_round(method, ClientStore(method, federation).read(data), down, data)


def samples_of(batch, data, c):
    """(slots, items, labels) of client c, one entry per sample."""
    if batch.count is None:
        there = batch.mask[c]
        return batch.slot[c][there], data.rows[c][batch.row[c][there]], batch.label[c][there]
    negative = (batch.count - batch.positive)[c, 0].long()
    positive = batch.positive[c, 0].long()
    items = torch.cat([data.rows[c].repeat_interleave(positive), data.rows[c].repeat_interleave(negative)])
    label = torch.cat([torch.ones(int(positive.sum())), torch.zeros(int(negative.sum()))])
    return torch.zeros_like(items), items, label


def plain_loop(method, federation, data, c):
    """Client c alone: the whole table, explicit samples, torch's own loss and optimiser."""
    table = method.init_server(federation)["items"].clone().requires_grad_()
    users = data.users[c][data.users[c] >= 0]
    user = method.init_users(federation, users)["user"].clone().requires_grad_()
    kind = torch.optim.Adam if method.optimizer == "adam" else torch.optim.SGD
    rates = {"table": method.table_lr or method.lr, "user": method.lr}
    optimiser = kind([{"params": [table], "lr": rates["table"]}, {"params": [user], "lr": rates["user"]}])
    seen = total = 0
    for epoch in range(method.epochs):
        for batch in data.batches(0, epoch, method.batch):
            slot, item, label = samples_of(batch, data, c)
            if not len(item):
                continue
            optimiser.zero_grad()
            loss = F.binary_cross_entropy_with_logits((user[slot] * table[item]).sum(1), label)
            loss.backward()
            optimiser.step()
            if epoch == method.epochs - 1:
                total, seen = total + loss.item() * len(item), seen + len(item)
    return table.detach(), user.detach(), total / seen


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("groups", [0, 3])
@pytest.mark.parametrize("table_lr", [0.0, 0.2])
def test_stacked_training_is_a_plain_loop_of_each_client(optimizer, groups, table_lr):
    federation = few_clients(8, groups=groups) if groups else of_users()
    method = Trained(**SHORT, optimizer=optimizer, table_lr=table_lr)
    data, kept, up, losses = trained(method, federation)
    assert len(set((-(-data.samples // method.batch)).tolist())) > 1  # different numbers of steps in the chunk
    for c in range(federation.n_clients):
        table, user, loss = plain_loop(method, federation, data, c)
        torch.testing.assert_close(up["items"][c], table, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(kept["user"][c, : len(user)], user, atol=1e-5, rtol=1e-5)
        assert float(losses[c]) == pytest.approx(loss, abs=1e-5)
        assert float(up["weight"][c]) == int(data.size[c])


@dataclass(frozen=True)
class Shrinking(Trained):
    """A term over the whole table moves every row in every step, drawn or not."""

    every_row = True

    def loss(self, p, batch):
        return super().loss(p, batch) + 0.1 * p["items"].square().sum((1, 2)) + 0.1 * p["user"].square().sum((1, 2))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_client_that_ran_out_of_batches_stands_still(optimizer):
    """Padded steps show in terms over the whole table, in momentum and in Adam's moments."""
    federation = of_users()
    method = Shrinking(**SHORT, optimizer=optimizer)
    _, kept, up, losses = trained(method, federation)
    for c in range(federation.n_clients):
        _, alone, sent, loss = trained(method, federation, torch.tensor([c]))
        torch.testing.assert_close(kept["user"][c], alone["user"][0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(up["items"][c], sent["items"][0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(losses[c], loss[0])


@dataclass(frozen=True)
class PlainProduct(Trained):
    """The same model in words whose gradients come transposed out of autograd, and a leaf that is a view."""

    def receive(self, clients, down, data):
        p = super().receive(clients, down, data)
        return p | {"items": p["items"].mT.contiguous().mT}

    def score(self, p, table):
        return torch.einsum("cld,cud->cul", table.mT.contiguous().mT, p["user"])


def test_the_layout_of_leaves_and_gradients_does_not_matter():
    federation = of_users()
    _, kept, up, _ = trained(Trained(**SHORT), federation)
    _, other_kept, other_up, _ = trained(PlainProduct(**SHORT), federation)
    torch.testing.assert_close(kept["user"], other_kept["user"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(up["items"], other_up["items"], atol=1e-5, rtol=1e-5)


@dataclass(frozen=True)
class Alternating(Trained):
    """Two phases; the second takes turns within each batch. Notes what it saw."""

    def phases(self, round):
        return [
            self.phase({"items": self.lr}, loss=self.loss),
            self.phase({"user": self.lr}, {"items": 0.5 * self.lr}, loss=self.loss),
        ]


def test_phases_follow_one_another_and_turns_alternate_within_a_batch():
    federation = of_users()
    method = Alternating(**SHORT, optimizer="sgd")
    data, kept, up, _ = trained(method, federation)
    for c in range(federation.n_clients):
        table = method.init_server(federation)["items"].clone().requires_grad_()
        user = method.init_users(federation, data.users[c])["user"].clone().requires_grad_()
        for number, turns in enumerate([[(table, 0.05)], [(user, 0.05), (table, 0.025)]]):
            for epoch in range(method.epochs):
                for batch in data.batches(number, epoch, method.batch):
                    slot, item, label = samples_of(batch, data, c)
                    if not len(item):
                        continue
                    for leaf, rate in turns:
                        loss = F.binary_cross_entropy_with_logits((user[slot] * table[item]).sum(1), label)
                        (grad,) = torch.autograd.grad(loss, leaf)
                        leaf.data -= rate * grad
        torch.testing.assert_close(kept["user"][c], user.detach(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(up["items"][c], table.detach(), atol=1e-5, rtol=1e-5)


def test_a_frozen_leaf_stays_and_inputs_are_not_written_to():
    federation = of_users()

    @dataclass(frozen=True)
    class Frozen(Trained):
        def phases(self, round):
            return [self.phase({"items": self.lr}, loss=self.loss)]

    method = Frozen(**SHORT)
    ids = torch.arange(federation.n_clients)
    data = federation.cohort(ids, 1, 4)
    store = ClientStore(method, federation)
    clients = store.read(data)
    server = method.init_server(federation)
    kept, up, _ = local_round(method, clients, method.downlink(server, ids), data)
    assert torch.equal(kept["user"], clients["user"])
    assert torch.equal(server["items"], method.init_server(federation)["items"])
    assert torch.equal(store.leaves["user"], ClientStore(method, federation).leaves["user"])
    assert not torch.equal(up["items"][0], server["items"])
    assert not any(x.requires_grad for x in (kept["user"], up["items"]))


@dataclass(frozen=True)
class Counting(Trained):
    """Renews a leaf before each local epoch."""

    def leaves(self):
        return super().leaves() | {"epoch": private()}

    def init_clients(self, federation, ids):
        return {"epoch": torch.zeros(len(ids))}

    def phases(self, round):
        return [self.phase({"items": self.lr, "user": self.lr}, loss=self.loss)] * 2

    def epoch_start(self, p):
        return {"epoch": p["epoch"] + 1}


def test_leaves_are_renewed_before_each_epoch_of_each_phase():
    federation = of_users()
    _, kept, _, _ = trained(Counting(**SHORT), federation)
    assert kept["epoch"].tolist() == [4.0] * federation.n_clients


def test_the_loss_goes_down_over_rounds():
    federation = few_clients(40)
    method = Trained(dim=8, epochs=3, lr=0.05, init=0.1)
    first = trained(method, federation)[3].mean()
    longer = trained(Trained(dim=8, epochs=30, lr=0.05, init=0.1), federation)[3].mean()
    assert longer < 0.6 * first


@dataclass(frozen=True)
class ThroughAutograd(Trained):
    """The same model, left to autograd."""

    def loss(self, p, batch):
        return super().loss(p, batch)


# Adam divides by the gradient's size, so a rounding of a gradient near zero shows in the leaf
@pytest.mark.parametrize(("optimizer", "near"), [("adam", 2e-4), ("sgd", 1e-6)])
def test_the_step_by_hand_is_autograds(optimizer, near):
    federation = of_users()
    settings = SHORT | {"optimizer": optimizer, "epochs": 3}
    _, kept, up, loss = trained(Trained(**settings), federation)
    _, other_kept, other_up, other_loss = trained(ThroughAutograd(**settings), federation)
    torch.testing.assert_close(up["items"], other_up["items"], atol=near, rtol=1e-5)
    torch.testing.assert_close(kept["user"], other_kept["user"], atol=near, rtol=1e-5)
    torch.testing.assert_close(loss, other_loss, atol=near, rtol=1e-5)


def test_only_the_plain_inner_product_is_done_by_hand():
    federation = of_users()
    method, other = Trained(**SHORT), AutogradOnly(**SHORT)
    data = federation.cohort(torch.arange(3), 1, method.negatives)
    p = method.receive(
        ClientStore(method, federation).read(data), method.downlink(method.init_server(federation), data.ids), data
    )
    batch = next(data.batches(0, 0, 16))
    assert gradient_of(method.loss)(p, batch, ["user", "items"], {}) is not None
    assert gradient_of(other.loss) is None
    assert gradient_of(method.loss)(p, batch, ["user", "other"], {}) is None


@dataclass(frozen=True)
class AutogradOnly(Trained):
    """A loss of its own."""

    def loss(self, p, batch):
        return 2 * super().loss(p, batch)


@dataclass(frozen=True)
class Ranking(Trained):
    """Matrix factorisation by BPR."""

    def phases(self, round):
        rates = {"items": self.lr, "user": self.lr}
        return [Phase((rates,), self.loss, self.epochs, self.batch, self.optimizer, ranked=True)]

    def loss(self, p, batch):
        return self.bpr(p, self.view(p), batch)


@pytest.mark.parametrize("groups", [0, 3])
def test_ranked_training_is_a_plain_loop_of_bpr(groups):
    federation = few_clients(8, groups=groups) if groups else of_users()
    method = Ranking(**SHORT, negatives=2)
    data, kept, up, losses = trained(method, federation)
    for c in range(federation.n_clients):
        table = method.init_server(federation)["items"].clone().requires_grad_()
        users = data.users[c][data.users[c] >= 0]
        user = method.init_users(federation, users)["user"].clone().requires_grad_()
        optimiser = torch.optim.Adam([table, user], method.lr)
        for epoch in range(method.epochs):
            seen = total = 0
            for batch in data.batches(0, epoch, method.batch, ranked=True):
                there = batch.mask[c]
                if not there.any():
                    continue
                slot = torch.zeros_like(there).long() if batch.slot is None else batch.slot[c]
                better, worse = (table[data.rows[c][x[c][there]]] for x in (batch.row, batch.rival))
                optimiser.zero_grad()
                loss = -torch.log(torch.sigmoid((user[slot[there]] * (better - worse)).sum(1))).mean()
                loss.backward()
                optimiser.step()
                total, seen = total + loss.item() * int(there.sum()), seen + int(there.sum())
        assert seen == 2 * int(data.size[c])
        torch.testing.assert_close(up["items"][c], table.detach(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(kept["user"][c, : len(user)], user.detach(), atol=1e-5, rtol=1e-5)
        assert float(losses[c]) == pytest.approx(total / seen, abs=1e-5)
