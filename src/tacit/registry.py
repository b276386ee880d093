"""Classes by name: those that stand in a room of the package, and any other as `module:Class`."""

import importlib
import inspect
import pkgutil
import sys
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
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
        return self._standing

    @cached_property
    def _standing(self) -> dict[str, type[T]]:
        package = importlib.import_module(self.room)
        inside = pkgutil.iter_modules(getattr(package, "__path__", []))
        found: dict[str, Any] = {}
        for module in [package, *(importlib.import_module(f"{self.room}.{m.name}") for m in inside)]:
            for cls in vars(module).values():
                if not inspect.isclass(cls) or not issubclass(cls, self.base) or cls.__module__ != module.__name__:
                    continue
                name = vars(cls).get("name")
                if name and (name not in found or issubclass(cls, found[name])):  # a class before what it is built on
                    found[name] = cls
        return dict(sorted(found.items()))

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
            hint = f"; write {module[:-3]}:{attribute}" if module.endswith(".py") else ""
            raise UserError(
                f"cannot import {self.kind} '{path}': there is no module '{module}' in this folder or among the "
                f"installed packages{hint}"
            ) from error
        except Exception as error:  # whatever somebody else's module does
            frames = traceback.extract_tb(error.__traceback__)
            where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if len(frames) > 1 else ""
            raise UserError(f"cannot import {self.kind} '{path}': {type(error).__name__}: {error}{where}") from error
        if not (inspect.isclass(found) and issubclass(found, self.base)):
            needed = f"{self.base.__module__}.{self.base.__name__}"
            raise UserError(f"'{path}' is not a {self.kind}: it must be a subclass of {needed}")
        return found
