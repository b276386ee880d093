"""Where a search looks: the ranges that a method declares beside its settings, and those that were typed instead."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tacit.core.capabilities import refined
from tacit.core.method import Method
from tacit.core.settings import Choices, Search, Setting, choices_of, settings_from, settings_of
from tacit.errors import UserError, unknown
from tacit.methods import find

START = "start"  # what a trial starts from: the defaults, or one of the settings that a method names in `starts`
WAY = "write key=low:high, key=low:high:log or key=a,b,c, as in --range lr=0.01:1:log"  # lists as in layers=8/16,8


class Suggests(Protocol):
    """What draws values: a trial of Optuna."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number between two."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """A whole number between two, both included."""

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        """One of several."""


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched: between two numbers, or among values."""

    name: str
    default: Any
    values: tuple[Any, ...] = ()  # empty: a range
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    zero: bool = False
    when: str = ""
    start: int = 0  # which of the starts it belongs to: ranges lie around what a trial starts from

    def __str__(self) -> str:
        """As --range takes it: `lr=0.01:1:log`."""
        if self.values:
            return f"{self.name}={' or '.join(map(_short, self.values))}"
        return f"{self.name}={self.low:.3g}:{self.high:.3g}{':log' * self.log}{' or 0' * self.zero}"

    @property
    def key(self) -> str:
        """Its name in a journal, where a name has one range."""
        return f"{self.name} from {self.start}" if self.start else self.name

    @property
    def contains_default(self) -> bool:
        """Whether the method's own value can be drawn."""
        if self.values:
            return self.default in self.values
        return (self.zero and not self.default) or self.low <= self.default <= self.high

    @property
    def at_default(self) -> dict[str, Any]:
        """The method's own value as a trial writes it down."""
        if self.values:
            return {self.key: _text(self.default)}
        switch = {f"{self.key} is on": bool(self.default)} if self.zero else {}
        return switch | ({self.key: self.default} if self.default or not self.zero else {})

    def draw(self, trial: Suggests) -> Any:
        """A value; numbers have three digits, so that a command can be read."""
        if self.values:
            texts = list(map(_text, self.values))
            return self.values[texts.index(trial.suggest_categorical(self.key, texts))]
        if self.zero and not trial.suggest_categorical(f"{self.key} is on", [False, True]):
            return 0
        if self.whole:
            return trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)
        value = trial.suggest_float(self.key, self.low, self.high, log=self.log)
        return value if value == self.default else float(f"{value:.3g}")

    def active(self, settings: Mapping[str, Any]) -> bool:
        """Whether it matters beside these settings."""
        key, sign, values = self.when.partition("=")
        if not key or key not in settings:
            return not key
        return str(settings[key]) in values.split("|") if sign else bool(settings[key])


Space = tuple[Dimension, ...]


def space_of(method: str, fixed: Mapping[str, Any], ranges: Mapping[str, str]) -> Space:
    """What is searched of a method: what it declares, without what is fixed, with the ranges that were given.

    A method that names `starts` has these ranges around each of them.
    """
    cls = refined(find(method), fixed)
    known = settings_of(cls)
    for key in [*fixed, *ranges]:
        if key not in known:
            raise unknown(f"setting of {method}", key, known)
    if "rounds" in ranges:
        raise UserError("rounds are not searched: every run reports the best of its rounds; --rounds says how many")
    if not isinstance(cls.starts, tuple) or not all(isinstance(start, Mapping) for start in cls.starts):
        raise UserError(f"starts of {method} is not a tuple of settings, as in ({{'lr': 1.0}},)")
    for key in (key for start in cls.starts for key in start if key not in known):
        raise unknown(f"setting of {method} in its starts", key, known)
    if both := next((key for key in ranges if key in fixed), None):
        raise UserError(f"{both} is both fixed with --set and searched with --range; leave one out")
    starts: list[dict[str, Any]] = [{}, *({k: v for k, v in start.items() if k not in fixed} for start in cls.starts)]
    found = []
    for place, start in enumerate(starts):
        these = settings_from(cls, start)
        found += [
            replace(_given(these[key], ranges[key]) if key in ranges else _declared(these[key]), start=place)
            for key in known
            if key not in fixed and (key in ranges or _searched(cls, these[key]))
        ]
    which = [Dimension(START, {}, tuple(starts))] if len(starts) > 1 else []
    return (*which, *sorted(found, key=lambda one: bool(one.when)))  # what others depend on is drawn first


def shared_ranges(methods: Iterable[str], given: Mapping[str, Any], sign: str) -> dict[str, dict[str, Any]]:
    """Method -> those of the settings given that it has; one that no method has is an error."""
    fields = {name: settings_of(refined(find(name), given)) for name in methods}
    for key in given:
        if not any(key in known for known in fields.values()):
            if len(fields) == 1:
                ((name, known),) = fields.items()
                raise unknown(f"setting of {name}", key, known)
            raise UserError(f"no method here has a setting '{key}', given with {sign}: {', '.join(fields)}")
    return {name: {k: v for k, v in given.items() if k in known} for name, known in fields.items()}


def drawn(space: Space, trial: Suggests, fixed: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a trial: those that matter and differ from the method's `own`."""
    chosen: dict[str, Any] = {}
    start = 0
    for one in space:
        if one.name == START:
            chosen = dict(one.draw(trial))
            start = one.values.index(chosen)
        elif one.start == start and one.active({**own, **fixed, **chosen}):
            chosen[one.name] = one.draw(trial)
    return {key: value for key, value in chosen.items() if value != own[key]}


def points(space: Space) -> list[dict[str, Any]]:
    """What a trial draws that is the defaults, or another start; without those that given ranges leave out."""
    which = next((one for one in space if one.name == START), None)
    out = []
    for place in range(len(which.values) if which else 1):
        these = [one for one in space if one.start == place and one is not which]
        if all(one.contains_default for one in these):
            start = {START: _text(which.values[place])} if which else {}
            out.append(start | {name: value for one in these for name, value in one.at_default.items()})
    return out


def combinations(space: Space) -> float:
    """How many settings there are to try; infinite with any that is not whole."""
    return math.prod(len(d.values) or (d.high - d.low + 1 if d.whole else math.inf) for d in space)


def _searched(cls: type[Method], setting: Setting) -> bool:
    """Pooled data have nobody who could rank with a table of its own."""
    if isinstance(setting.search, Choices) and len(setting.search.values) == 1:
        return False
    return setting.search is not None and not (cls.pooled and setting.name == "scored_with")


def _declared(setting: Setting) -> Dimension:
    name, default, search = setting.name, setting.default, setting.search
    if isinstance(search, Choices):
        values = tuple(map(setting.parse, search.values or choices_of(setting.kind)))
        return Dimension(name, default, values if default in values else (default, *values), when=search.when)
    assert isinstance(search, Search)
    low, high = (max(1, round(x)) if setting.whole else x for x in (search.low, search.high))
    if low > high or (search.log and low <= 0):
        raise UserError(f"the range of {name}, {search.low:g} to {search.high:g}, is none; a log scale starts above 0")
    if setting.whole and search.low == 0:
        low = 0
    return Dimension(name, default, (), low, high, search.log, setting.whole, search.zero, search.when)


def _given(setting: Setting, text: str) -> Dimension:
    """A range as it was typed, checked against the setting's type and limits."""
    said, when = f"--range {setting.name}={text}", setting.search.when if setting.search else ""
    low, colon, rest = text.partition(":")
    high, _, scale = rest.partition(":")
    try:
        if not colon:
            parts = text.split("/" if isinstance(setting.default, tuple) else ",")
            values = tuple(dict.fromkeys(setting.parse(part) for part in parts))
            if len(values) < 2:
                raise ValueError(f"one value is no range; --set {setting.name}={text} fixes it")
            return Dimension(setting.name, setting.default, values, when=when)
        ends = [setting.parse(low), setting.parse(high)]
        if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            raise ValueError(f"it is not a number; write its values, as in {setting.name}=a,b,c")
        if scale not in ("", "log"):
            raise ValueError(f"'{scale}' is no scale; write log, or nothing")
        if ends[0] >= ends[1]:
            raise ValueError("the low end must be below the high one")
        if scale and ends[0] <= 0:
            raise ValueError("a log scale must start above 0")
    except ValueError as error:
        raise UserError(f"{said} is invalid: {error}") from None
    low_end, high_end = ends
    return Dimension(setting.name, setting.default, (), low_end, high_end, bool(scale), setting.whole, when=when)


def parse_ranges(pairs: Iterable[str]) -> dict[str, str]:
    """`key=low:high[:log]` and `key=a,b,c` from the command line."""
    out: dict[str, str] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not (key and sign and text):
            raise UserError(f"'{pair}' is not a range; {WAY}")
        if key in out:
            raise UserError(f"--range {key} is given twice; leave one out")
        out[key] = text
    return out


def _text(value: Any) -> str:
    return json.dumps(value)


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
