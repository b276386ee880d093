"""`tacit methods`: what there is to run, and its settings."""

import dataclasses
import gc
import inspect
import re
from typing import Annotated, Any

import typer

from tacit.cli.screen import out, show


def methods(
    name: Annotated[
        str | None, typer.Argument(help="show one method with all its settings", show_default=False)
    ] = None,
) -> None:
    """List all methods with their own settings, or one method with all its settings."""
    from rich.table import Table

    gc.disable()  # nothing that is loaded here is garbage, and looking for it takes a quarter of the time
    from tacit import methods as registry
    from tacit.core.trained import Trained

    registry.known()
    gc.freeze()  # or the interpreter looks for it at its end
    gc.enable()
    if name is not None:
        _one(name, registry.PLUGS.known().get(name) or registry.find(name))
        return
    table = Table("method", "kind", "what it is", "paper", "settings of its own")
    for called, cls in registry.known().items():
        table.add_row(called, _kind(cls), _about(cls), cls.paper, _settings(cls, Trained))
    for called, plug in registry.PLUGS.known().items():
        table.add_row(f"--plug {called}", "plug-in", _about(plug), getattr(plug, "paper", ""), _settings(plug, Trained))
    show(table)
    out.print("tacit methods NAME lists all settings of a method; --set NAME=VALUE changes one.")


def _one(name: str, cls: Any) -> None:
    from rich.table import Table

    from tacit.core.settings import settings_of

    paper = getattr(cls, "paper", "")
    out.print(f"{name}: {inspect.getdoc(cls) or ''}" + (f"\n\n{paper}" if paper else ""))
    table = Table("setting", "default", "type", "range", "searched", "what it is")
    for one in settings_of(cls).values():
        table.add_row(one.name, _short(one.default), one.type, one.limits, one.searched, _comment(cls, one.name))
    show(table)
    for start in getattr(cls, "starts", ()):
        out.print("a search also starts from " + " ".join(f"{key}={value}" for key, value in start.items()))


def _about(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _kind(cls: Any) -> str:
    from tacit.core.closed_form import ClosedForm

    return "reference" if cls.pooled else "closed form" if issubclass(cls, ClosedForm) else "trained"


def _settings(cls: Any, base: Any) -> str:
    common = {field.name for field in dataclasses.fields(base)}
    return ", ".join(f"{f.name}={_short(f.default)}" for f in dataclasses.fields(cls) if f.name not in common)


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _comment(cls: type, setting: str) -> str:
    """What stands beside a setting in the source of the class that declares it, or of one that it is built on."""
    for owner in cls.__mro__:
        if setting in vars(owner).get("__annotations__", {}):
            try:
                source = inspect.getsource(owner)
            except (OSError, TypeError):
                continue
            if found := re.search(rf"^ +{setting}\s*:[^#\n]*#\s*(.*)$", source, re.MULTILINE):
                return found[1]
    return ""
