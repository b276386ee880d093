"""What goes over a method: a plug-in's hooks before the method's own, and the settings of both."""

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.method import Method


@dataclass(frozen=True)
class Plug:
    """Its own settings start with its name; `super()` is the method below."""

    name: ClassVar[str]

    @classmethod
    def unfit(cls, method: Method) -> str:
        """What a method would need to have this over it, and lacks; empty: it fits."""
        return ""
