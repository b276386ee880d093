"""Every method by its name, and any other by `module:Class`."""

import importlib
import inspect
import pkgutil
from functools import cache

from tacit.core.method import Method
from tacit.errors import UserError, unknown


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
    """The class behind a name or a `module:Class`."""
    if ":" in name:
        return _imported(name)
    if name not in known():
        raise unknown("method", name, known())
    return known()[name]


def _imported(path: str) -> type[Method]:
    module, _, attribute = path.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"cannot import method '{path}': {error}") from error
    if not (inspect.isclass(cls) and issubclass(cls, Method)):
        raise UserError(f"'{path}' is not a method: it must be a subclass of tacit.core.method.Method")
    return cls
