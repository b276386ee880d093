"""Metrics by name: a class each, at several K. docs/adding-a-metric.md shows how to write one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from tacit.errors import UserError, unknown
from tacit.evaluation.metrics.metric import Metric, Metrics, Rankings, UserMetric
from tacit.registry import Registry

__all__ = ["KS", "Metric", "Metrics", "Rankings", "UserMetric", "all_of", "by_hits", "combined", "find", "measured"]

KS = (5, 10, 20)
REGISTRY: Registry[Metric] = Registry("metric", __name__, Metric)  # type: ignore[type-abstract]


def all_of(*more: str) -> tuple[Metric, ...]:
    """Every metric of tacit at every K, and others by name."""
    own = [cls(k) for cls in REGISTRY.known().values() for k in KS]
    return tuple(dict.fromkeys([*own, *map(find, more)]))


def by_hits() -> tuple[Metric, ...]:
    """The metrics of tacit that need no lists: validation computes them, and nodes do."""
    return tuple(metric for metric in all_of() if not metric.lists)


def find(text: str, known: Callable[[], Iterable[Metric]] = all_of) -> Metric:
    """The metric behind `name@K` or `module:Class@K`, K being 10 where it is left out; the case does not matter."""
    name, _, k = text.partition("@")
    right = k in ("", *map(str, KS))
    own = {title.lower(): cls for title, cls in REGISTRY.known().items()}
    if ":" not in name and not (right and name.lower() in own):
        raise unknown("metric", text, map(str, known()))
    if not right:
        raise UserError(f"metric '{text}' is invalid: K must be one of {', '.join(map(str, KS))}")
    cls = own.get(name.lower()) or REGISTRY.find(name)
    try:
        return cls(int(k)) if k else cls()
    except TypeError as error:
        raise UserError(f"cannot make metric '{text}': {error}") from error


def names(text: str) -> tuple[str, ...]:
    """The metrics of a comma list, each by its full name."""
    return tuple(str(find(part.strip())) for part in text.split(",") if part.strip())


def selecting(text: str) -> Metric:
    """A metric that validation computes, so that it can select the reported round."""
    metric = find(text, by_hits)
    if metric.lists:
        others = ", ".join(map(str, by_hits()))
        raise UserError(f"{metric} is computed at test time only and cannot select a round; select by one of {others}")
    return metric


def measured(metrics: Iterable[Metric], found: Rankings) -> Metrics:
    """Every metric by its name."""
    return {str(metric): metric(found) for metric in metrics}


def combined(parts: Sequence[tuple[int, Mapping[str, float]]]) -> Metrics:
    """What nodes found for this many users each, over all users: the metrics that all sides know, this one included."""
    users = sum(count for count, _ in parts)
    common = set.intersection(*(set(found) for _, found in parts))
    means = {name: sum(count * found[name] for count, found in parts) / users for name in common}
    out: Metrics = {}
    for metric in by_hits():
        with suppress(KeyError):  # somebody does not know it, or what it is made of
            out[str(metric)] = metric.joined(means)
    return out
