"""Every method by its name, and any other by `module:Class`."""

from dataclasses import dataclass
from functools import cache

from tacit.core.method import Method
from tacit.core.plug import Plug
from tacit.errors import UserError
from tacit.registry import Registry

METHODS = Registry("method", __name__, Method)  # type: ignore[type-abstract]
PLUGS = Registry("plug-in", __name__, Plug)


def known() -> dict[str, type[Method]]:
    """Every method that stands in this folder, by name."""
    return METHODS.known()


def find(name: str) -> type[Method]:
    """The class behind a name, a `module:Class`, or either of them with a plug-in before it, as in `plgc+fedmf`."""
    plug, plus, backbone = name.partition("+")
    return plugged(plug, backbone) if plus else METHODS.find(name)


@cache
def plugged(plug: str, backbone: str) -> type[Method]:
    """A method with a plug-in over it: the hooks of both, and the settings of both."""
    over, below = PLUGS.find(plug), find(backbone)
    lacks = "a method without another plug-in" if "+" in backbone else over.unfit(below())
    if lacks:
        raise UserError(f"{plug} cannot go over {backbone}: it needs {lacks}")
    body = {"__doc__": below.__doc__, "__module__": __name__, "name": f"{over.name}+{backbone}"}
    made: type[Method] = dataclass(frozen=True)(type(f"{over.__name__}+{below.__name__}", (over, below), body))
    return made
