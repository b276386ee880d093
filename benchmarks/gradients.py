"""What gradients written by hand gain over autograd, method by method: `python -m benchmarks.gradients`.

One that gains less than a fifth is not worth its lines.
"""

import dataclasses
import json
import sys
from typing import Any

from benchmarks.measure import FEDMF, Round, federation, in_turns
from benchmarks.methods import METHODS
from tacit.config import build
from tacit.core.trained import Trained
from tacit.methods import find

WORTH = 1.2
CASES: dict[str, dict[str, Any]] = {
    **{name: dict(METHODS[name]) for name in ("pfedgraph", "fedrap", "cofedrec")},
    "fedmf": dataclasses.asdict(FEDMF),  # as it is compared with the plain loop
    "pfedclr": {},
    "cgfedrec": {"anchors": 16},
    "hetefedrec": {"fraction": 1.0},
    "plgc+fedmf": {"dim": 32, "epochs": 2},
}


def left_to_autograd(method: Trained) -> Trained:
    """The same method with none of its gradients."""
    base = type(method)
    marked = {n for k in base.__mro__ for n, f in vars(k).items() if hasattr(f, "gradient") and callable(f)}
    body: dict[str, Any] = {name: _unmarked(getattr(base, name)) for name in sorted(marked)}
    made = dataclasses.dataclass(frozen=True)(type(base.__name__, (base,), body))
    plain: Trained = made(**{f.name: getattr(method, f.name) for f in dataclasses.fields(method)})
    return plain


def _unmarked(loss: Any) -> Any:
    return lambda self, p, batch: loss(self, p, batch)


def gains(names: list[str], repeats: int = 5) -> dict[str, dict[str, float]]:
    """CPU seconds of the clients' part of a round by hand and by autograd, taking turns, and their ratio."""
    ground = federation("ml-100k")
    out = {}
    for name in names:
        method = build(find(name), CASES[name])
        assert isinstance(method, Trained)
        rounds = {
            "hand": Round(method, ground, number=2),
            "autograd": Round(left_to_autograd(method), ground, number=2),
        }
        times = in_turns(rounds, repeats)
        hand, autograd = times["hand"].median_cpu, times["autograd"].median_cpu
        out[name] = {"hand": hand, "autograd": autograd, "gain": autograd / hand}
        print(f"{name:12s} by hand {hand:6.2f} s, autograd {autograd:6.2f} s, gain {autograd / hand:.2f}", flush=True)
    return out


if __name__ == "__main__":
    print(json.dumps(gains(sys.argv[1:] or list(CASES)), indent=1))
