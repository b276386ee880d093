"""Classes by name: those that stand in a room of the package, and any other as `module:Class`."""

import importlib
import inspect
import pkgutil
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from tacit.errors import UserError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Every subclass of `base` that has a `name` of its own and stands in `room`, a module or a package of modules."""

    kind: str  # what its classes are called in messages
    room: str
    base: type[T]

    def known(self) -> dict[str, type[T]]:
        """The classes of the room by name."""
        return _standing(self.room, self.base)

    def find(self, name: str) -> type[T]:
        """The class behind a name, whatever its case, or behind `module:Class`."""
        if ":" in name:
            return self._imported(name)
        if name.lower() not in self.known():
            raise unknown(self.kind, name, self.known())
        return self.known()[name.lower()]

    def _imported(self, path: str) -> type[T]:
        module, _, attribute = path.partition(":")
        if "" not in sys.path:  # a module beside the user's files is found wherever the command itself stands
            sys.path.insert(0, "")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name != module.partition(".")[0]:
                raise UserError(f"cannot import {self.kind} '{path}': {error}") from error
            raise UserError(
                f"cannot import {self.kind} '{path}': there is no module '{module}' in this folder or among the "
                "installed packages"
            ) from error
        except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
            raise UserError(f"cannot import {self.kind} '{path}': {error}") from error
        if not (inspect.isclass(found) and issubclass(found, self.base)):
            needed = f"{self.base.__module__}.{self.base.__name__}"
            raise UserError(f"'{path}' is not a {self.kind}: it must be a subclass of {needed}")
        return found


@cache
def _standing(room: str, base: type[Any]) -> dict[str, type[Any]]:
    package = importlib.import_module(room)
    modules = [package]
    for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
        modules.append(importlib.import_module(f"{room}.{module.name}"))
    found: dict[str, type[Any]] = {}
    for loaded in modules:
        for _, cls in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(cls, base) and cls.__module__ == loaded.__name__ and "name" in vars(cls):
                found[cls.name] = cls
    return dict(sorted(found.items()))
