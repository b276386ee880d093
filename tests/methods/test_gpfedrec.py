import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tacit.core.leaves import named
from tacit.core.local import local_round
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, decode
from tacit.core.store import ClientStore
from tacit.methods.gpfedrec import GPFedRec
from toys import few_clients

SMALL = {"dim": 4, "layers": (5, 3), "init": 0.3, "lr": 0.5, "user_lr": 2.0, "table_lr": 100.0, "guidance": 2.0}


def guided(federation, method):
    """A server with a target of its own for everyone."""
    server = method.init_server(federation)
    noise = torch.Generator().manual_seed(3)
    shape = (federation.n_clients, *server["items"].shape)
    targets = server["items"] + 0.3 * torch.randn(shape, generator=noise)
    return server | {"targets": targets, "seen": torch.ones_like(server["seen"])}


def trained(method, federation, server, ids):
    data = method.data(federation, ids, 1)
    down = method.downlink(server, ids)
    own = ClientStore(method, federation).read(data, training=True)
    return data, down, own, *local_round(method, own, down, data)


@pytest.mark.parametrize("guidance", [2.0, 50.0])  # the second steps beyond the target: γ is below zero
def test_a_round_is_sgd_on_the_whole_table_in_plain_torch(guidance):
    """Two batches on every row of one client's table, by autograd over an ordinary network."""
    method, federation = GPFedRec(**SMALL | {"batch": 40, "guidance": guidance}), few_clients(12)
    server = guided(federation, method)
    data, down, own, kept, up, _ = trained(method, federation, server, torch.tensor([2]))
    leaves = {n: own[n][0].clone().double().requires_grad_() for n in named(method.leaves(), "private")}
    leaves["items"] = down["items"].clone().double().requires_grad_()
    target = down["target"][0].double()
    rates = dict.fromkeys(method.perceptron, 0.5) | {"user": 2.0, "items": 100.0}
    batches = list(data.batches(0, 0, 40))
    assert len(batches) > 1
    for batch in batches:
        count, positive = batch.count[0, 0].double(), batch.positive[0, 0].double()
        rows = leaves["items"][data.rows[0]]
        hidden = torch.cat([leaves["user"].expand(len(rows), -1), rows], 1)
        for n in range(3):
            hidden = (hidden.relu() if n else hidden) @ leaves[f"w{n}"] + leaves[f"b{n}"]
        chance = torch.sigmoid(hidden[:, 0])
        loss = -(positive * chance.log() + (count - positive) * (1 - chance).log()).sum() / count.sum()
        loss = loss + guidance * F.mse_loss(leaves["items"], target)
        moves = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            for (name, leaf), move in zip(leaves.items(), moves, strict=True):
                leaf -= rates[name] * move
    for name in named(method.leaves(), "private"):
        torch.testing.assert_close(kept[name][0].double(), leaves[name].detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(up["items"][0].double(), leaves["items"].detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kept["own_items"].dense(), up["items"])
    assert len(data.rows[0]) < federation.n_items, "some rows must be left to the closed form"


@dataclass(frozen=True)
class EveryRow(GPFedRec):
    every_row: ClassVar[bool] = True


@pytest.mark.parametrize("batch", [0, 25])
def test_the_closed_form_of_untouched_rows_is_what_training_them_gives(batch):
    federation, ids = few_clients(12), torch.arange(6)
    settings = SMALL | {"batch": batch, "epochs": 2}
    server = guided(federation, GPFedRec(**settings))
    (*_, short, _), (*_, long, _) = (
        trained(kind(**settings), federation, server, ids) for kind in (GPFedRec, EveryRow)
    )
    torch.testing.assert_close(short["items"], long["items"], atol=1e-5, rtol=1e-5)


def test_with_adam_every_row_trains():
    method = GPFedRec(**SMALL | {"optimizer": "adam", "lr": 0.01, "user_lr": 0.01, "table_lr": 0.01})
    assert method.every_row
    assert not GPFedRec(**SMALL).every_row
    federation = few_clients(12)
    server = guided(federation, method)
    data, down, *_, up, _ = trained(method, federation, server, torch.tensor([2]))
    untouched = torch.ones(federation.n_items, dtype=torch.bool)
    untouched[data.row[0]] = False
    assert untouched.any()
    step = 0.01 * torch.sign(down["target"][0] - down["items"])  # Adam's first step, whatever the gradient's size
    steps = math.ceil(int(data.samples[0]) / method.batch)
    assert steps == 1
    torch.testing.assert_close(up["items"][0][untouched], (down["items"] + step)[untouched], atol=1e-4, rtol=1e-4)


def written_graph(tables, kind, threshold=1.0, size=0):
    """Neighbours client by client, as the paper (similar) and its code (dissimilar) choose them."""
    flat = tables.reshape(len(tables), -1).astype(np.float64)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    close = np.array([[a @ b for b in unit] for a in unit])
    if kind == "dissimilar":
        close = 1 - close
    out = np.zeros_like(close)
    for i, row in enumerate(close):
        near = np.argsort(row)[-size:] if size else np.flatnonzero(row > threshold * close.mean())
        out[i, near if len(near) else [i]] = 1 / max(len(near), 1)
    return out


@pytest.mark.parametrize("kind", ["similar", "dissimilar"])
@pytest.mark.parametrize("change", [{}, {"threshold": 1.2}, {"neighbourhood": 3}, {"threshold": 1e9}])
@pytest.mark.parametrize("hops", [1, 2])
def test_targets_are_the_means_of_neighbours_and_the_table_the_mean_of_targets(kind, change, hops):
    federation = few_clients(9)
    method = GPFedRec(**SMALL, graph=kind, hops=hops, **change)
    server = method.init_server(federation)
    rng = np.random.default_rng(0)
    shape = (9, *server["items"].shape)
    tables = (rng.normal(size=shape) + 2 * rng.normal(size=shape[1:])).astype(np.float32)
    ids = torch.from_numpy(rng.permutation(9))
    sent = [Payload(part, {"items": Each(torch.from_numpy(tables)[part])}) for part in ids.split(4)]
    after = method.aggregate(server, iter(sent), Moment(1, 0))
    graph = written_graph(tables, kind, change.get("threshold", 1.0), change.get("neighbourhood", 0))
    expected = np.linalg.matrix_power(graph, hops) @ tables.reshape(9, -1)
    np.testing.assert_allclose(after["targets"].reshape(9, -1).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(after["items"].flatten().numpy(), expected.mean(0), atol=1e-5)
    assert after["seen"].all()
    assert not server["seen"].any(), "an aggregation leaves the state it was given"


def test_absent_clients_keep_their_targets_and_new_ones_get_the_mean():
    method, federation = GPFedRec(**SMALL), few_clients(12)
    first = method.init_server(federation)
    *_, up, _ = trained(method, federation, first, torch.arange(5))
    second = method.aggregate(first, iter([up]), Moment(1, 0))
    *_, up, _ = trained(method, federation, second, torch.tensor([3, 4, 7]))
    third = method.aggregate(second, iter([decode(up.encode())]), Moment(2, 0))
    assert third["seen"].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4, 7]
    assert torch.equal(third["targets"][:3], second["targets"][:3])
    assert not torch.equal(third["targets"][3], second["targets"][3])
    torch.testing.assert_close(third["items"], third["targets"][[3, 4, 7]].mean(0))
    down = method.downlink(third, torch.tensor([2, 9]))
    assert torch.equal(down["target"][0], third["targets"][2])
    assert torch.equal(down["target"][1], third["items"])
    nobody = method.aggregate(third, iter([]), Moment(3, 0))
    assert all(torch.equal(nobody[n], x) for n, x in third.items())


def test_only_the_table_is_sent_and_everyone_starts_alike():
    method, federation = GPFedRec(**SMALL), few_clients(12)
    store = ClientStore(method, federation)
    for name in named(method.leaves(), "private"):
        assert (store.leaves[name] == store.leaves[name][0]).all()
    assert store.leaves["w0"].shape == (12, 8, 5)
    assert store.leaves["w0"].abs().max() <= 1 / math.sqrt(8)
    *_, up, _ = trained(method, federation, method.init_server(federation), torch.arange(3))
    assert set(up.fields) == {"items", "weight"}
