"""A server's state as it lies on disk: of a large matrix only one half, or the cells that are not zero.

Lossless. A matrix under `name` becomes `name|cells` and `name|index`, or `name|lower`; `name|shape` says what it was.
"""

import torch
from torch import Tensor

from tacit.core.payload import State

LARGE = 1_000_000  # cells; smaller matrices stay as they are
MARK = "|"


def compacted(state: State) -> State:
    """What is written."""
    out: State = {}
    for name, value in state.items():
        out |= {name + part: made for part, made in _parts(value).items()}
    return out


def restored(state: State) -> State:
    """The state again."""
    names = dict.fromkeys(name.split(MARK)[0] for name in state)
    return {name: state[name] if name in state else _whole(name, state) for name in names}


def _parts(value: Tensor) -> State:
    if value.is_sparse:
        value = value.coalesce()
        row, column = value.indices()
        return _cells(row * value.shape[1] + column, value.values(), value.shape, sparse=True)
    if value.dim() != 2 or value.numel() < LARGE or value.dtype != torch.float32:
        return {"": value}
    if int(torch.count_nonzero(value)) * 12 < value.nbytes:
        index = value.reshape(-1).nonzero()[:, 0]
        return _cells(index, value.reshape(-1)[index], value.shape, sparse=False)
    if value.shape[0] == value.shape[1] and _is_lower(value):
        return {
            MARK + "lower": torch.cat([row[: at + 1] for at, row in enumerate(value)]),
            MARK + "shape": torch.tensor(value.shape),
        }
    return {"": value}


def _cells(index: Tensor, value: Tensor, shape: torch.Size, sparse: bool) -> State:
    narrow = shape.numel() <= 2**31
    told = torch.tensor([*shape, int(sparse)])
    return {MARK + "index": index.int() if narrow else index, MARK + "cells": value, MARK + "shape": told}


def _whole(name: str, state: State) -> Tensor:
    shape = state[f"{name}{MARK}shape"].tolist()
    if f"{name}{MARK}lower" in state:
        return _square(state[f"{name}{MARK}lower"], shape[0])
    index, value = state[f"{name}{MARK}index"].long(), state[f"{name}{MARK}cells"]
    *shape, sparse = shape
    if sparse:
        place = torch.stack([index // shape[1], index % shape[1]])
        return torch.sparse_coo_tensor(place, value, shape, check_invariants=False).coalesce()
    return torch.zeros(shape).view(-1).index_put_((index,), value).view(shape)


def _square(lower: Tensor, size: int) -> Tensor:
    out, start = torch.zeros(size, size), 0
    for at in range(size):
        out[at, : at + 1] = lower[start : start + at + 1]
        start += at + 1
    return out


def _is_lower(value: Tensor) -> bool:
    return not any(bool(row[at + 1 :].any()) for at, row in enumerate(value))
