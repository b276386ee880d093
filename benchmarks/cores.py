"""What a second core gives: `python -m benchmarks.cores`. Rounds on two workers against one, beside pure products."""

import dataclasses
import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.measure import FEDMF, Round, Times, federation, in_turns, machine
from benchmarks.methods import METHODS
from tacit.config import build
from tacit.core.method import Method
from tacit.core.workers import Crew, can_fork, threaded
from tacit.data.cohort import Federation
from tacit.methods import find

NAMES = ("fedmf", "pfedrec", "fedrap", "pfedclr")
PIECES = 20  # of the products, so that a worker that is held up leaves some to the other


def cores(federation: Federation, repeats: int = 5, **settings: Any) -> dict[str, Any]:
    """Name -> wall seconds of a round on one worker and on two, and the share of the possible gain that it has.

    Products of matrices, which need next to no Python and memory, say what is possible at this moment: 2 where both
    cores are free. All four take turns; a gain is the median over the turns.
    """
    return {name: _cores(_method(name, settings), federation, repeats) for name in NAMES}


def _method(name: str, settings: dict[str, Any]) -> Method:
    if name == "fedmf":
        return dataclasses.replace(FEDMF, **settings)
    return build(find(name), dict(METHODS.get(name, {})) | settings)


def _cores(method: Method, federation: Federation, repeats: int) -> dict[str, Any]:
    one, two = (Round(method, federation, threads) for threads in (1, 2))
    one()
    began = perf_counter()
    one()
    seconds, began = perf_counter() - began, perf_counter()
    products(20)
    count = max(1, round(20 * seconds / (perf_counter() - began) / PIECES))
    crew = Crew(products, 2) if can_fork() else None
    pieces = [count] * PIECES
    works: dict[str, Callable[[], object]] = {
        "one": one,
        "two": two,
        "free_one": lambda: list(threaded(products, pieces, 1)),
        "free_two": lambda: list(crew.each(pieces) if crew else threaded(products, pieces, 2)),
    }
    times = in_turns(works, repeats)
    gain, possible = _gain(times["one"], times["two"]), _gain(times["free_one"], times["free_two"])
    return {
        "one_wall": times["one"].median_wall,
        "two_wall": times["two"].median_wall,
        "gain": gain,
        "possible": possible,
        "share": gain / possible,
        "one_cpu": times["one"].median_cpu,
        "two_cpu": times["two"].median_cpu,
        "processes": crew is not None,
        "each": {name: dataclasses.asdict(t) for name, t in times.items()},
    }


def _gain(one: Times, two: Times) -> float:
    return median(a / b for a, b in zip(one.wall, two.wall, strict=True))


def products(count: int) -> None:
    """A fixed amount of work outside Python."""
    x = torch.full((300, 300), 1e-3)
    for _ in range(count):
        torch.mm(x, x)


if __name__ == "__main__":
    found = cores(federation(sys.argv[1] if len(sys.argv) > 1 else "ml-100k"))
    print(json.dumps({"machine": machine(), "cores": found}, indent=2))
