"""tacit: federated recommendation over stacked clients.

>>> import tacit
>>> summary = tacit.run("fedmf", data="demo", rounds=5)  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tacit.errors import UserError

if TYPE_CHECKING:
    from tacit.runs.compare import compare
    from tacit.runs.run import recommend, resume, run

__all__ = ["UserError", "compare", "recommend", "resume", "run"]

_ROOMS = {"compare": "tacit.runs.compare"} | dict.fromkeys(("recommend", "resume", "run"), "tacit.runs.run")


def __getattr__(name: str) -> Any:
    """Load torch and the rest when they are first asked for, not for `tacit --help`."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'tacit' has no attribute '{name}'")
    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
