"""A loss and its gradient as one thing: a changed loss drops its gradient."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from types import CodeType, FunctionType
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from tacit.core.payload import State
from tacit.data.cohort import Batch

Value: TypeAlias = Callable[[State, Batch], Tensor]  # -> (C,)
# (leaves, batch, names of the leaves that move, memory to write to that is kept from step to step) -> the loss (C,) and
# the gradients by leaf; None: this batch is for autograd
Gradient: TypeAlias = Callable[[State, Batch, Iterable[str], State], tuple[Tensor, State] | None]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Loss:
    """A loss that is made of others, with a gradient of its own."""

    value: Value
    gradient: Gradient

    def __call__(self, p: State, batch: Batch) -> Tensor:
        """(C,)."""
        return self.value(p, batch)


def gradient_by(name: str) -> Callable[[F], F]:
    """Say that a method `name` of the same class computes this loss with its gradient, faster than autograd.

    It is used only where the loss, the gradient and all hooks that the loss calls are those of that class: a subclass
    that overrides any of them has autograd instead.
    """

    def mark(function: F) -> F:
        function.__dict__["gradient"] = name
        return function

    return mark


def gradient_of(loss: Value) -> Gradient | None:
    """The gradient that goes with a loss, if it has one that still applies."""
    if isinstance(loss, Loss):
        return loss.gradient
    function, owner = getattr(loss, "__func__", None), getattr(loss, "__self__", None)
    name = getattr(function, "gradient", None)
    if name is None or not _holds(cast(Any, type(owner)), function):
        return None
    found: Gradient = getattr(owner, name)
    return found


def by_autograd(loss: Value, p: State, batch: Batch, names: Iterable[str]) -> tuple[Tensor, State]:
    """A loss (C,) and its gradients; a leaf that it does not reach has none.

    Each client's loss depends only on its own leaves, so the gradient of the sum is everyone's own gradient.
    """
    with torch.enable_grad():
        leaves = {n: p[n].detach().requires_grad_() for n in names}
        value = loss(p | leaves, batch)
        grads = torch.autograd.grad(value, list(leaves.values()), torch.ones_like(value), allow_unused=True)
    return value.detach(), {n: g for n, g in zip(leaves, grads, strict=True) if g is not None}


@cache
def _holds(cls: Any, function: FunctionType) -> bool:
    """Whether `cls` computes what the class that defines `function` does."""
    owner = next(k for k in cls.__mro__ if function in vars(k).values())
    relied = _relied(owner, function)
    return not any(
        name in vars(other) and _is_hook(vars(other)[name])
        for other in cls.__mro__
        if other not in owner.__mro__
        for name in relied
    )


def _is_hook(value: Any) -> bool:
    """Code, and not the default of a setting."""
    return callable(value) or isinstance(value, property | cached_property)


def _relied(owner: type, function: FunctionType) -> set[str]:
    """The names of all hooks that a loss of a class reaches, its own and its gradient's among them."""
    found: set[str] = set()
    waiting = {function.__name__, function.__dict__["gradient"]}
    while waiting:
        name = waiting.pop()
        found.add(name)
        for cls in owner.__mro__:
            value = vars(cls).get(name)
            code = getattr(getattr(value, "fget", getattr(value, "func", value)), "__code__", None)
            if code is not None:
                waiting |= _names(code) - found
    return found


def _names(code: CodeType) -> set[str]:
    """What a piece of code calls by name, functions within it included."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)
