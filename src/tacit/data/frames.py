"""Frames in, frames out: interactions from what a Python program has, and results in the form it likes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacit.data.interactions import Interactions
from tacit.errors import UserError

if TYPE_CHECKING:
    import polars as pl

Kind = Literal["polars", "pandas"]


@dataclass(frozen=True)
class Data:
    """Your own interactions, to be given to `run`, `compare` and `train` in place of a data set's name."""

    interactions: Interactions
    kind: Kind = "polars"  # of the frames that come out
    notes: tuple[str, ...] = ()  # what was recognised and left out
    skipped: tuple[tuple[str, str], ...] = ()  # rows left out as bad: where, and why

    def __repr__(self) -> str:
        data = self.interactions
        return f"Data({self.name!r}: {data.n_users:,} users, {data.n_items:,} items, {len(data):,} interactions)"

    @property
    def name(self) -> str:
        """What it is called in tables and folders."""
        return self.interactions.name

    @classmethod
    def of(
        cls,
        source: Any,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        title: str | None = None,
        rating: str | None = None,
        group: str | None = None,
        *,
        name: str = "",
        time_format: str | None = None,
        min_rating: float | None = None,
        core: int = 0,
        skip_bad: bool = False,
        separator: str | None = None,
        columns: Sequence[str] = (),
    ) -> "Data":
        """From a pandas or polars frame, a SciPy sparse matrix of users by items, or a file's path.

        `user`, `item`, `time`, `title`, `rating` and `group` name columns; those left out are recognised by their usual
        names. The rest is as for `tacit data import`.
        """
        from tacit.data.cleaning import Wish, clean
        from tacit.data.imported import read_clean
        from tacit.data.reading import Source

        wish = Wish(user, item, time, title, group, rating, time_format, min_rating, core, skip_bad)
        try:
            if isinstance(source, str | Path):
                path = Path(source).expanduser()
                found = read_clean(path, name or _bare(path), wish, separator, columns)
            else:
                table = _table(source, wish.names)
                made = Source("the frame", table, lambda rows: [f"row {row + 1:,}" for row in rows])
                found = clean(name or "data", made, wish)
        except UserError as error:  # its options are arguments here
            raise UserError(re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_"), str(error))) from error
        return cls(found.interactions, kind_of(source), tuple(found.notes), tuple(found.skipped))


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
    return "pandas" if _library(data) == "pandas" else "polars"


def as_kind(table: "pl.DataFrame", kind: Kind) -> Any:
    """A polars frame as one of this kind."""
    if kind == "polars":
        return table
    try:
        import pandas as pd
    except ImportError as error:
        raise UserError("pandas is not installed; ask for frame('polars'), or pip install pandas") from error
    return pd.DataFrame(table.to_dict(as_series=False))


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _bare(path: Path) -> str:
    return re.sub(r"[^\w.-]", "_", path.name.partition(".")[0]) or "data"


def _table(source: Any, wanted: Sequence[str]) -> "pl.DataFrame":
    """What was given as a polars frame; of a pandas one, the columns that may be meant."""
    import polars as pl

    from tacit.data.sniffing import ALIASES, plain

    if isinstance(source, pl.LazyFrame):
        return source.collect()
    if isinstance(source, pl.DataFrame):
        return source
    if isinstance(source, Mapping):
        return pl.DataFrame(source)
    if _library(source) == "scipy" and hasattr(source, "tocoo"):
        matrix = source.tocoo()
        there = matrix.data != 0
        cells = {"user": matrix.row[there], "item": matrix.col[there], "rating": matrix.data[there]}
        return pl.DataFrame({column: np.asarray(values) for column, values in cells.items()})
    if _library(source) == "pandas" and hasattr(source, "columns"):
        usual = {word for words in ALIASES.values() for word in words.split()}
        names = [str(column) for column in source.columns]
        meant = [n for n, column in enumerate(names) if column in wanted or plain(column) in usual]
        if len({names[n] for n in meant}) < len(meant):
            raise UserError(f"the frame has two columns of one name: {', '.join(names[n] for n in meant)}")
        made = {names[n]: _series(source.iloc[:, n]) for n in meant}
        others = {column: pl.Series([None], dtype=pl.String).new_from_index(0, len(source)) for column in names}
        return pl.DataFrame(others | made)
    raise UserError(
        f"Data.of takes a pandas or polars frame, a SciPy sparse matrix of users by items or a path, not a "
        f"{type(source).__module__}.{type(source).__name__}"
    )


def _series(column: Any) -> "pl.Series":
    """A pandas column, without the packages that polars would need for it."""
    import polars as pl

    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufbM":
        values = column.to_numpy()
        return pl.Series(values.astype("datetime64[us]") if column.dtype.kind == "M" else values)
    missing = column.isna().to_numpy()
    return _mixed([None if gone else value for value, gone in zip(column.tolist(), missing, strict=True)])


def _mixed(values: list[Any]) -> "pl.Series":
    """Values of one kind as they are, of several as text."""
    import polars as pl

    try:
        return pl.Series(values, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)
