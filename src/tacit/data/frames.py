"""Frames in, frames out: interactions from what a Python program has, and results in the form it likes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tacit.data.interactions import Interactions

if TYPE_CHECKING:
    import polars as pl

Kind = Literal["polars", "pandas"]


@dataclass(frozen=True)
class Data:
    """Interactions of one's own, to be given to `run`, `compare` and `train` in place of a data set's name."""

    interactions: Interactions
    kind: Kind = "polars"  # of the frames that come out

    @property
    def name(self) -> str:
        """What it is called in tables and folders."""
        return self.interactions.name

    @classmethod
    def of(cls, source: Any, **columns: Any) -> "Data":
        """From a pandas or polars frame, a SciPy matrix or a path."""
        raise NotImplementedError


def named(data: Any) -> tuple[str, Interactions | None]:
    """A data set's name, and its interactions where they are not to be found by it."""
    if isinstance(data, str):
        return data, None
    own = data if isinstance(data, Data) else Data.of(data)
    return own.name, own.interactions


def kind_of(data: Any) -> Kind:
    """The kind of frames that goes with these data."""
    if isinstance(data, Data):
        return data.kind
    return "pandas" if type(data).__module__.partition(".")[0] == "pandas" else "polars"


def as_kind(table: "pl.DataFrame", kind: Kind) -> Any:
    """A polars frame as one of this kind."""
    if kind == "polars":
        return table
    import pandas as pd

    return pd.DataFrame(table.to_dict(as_series=False))
