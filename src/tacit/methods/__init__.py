"""Every method by its name, and any other by `module:Class`."""

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from functools import cache

from tacit.core.method import Method
from tacit.errors import UserError, unknown
from tacit.methods.plgc import PLGC

PLUGS: dict[str, type] = {"plgc": PLGC}  # what goes over a method, by name; its settings start with that name


@cache
def known() -> dict[str, type[Method]]:
    """Every method that stands in this folder, by name."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for _, cls in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(cls, Method) and cls.__module__ == loaded.__name__ and "name" in vars(cls):
                found[cls.name] = cls
    return dict(sorted(found.items()))


def find(name: str) -> type[Method]:
    """The class behind a name, a `module:Class`, or either of them with a plug-in before it, as in `plgc+fedmf`."""
    plug, plus, backbone = name.partition("+")
    if plus:
        return plugged(plug, backbone)
    if ":" in name:
        return _imported(name)
    if name not in known():
        raise unknown("method", name, known())
    return known()[name]


@cache
def plugged(plug: str, backbone: str) -> type[Method]:
    """A method with a plug-in over it: the hooks of both, and the settings of both."""
    if plug not in PLUGS:
        raise unknown("plug-in", plug, PLUGS)
    below = find(backbone)
    plain = below()
    if "+" in backbone or plain.pooled or "items" not in plain.shared or not plain.phases(1):
        raise UserError(f"{plug} does not go over {backbone}: it needs clients that train a shared item table")
    over = PLUGS[plug]
    body = {"__doc__": below.__doc__, "__module__": __name__, "name": f"{plug}+{backbone}"}
    made: type[Method] = dataclass(frozen=True)(type(f"{over.__name__}+{below.__name__}", (over, below), body))
    return made


def _imported(path: str) -> type[Method]:
    module, _, attribute = path.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"cannot import method '{path}': {error}") from error
    if not (inspect.isclass(cls) and issubclass(cls, Method)):
        raise UserError(f"'{path}' is not a method: it must be a subclass of tacit.core.method.Method")
    return cls
