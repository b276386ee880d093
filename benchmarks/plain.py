"""FedMF as the field's public code trains it: one client after another, each with the whole item table.

It is what the engine is timed against, and what the engine has to equal when both see the same batches.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.core.method import Method
from tacit.data.cohort import Batch, Federation

Batches = Iterable[Sequence[Tensor]]  # of (item, label), both (B,)


class MF(nn.Module):
    """Score p_u · q_i."""

    def __init__(self, items: int, dim: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.user = nn.Embedding(1, dim)

    def forward(self, item: Tensor) -> Tensor:
        logits: Tensor = (self.user.weight * self.items(item)).sum(-1)
        return logits


@dataclass(frozen=True)
class Device:
    """A client: what it holds, and the batches of each of its local epochs."""

    user: Tensor  # (1, d)
    size: int  # |D_u|
    samples: int
    epochs: list[Batches]


def plain_round(server: Tensor, devices: Sequence[Device], lr: float) -> tuple[Tensor, Tensor]:
    """One round of FedAvg: the server's new item table (M, d) and the clients' new user vectors (n, d)."""
    template = MF(*server.shape)
    criterion = nn.BCEWithLogitsLoss()
    uploads = []
    for device in devices:
        model = copy.deepcopy(template)
        model.load_state_dict({"items.weight": copy.deepcopy(server), "user.weight": device.user})
        optimiser = torch.optim.Adam(model.parameters(), lr=lr)
        for batches in device.epochs:
            for item, label in batches:
                optimiser.zero_grad()
                criterion(model(item), label).backward()
                optimiser.step()
        uploads.append(copy.deepcopy(model.state_dict()))
    total = sum(device.size for device in devices)
    table = torch.zeros_like(server)
    for device, upload in zip(devices, uploads, strict=True):
        table += device.size / total * upload["items.weight"]
    return table, torch.cat([upload["user.weight"] for upload in uploads])


def devices(method: Method, federation: Federation, ids: Tensor, round: int, *, same_batches: bool) -> list[Device]:
    """The clients `ids` with the engine's own samples of a round, and its own batches where asked.

    Samples are drawn here, outside any clock: the plain loop is not charged for them, the engine is.
    """
    users = method.init_users(federation, ids)["user"]  # one user per client: ids are users
    out = []
    for number in range(len(ids)):
        id = ids[number : number + 1]
        data = federation.cohort(id, round, method.negatives)
        items = data.rows[0]
        if same_batches:
            # beside an empty second seat a cohort names its samples instead of counting them per row
            named = data.with_users(torch.stack([id, torch.full_like(id, -1)], 1))
            epochs: list[Batches] = [
                [_samples(items, batch) for batch in named.batches(0, epoch, method.batch)]
                for epoch in range(method.epochs)
            ]
        else:
            drawn = TensorDataset(items[data.row[0]], data.label[0])
            epochs = [DataLoader(drawn, method.batch, shuffle=True)] * method.epochs
        out.append(Device(users[number : number + 1], int(data.size), int(data.samples), epochs))
    return out


def _samples(items: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(item, label) of a batch of one client that names its samples."""
    assert batch.row is not None
    assert batch.label is not None
    assert batch.mask is not None
    return items[batch.row[0][batch.mask[0]]], batch.label[0][batch.mask[0]]
