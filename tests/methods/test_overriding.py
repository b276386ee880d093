"""A subclass that overrides a hook is obeyed, in every method that trains: no gradient of another loss is used."""

from dataclasses import dataclass, fields

import pytest
import torch

from methods.test_conformance import CASES
from tacit import testing
from tacit.config import build
from tacit.core.fleet import SimulatedFleet
from tacit.core.objective import gradient_of
from tacit.core.trained import Trained
from tacit.methods import find

VARIANTS = {
    "hetefedrec-large": ("hetefedrec", {"variant": "large", "widths": (2, 4, 8), "layers": (4,)}),
    "hetefedrec-lightgcn": ("hetefedrec", {"backbone": "lightgcn", "widths": (2, 4, 8), "layers": (4,)}),
    "pfedclr-cf": ("pfedclr", {"variant": "cf", "dim": 8, "epochs": 1}),
    "fedcia-mlp": ("fedcia", {"backbone": "mlp", "dim": 8, "epochs": 1, "batch": 64}),
    "fedcia-lightgcn": ("fedcia", {"backbone": "lightgcn", "dim": 8, "epochs": 1, "batch": 64}),
}
NAMES = [name for name in CASES if issubclass(find(name), Trained)]


def made(name):
    method, settings = VARIANTS.get(name) or (name, CASES[name].quick)
    return build(find(method), settings)


def loss(base):
    def shrunk(self, p, batch):
        moving = [x for x in p.values() if x.requires_grad]
        return base.loss(self, p, batch) + 0.1 * sum(x.square().flatten(1).sum(1) for x in moving)

    return {"loss": shrunk}


def score(base):
    return {
        "score": lambda self, p, table: 3 * base.score(self, p, table),
        "pairs": lambda self, p, table, slot, row: 3 * base.pairs(self, p, table, slot, row),
    }


def view(base):
    return {"view": lambda self, p: 2 * base.view(self, p)}


@pytest.mark.parametrize("hook", [loss, score, view])
@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_an_overridden_hook_takes_effect_in_training(name, hook):
    plain = made(name)
    base = type(plain)
    changed = dataclass(frozen=True)(type("Changed", (base,), hook(base)))
    other = changed(**{f.name: getattr(plain, f.name) for f in fields(plain)})
    federation = testing.clients(plain, users=10)
    before, after = (states(method, federation) for method in (plain, other))
    moved = [n for n in before if not torch.allclose(before[n].float(), after[n].float(), atol=1e-7, rtol=1e-6)]
    assert moved, f"{hook.__name__} of a subclass of {name} changes nothing"
    for phase in other.phases(2):
        if getattr(phase.loss, "__name__", "") == "loss":
            assert gradient_of(phase.loss) is None


def states(method, federation):
    """Everything that two rounds leave behind, on the server and on clients."""
    server, clients = testing.trained(method, federation)
    return {f"server/{n}": x for n, x in server.items()} | {f"clients/{n}": x for n, x in clients.items()}


def test_the_gradients_that_stay_are_used():
    """What they gain over autograd is in benchmarks/gradients.py."""
    for name in ("fedmf", "fedncf", "gpfedrec", "fedrap", "pfedclr", "pfedgraph", "cgfedrec", "cofedrec", "hetefedrec"):
        assert gradient_of(made(name).loss) is not None, name
    fleet = SimulatedFleet(made("fedmf"), testing.clients(made("fedmf"), 4), threads=1)
    assert gradient_of(fleet.method.loss) is not None
