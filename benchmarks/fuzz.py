"""Bytes can only be refused: mutations of real messages against the decoder, what became of them, and the peak memory.

python -m benchmarks.fuzz [--count 100000] [--seed 0]      writes results/fuzz.json
"""

import argparse
import copy
import json
import math
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine
from tacit.core.payload import BadPayload, Cut, Each, Few, Payload, Product, Rows, Shared, Sparse, decode

RESULTS = Path(__file__).parent / "results"
MOST = 1 << 20  # bytes that a message may have and unfold to
NUMBERS = [-1, 0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**61, 2**62, 2**63 - 1, -(2**63)]
EXTREMES: list[Any] = [
    *NUMBERS,
    *(2**64, 10**400, 1e308, -0.5, math.nan, math.inf, True, None, "", "x", "shared", "each", "sparse", "few", "cut"),
    *("F8_E4M3", "F8_E5M2", "BOOL", "C64", "U64", "U32", "U16", "F64", "F32", "BF16", "I64", "I8"),
    *([], {}, [2**62] * 4, [0, 2**62], [2**40] * 8, [1] * 70, [[[]]], {"kind": "each"}),
]


def messages() -> list[Payload]:
    """Every kind of field by itself, and all of them in one message."""
    draw = torch.Generator().manual_seed(0)
    rows, real = torch.tensor([[2, 0], [1, 3], [0, 1]]), torch.tensor([[True, False], [True, True], [True, True]])
    table = Rows(torch.randn(3, 2, 4, generator=draw), rows, real, torch.linspace(-1, 1, 20).view(5, 4))
    columns = torch.tensor([[0, 4], [0, 2], [1, 3]])
    mask = ((torch.arange(4) >= columns[:, :1]) & (torch.arange(4) < columns[:, 1:]))[:, None]
    fields = {
        "all": Shared(torch.randn(5, 4, generator=draw)),
        "vector": Each(torch.randn(3, 4, generator=draw)),
        "weight": Each(torch.tensor([3.0, 1.0, 2.0]), private=False),
        "table": table,
        "cells": Sparse(torch.tensor([0, 0, 2]), torch.tensor([5, 1, 2]), torch.ones(3), (2, 3)),
        "matrix": Product(torch.randn(3, 3, 1, generator=draw), torch.randn(3, 3, 1, generator=draw)),
        "few": Few((torch.ones(5, 1), torch.ones(5, 2), torch.ones(5, 4)), torch.tensor([1, 0, 1]), 4),
        "cut": Cut(Each(torch.randn(3, 5, 4, generator=draw) * mask), columns),
    }
    ids = torch.tensor([4, 8, 9])
    return [*(Payload(ids, {n: f}) for n, f in fields.items()), Payload(ids, fields)]


def flipped(blob: bytes, other: bytes, draw: random.Random) -> bytes:
    out = bytearray(blob)
    for _ in range(draw.randint(1, 8)):
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
    return bytes(out)


def truncated(blob: bytes, other: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.randrange(len(blob) + 1) for _ in range(2))
    return draw.choice([blob[:end], blob[start:], blob[:start] + blob[end:], blob + draw.randbytes(end)])


def spliced(blob: bytes, other: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.5:  # the header of one, the tensors of the other
        return blob[: 8 + int.from_bytes(blob[:8], "little")] + other[8 + int.from_bytes(other[:8], "little") :]
    return blob[: draw.randrange(len(blob))] + other[draw.randrange(len(other)) :]


def renumbered(blob: bytes, other: bytes, draw: random.Random) -> bytes:
    """Whole numbers in a tensor overwritten: counts, indices, groups, columns, ids."""
    start = 8 + int.from_bytes(blob[:8], "little")
    out = bytearray(blob)
    tensors = [t for n, t in json.loads(blob[8:start]).items() if n != "__metadata__"]
    first, behind = draw.choice(tensors)["data_offsets"]
    number = draw.choice(NUMBERS).to_bytes(8, "little", signed=True)
    for place in range(start + first, start + behind - 7, 8):
        if draw.random() < 0.7:
            out[place : place + 8] = number
    return bytes(out)


def reheaded(blob: bytes, other: bytes, draw: random.Random) -> bytes:
    """A header or the kinds in it with something else in a place or two."""
    start = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:start])
    kinds = json.loads(header["__metadata__"]["kinds"])
    for _ in range(draw.randint(1, 2)):
        _edit(draw.choice([header, kinds]), draw)
    text = json.dumps(kinds)
    if draw.random() < 0.1:
        twice = text.replace("{", '{"all": {}, "all": {},', 1)
        text = draw.choice(["[" * 100_000, '{"a":' * 50_000, twice, text + "]"])
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["kinds"] = text
    whole = json.dumps(header)
    if draw.random() < 0.05:
        whole = draw.choice(["[" * 100_000, whole.replace("{", '{"ids": 1,', 1), " " * 2_000_000 + whole, whole[:-1]])
    written = whole.encode()
    return len(written).to_bytes(8, "little") + written + blob[start:]


def _edit(where: Any, draw: random.Random) -> None:
    """One place of a JSON tree, at any depth."""
    while isinstance(where, dict | list) and where:
        key = draw.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if not isinstance(where[key], dict | list) or draw.random() < 0.2:
            if draw.random() < 0.1:
                del where[key]
            else:
                where[key] = copy.deepcopy(draw.choice(EXTREMES))  # a later edit may go into it
            return
        where = where[key]


MUTATIONS: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    flipped,
    truncated,
    spliced,
    renumbered,
    reheaded,
)


def outcome(blob: bytes, expected: dict[str, str] | None = None) -> str:
    """What becomes of bytes: refused, or a payload that can be looked at and sent on; anything else is raised."""
    try:
        made = decode(blob, MOST, expected)
    except BadPayload:
        return "refused"
    clients = len(made.ids)
    for field in made.fields.values():
        assert field.held().nbytes <= max(clients, 1) * MOST
        assert len(field.norms(None, clients)) in (1, clients)
        assert field.nbytes(clients) >= 0
    some = made.only(torch.arange(clients))
    again = decode(some.encode(), 4 * MOST)
    assert again.kinds() == made.kinds()
    assert torch.equal(again.ids, made.ids)
    return "accepted"


def fuzz(count: int, seed: int = 0) -> Counter[str]:
    """So many mutations, each tried with and without the kinds that are expected; how often which came to what."""
    draw, found = random.Random(seed), Counter[str]()
    known = [(made.encode(), made.kinds()) for made in messages()]
    for _ in range(count):
        mutate = draw.choice(MUTATIONS)
        (blob, kinds), (other, _) = draw.choice(known), draw.choice(known)
        bad = mutate(blob, other, draw)
        result = outcome(bad, draw.choice([None, kinds]))
        found[f"{mutate.__name__} {result}"] += 1
    return found


def main() -> None:
    """Run it, print it and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    fuzz(200, asked.seed + 1)  # what the libraries take once is no message's
    unit = 1 if sys.platform == "darwin" else 1024
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, time.perf_counter()
    found = fuzz(asked.count, asked.seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    result = {
        "machine": machine(),
        "mutations": asked.count,
        "outcomes": dict(sorted(found.items())),
        "seconds": round(time.perf_counter() - began, 1),
        "megabytes_before": round(before / 1e6, 1),
        "megabytes_peak": round(peak / 1e6, 1),
    }
    print(json.dumps(result, indent=1))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "fuzz.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
