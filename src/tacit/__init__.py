"""tacit: federated recommendation over stacked clients.

>>> import tacit
>>> summary = tacit.run("fedmf", data="demo", rounds=5)  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tacit.errors import UserError

if TYPE_CHECKING:
    from tacit.data.frames import Data
    from tacit.runs.compare import compare
    from tacit.runs.lines import lines
    from tacit.runs.model import Model, load, recommend
    from tacit.runs.run import resume, run
    from tacit.runs.search import search
    from tacit.runs.train import train

__all__ = ["Data", "Model", "UserError", "compare", "lines", "load", "recommend", "resume", "run", "search", "train"]

_ROOMS = {
    "Data": "tacit.data.frames",
    "compare": "tacit.runs.compare",
    "lines": "tacit.runs.lines",
    "search": "tacit.runs.search",
    "train": "tacit.runs.train",
    **dict.fromkeys(("Model", "load", "recommend"), "tacit.runs.model"),
    **dict.fromkeys(("resume", "run"), "tacit.runs.run"),
}


def __getattr__(name: str) -> Any:
    """Load torch and the rest when they are first asked for, not for `tacit --help`."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'tacit' has no attribute '{name}'")
    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
