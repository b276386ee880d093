"""What some methods can do and most need not: a method has a capability by having its hook."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tacit.core.method import Method
from tacit.core.payload import Payload, State
from tacit.data.cohort import Federation
from tacit.data.splits import Orders


@runtime_checkable
class Refined(Protocol):
    """One name stands for several classes."""

    @classmethod
    def refined(cls, settings: Mapping[str, Any]) -> type[Method]:
        """The class that carries out these settings."""


@runtime_checkable
class Fitting(Protocol):
    """Chooses settings by the data where they were left open."""

    def fitted(self, n_items: int, ordered: bool) -> tuple[Method, str]:
        """The method for these data, and what was chosen; empty: nothing had to be."""


@runtime_checkable
class Choosing(Protocol):
    """Tries one solution per round, and validation chooses among them."""

    def chosen(self, round: int) -> Method:
        """The method with only the solution of this round."""

    def choice(self, round: int) -> str:
        """What the solution of this round is, in words."""


@runtime_checkable
class Budgeted(Protocol):
    """Has a privacy budget of its own."""

    def spent(self, rounds: int) -> float | None:
        """ε after this many rounds; None: nothing is protected."""


@runtime_checkable
class Sharing(Protocol):
    """Its noise can come from the clients of a secure sum, each a share of it: all that a user sends has norm 1."""

    noise: str  # who adds it: the `server` or the `clients`
    ratio: float  # the noise's deviation
    delta: float

    def with_shared_noise(self) -> Method:
        """The method whose server adds none."""


@runtime_checkable
class Grouped(Protocol):
    """Treats groups of clients differently."""

    def groups(self, federation: Federation) -> dict[str, Tensor]:
        """Masks over the clients by the name of their group."""


@runtime_checkable
class Renewing(Protocol):
    """Has leaves that change with every local epoch."""

    def epoch_start(self, p: State) -> State:
        """Leaves to renew before a local epoch."""


@runtime_checkable
class Revisable(Protocol):
    """Takes in new interactions and forgets users without training again."""

    def fixed(self) -> str:
        """Why a run with these settings cannot be revised; empty: it can."""

    def revise(self, server: State, old: Orders, new: Orders) -> State:
        """The server's state after one user's history becomes another; none: was not there, or goes."""


@runtime_checkable
class Telling(Protocol):
    """Knows what histories can send."""

    def impossible(self, up: Payload, down: Payload, sizes: Tensor, users: int, n_items: int) -> str:
        """Why no clients of at most this many users with `sizes` (C,) interactions send this; empty: they may."""


def refined(cls: type[Method], settings: Mapping[str, Any]) -> type[Method]:
    """The class that carries out these settings."""
    return cls.refined(settings) if isinstance(cls, Refined) else cls


def groups(method: Method, federation: Federation) -> dict[str, Tensor]:
    """A method's groups of clients, if it has any."""
    return method.groups(federation) if isinstance(method, Grouped) else {}
