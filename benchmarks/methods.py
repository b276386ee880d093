"""What a training round of each method costs: CPU seconds on one thread, at the public code's epochs and batch."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.measure import Round, federation, in_turns
from tacit.config import build
from tacit.core.method import Method
from tacit.core.trained import Trained
from tacit.methods import find

Settings = Mapping[str, Any]

_ADAM = {"optimizer": "adam", "epochs": 2, "batch": 256, "fraction": 1.0}  # every client in every round
METHODS: dict[str, Settings] = {
    "fedmf": {"dim": 32} | _ADAM,
    "fedncf": {"dim": 32, "layers": (32, 16, 8)} | _ADAM,
    "pfedgraph": {"dim": 16} | _ADAM | {"epochs": 10},
    "fedca": {"dim": 16} | _ADAM | {"epochs": 10},
    "pfedrec": {"dim": 32, "epochs": 1, "batch": 256, "fraction": 1.0},
    "fedrap": {"dim": 32, "epochs": 10, "batch": 2048, "fraction": 1.0},
    "gpfedrec": {"dim": 32, "layers": (32, 16, 8), "epochs": 1, "batch": 256, "fraction": 1.0},
    "cofedrec": {"dim": 32, "epochs": 2, "batch": 256, "fraction": 1.0},
    # one local epoch and the batch of the others: the paper names neither, and there is no public code
    "hetefedrec": {"widths": (8, 16, 32), "lr": 0.001, "table_lr": 0.001} | _ADAM | {"epochs": 1},
    # FedCIA's public code has 512 columns, for its hundred clients of many users
    "fedlightgcn": {"dim": 64, "layers": 5, "negatives": 1} | _ADAM | {"epochs": 1, "batch": 4096},
    "perfedrec": {"dim": 64, "layers": 3, "negatives": 1} | _ADAM | {"epochs": 1, "batch": 1024},
    "lightgcn": {"dim": 64, "layers": 3, "negatives": 1, "batch": 2048},
}


def costs(methods: Mapping[str, Settings] = METHODS, data: str = "ml-100k", repeats: int = 5) -> dict[str, Any]:
    """Name -> settings, CPU seconds (the clients' part of them, too) and microseconds per interaction of a round."""
    built = {name: build(find(name), dict(settings)) for name, settings in methods.items()}
    # the second round: some losses have terms that need what a first one left on the server
    rounds = {name: Round(_trained(m), federation(data, m.pooled), number=2) for name, m in built.items()}
    times = in_turns(rounds, repeats)
    return {
        name: {
            "settings": dict(methods[name]),
            "clients": len(round.ids),
            "interactions": round.interactions,
            "cpu": times[name].median_cpu,
            "cpu_each": times[name].cpu,
            "cpu_clients": median(round.cpu_clients[-repeats:]),
            "us_per_interaction": 1e6 * times[name].median_cpu / round.interactions,
        }
        for name, round in rounds.items()
    }


def _trained(method: Method) -> Trained:
    if not isinstance(method, Trained):
        raise ValueError(f"'{method.name}' has no phases: it does not train, so a round of it is not timed here")
    return method
