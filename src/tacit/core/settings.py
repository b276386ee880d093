"""What a setting may be: its type and range stand beside it, as in `dim: Width = 16`, and are read only here."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Search:
    """Where a search looks for a number: `lr: Annotated[Rate, Search(1e-4, 1, log=True)] = 0.01`."""

    low: float
    high: float
    log: bool = False  # try 0.01 to 0.1 as often as 0.1 to 1
    times: bool = False  # low and high are multiples of the default: rates of plain SGD are far from those of Adam
    zero: bool = False  # and half of the time 0, which turns it off
    when: str = ""  # only where another setting is on, `dual`, or has one of these values, `backbone=mf|mlp`


@dataclass(frozen=True)
class Choices:
    """The values that a search tries: `layers: Annotated[Whole, Choices((1, 2, 4))] = 1`."""

    values: tuple[Any, ...] = ()  # empty: all of a Literal's; a single one: it is not searched
    when: str = ""


Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Width = Annotated[int, Field(ge=1, le=4096), Search(8, 128, log=True)]  # of vectors and layers
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False), Search(1 / 30, 30, log=True, times=True)]
Weight = Rate  # of a term in a loss
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1), Search(0, 1)]
Part = Annotated[float, Field(gt=0, le=1)]  # of a whole, not nothing
Decay = Part
Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Negatives = Annotated[int, Field(ge=0, le=10_000), Search(1, 8, log=True)]
Epochs = Annotated[int, Field(ge=0), Search(1, 10, log=True)]
Spread = Annotated[float, Field(gt=0, le=1000), Search(0.1, 10, log=True, times=True)]  # of starting values
Rank = Annotated[int, Field(ge=0, le=4096)]  # 0: whole
Seed = Annotated[int, Field(ge=-1)]
Windows = Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=1)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]
Positives = Annotated[tuple[Positive, ...], Field(min_length=1)]
Shares = Annotated[tuple[Share, ...], Field(min_length=1)]
Starts = tuple[Mapping[str, Any], ...]  # settings by name, for each


@dataclass(frozen=True)
class Setting:
    """A setting as its class declares it."""

    name: str
    default: Any
    kind: Any  # its type, with the range in it
    search: Search | Choices | None  # None: not searched unless a range is given

    @property
    def limits(self) -> str:
        """Its range in words, as in `at least 1`; empty: any value of its type."""
        return _limits(self.kind)

    @property
    def type(self) -> str:
        """Its type as a person writes values: `int`, `adam or sgd`, `int, …`."""
        return _type(self.kind)

    @property
    def searched(self) -> str:
        """Where a search looks, `0.03 to 30, log`; empty: nowhere unless it is told to."""
        if isinstance(self.search, Choices):
            values = self.search.values or choices_of(self.kind)
            return " or ".join(map(_joined, values)) if len(values) > 1 else ""
        if self.search is None:
            return ""
        off = ", or 0" if self.search.zero else ""
        return f"{self.search.low:.3g} to {self.search.high:.3g}{', log' if self.search.log else ''}{off}"

    @property
    def whole(self) -> bool:
        """Whether it is a whole number."""
        return _type(self.kind) == "int"

    def parse(self, value: Any) -> Any:
        """A value of its type and within its range, from text too; raises a ValueError that says what is wrong."""
        plain = self.kind
        while typing.get_origin(plain) is Annotated:
            plain = typing.get_args(plain)[0]
        if typing.get_origin(plain) is tuple:
            if isinstance(value, int | float):
                value = [value]
            elif isinstance(value, str):
                value = [part for part in value.strip("()[] ").split(",") if part.strip()]
        elif isinstance(plain, types.UnionType) and isinstance(value, str) and value.lower() in ("none", "null"):
            value = None
        try:
            return TypeAdapter(self.kind).validate_python(value)
        except ValidationError as error:
            raise ValueError(reason(error)) from None


@cache
def settings_of(cls: Any) -> dict[str, Setting]:
    """Every setting of a method by name; a class that only gives one another default keeps its range."""
    return settings_from(cls, {})


def settings_from(cls: Any, start: Mapping[str, Any]) -> dict[str, Setting]:
    """The same with other defaults, and the ranges of a search around these."""
    out = {}
    plain = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = plain[field.name]
        for owner in cls.__mro__:
            if field.name in vars(owner).get("__annotations__", {}):
                ranged = typing.get_type_hints(owner, include_extras=True)[field.name]
                if ranged != kind and typing.get_type_hints(owner)[field.name] == kind:
                    kind = ranged
                    break
        default = start.get(field.name, None if field.default is dataclasses.MISSING else field.default)
        declared = [x for x in getattr(kind, "__metadata__", ()) if isinstance(x, Search | Choices)]
        search = _fitted(declared[-1], default) if declared else None  # the outermost counts
        out[field.name] = Setting(field.name, default, kind, search)
    return out


def _fitted(search: Search | Choices, default: Any) -> Search | Choices | None:
    """A declared range with the default in it; None where the default is 0, which means off or the same as another."""
    if isinstance(search, Choices):
        return search
    if not default and search.low > 0 and not search.zero:
        return None
    if search.times:
        return replace(search, low=search.low * default, high=search.high * default, times=False)
    if default and search.log and not search.low <= default <= search.high:
        around = math.sqrt(search.high / search.low)
        return replace(search, low=default / around, high=default * around)
    if default is None or search.zero:
        return search
    return replace(search, low=min(search.low, default), high=max(search.high, default))


def choices_of(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal."""
    return choices_of(typing.get_args(kind)[0]) if typing.get_origin(kind) is Annotated else typing.get_args(kind)


def reason(error: ValidationError | Mapping[str, Any]) -> str:
    """The first thing that is wrong with a value, in plain words; of an error of its own, that one."""
    first = error.errors()[0] if isinstance(error, ValidationError) else error
    given: dict[str, Any] = first.get("ctx", {})
    words = {
        "greater_than_equal": "it must be at least {ge:g}",
        "greater_than": "it must be above {gt:g}",
        "less_than_equal": "it must be at most {le:g}",
        "less_than": "it must be below {lt:g}",
        "too_short": "it needs at least {min_length} value",
        "finite_number": "it must be a finite number",
        **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "it must be a whole number"),
        **dict.fromkeys(("float_parsing", "float_type"), "it must be a number"),
        **dict.fromkeys(("bool_parsing", "bool_type"), "it must be true or false"),
    }
    if first["type"] in words:
        return words[first["type"]].format(**given)
    return str(first["msg"][:1].lower() + first["msg"][1:])


def _limits(kind: Any) -> str:
    """Of a tuple, the range of its members."""
    infos = [x for x in getattr(kind, "__metadata__", ()) if isinstance(x, FieldInfo)]
    return next(filter(None, [*map(_words, infos), *map(_limits, typing.get_args(kind))]), "")


def _words(info: FieldInfo) -> str:
    """`above 0, at most 1`."""
    names = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = {name: value for m in info.metadata for name in names if (value := getattr(m, name, None)) is not None}
    if set(found) == {"ge", "le"}:
        return f"{_number(found['ge'])} to {_number(found['le'])}"
    return ", ".join(f"{names[name]} {_number(value)}" for name, value in found.items())


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and math.isfinite(value) else f"{value:g}"


def _joined(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _type(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type(parts[0])
    if origin is typing.Literal:
        return " or ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_type, parts))
    if origin is tuple:
        return ", ".join("…" if part is Ellipsis else _type(part) for part in parts)
    return "none" if kind is type(None) else getattr(kind, "__name__", str(kind))
