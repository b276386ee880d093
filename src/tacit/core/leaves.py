"""The tensors that a client works with, declared once: whose they are, and how they are laid out."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["shared", "private", "kept"]


@dataclass(frozen=True)
class Leaf:
    """A tensor with a leading axis C. Made by `shared`, `private` and `kept`."""

    kind: Kind
    table: bool = False  # a row per item, which the engine may cut down to the rows touched in a round
    per_user: bool = False  # a second axis U: it belongs to a user rather than to a client


Leaves: TypeAlias = dict[str, Leaf]


def shared(table: bool = False) -> Leaf:
    """Comes from the server and goes back to it."""
    return Leaf("shared", table)


def private(table: bool = False, per_user: bool = False) -> Leaf:
    """Never leaves the client."""
    return Leaf("private", table, per_user)


def kept(table: bool = False, per_user: bool = False) -> Leaf:
    """Stays with the client between rounds and is uploaded as well."""
    return Leaf("kept", table, per_user)


def named(leaves: Leaves, *kinds: Kind) -> tuple[str, ...]:
    """The names of the leaves of these kinds, in the order of their declaration."""
    return tuple(name for name, leaf in leaves.items() if leaf.kind in kinds)
