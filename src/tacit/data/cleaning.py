"""From a table to interactions: which columns mean what, which rows are bad, what is left out; all is reported."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.data import dates
from tacit.data.interactions import Interactions, Ints, from_indices
from tacit.data.reading import SKIP, Source
from tacit.data.sniffing import ALIASES, plain
from tacit.errors import UserError, unknown

_NOTHING = ("", "nan", "NaN", "null", "NULL", "\\N", "<NA>", "NaT")
_WHOLE = r"^-?[0-9]{1,18}$"


@dataclass(frozen=True)
class Wish:
    """Which columns mean what, None: to be recognised; and what is to be left out."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    title: str | None = None
    group: str | None = None
    rating: str | None = None
    time_format: str | None = None
    min_rating: float | None = None
    core: int = 0  # users and items with at least this many of one another
    skip_bad: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are named."""
        return tuple(c for c in (self.user, self.item, self.time, self.title, self.group, self.rating) if c)


@dataclass(frozen=True)
class Cleaned:
    """What came of a table."""

    interactions: Interactions
    notes: list[str] = field(default_factory=list)  # what was done
    skipped: list[tuple[str, str]] = field(default_factory=list)  # where, and why


def clean(name: str, source: Source, wish: Wish = Wish()) -> Cleaned:
    """The interactions in a table."""
    table, notes = source.table, list(source.notes)
    if not table.height:
        raise UserError(f"{source.name} holds no rows; it needs at least one interaction below its header")
    found = {role: _column(source, role, getattr(wish, role)) for role in ALIASES}
    renamed = [f"{role} in '{column}'" for role, column in found.items() if column not in (None, role)]
    notes += [f"columns: {', '.join(renamed)}"] if renamed else []
    kept = _without_bad(source, found, wish, notes)
    columns = kept.columns
    if wish.min_rating is not None:
        good = (columns["rating"] >= wish.min_rating).to_numpy()
        notes.append(f"{len(good) - int(good.sum()):,} rows with a rating below {wish.min_rating:g} left out")
        columns = {role: column.filter(good) for role, column in columns.items()}
        if not good.any():
            raise UserError(f"no row of {source.name} has a rating of {wish.min_rating:g} or more")
    elif found["rating"]:
        notes.append("ratings of any height count as interactions; --min-rating leaves the low ones out")
    data = _made(name, columns)
    if wish.core < 0:
        raise UserError(f"--core {wish.core} is invalid: it must be at least 0")
    if wish.core:
        data = _core(data, wish.core, notes)
    if kept.skipped:
        total = table.height + len(source.bad)
        reasons = _counted([reason for _, reason in kept.skipped])
        notes.append(f"{len(kept.skipped):,} of {total:,} rows left out: {reasons}")
    return Cleaned(data, notes, kept.skipped)


@dataclass(frozen=True)
class _Kept:
    columns: dict[str, pl.Series]
    skipped: list[tuple[str, str]]


def _without_bad(source: Source, found: dict[str, str | None], wish: Wish, notes: list[str]) -> _Kept:
    """The columns that are used, without bad rows; where these may not be left out, the first is refused."""
    table = source.table
    columns = {role: _ids(source, table[found[role] or ""], role, notes) for role in ("user", "item")}
    problems = [(columns[role].is_null(), f"the {role} is empty") for role in ("user", "item")]
    if found["time"]:
        raw = table[found["time"]]
        columns["time"], said = dates.seconds(raw, wish.time_format)
        notes += [said] if said else []
        problems.append((columns["time"].is_null(), "the time "))
    if wish.min_rating is not None:
        if not found["rating"]:
            raise UserError(
                f"{source.name} has no column of ratings for --min-rating; name it with --rating or --columns"
            )
        columns["rating"] = _numbers(table[found["rating"]])
        problems.append((columns["rating"].is_null(), "the rating is not a number"))
    for role in ("title", "group"):
        if column := found[role]:
            columns[role] = table[column].cast(pl.String).str.strip_chars().replace("", None)
    bad = problems[0][0]
    for mask, _ in problems[1:]:
        bad = bad | mask
    rows = bad.arg_true().to_list()

    def reason(row: int) -> str:
        text = next(text for mask, text in problems if mask[row])
        if text != "the time ":
            return text
        shown = table[found["time"] or ""][row]
        problem = f"does not match --time-format '{wish.time_format}'" if wish.time_format else dates.PROBLEM
        return f"the time '{'' if shown is None else shown}' {problem}"

    if rows and not wish.skip_bad:
        more = f" ({len(rows):,} such rows of {table.height:,})" if len(rows) > 1 else ""
        raise source.wrong(rows[0], f"{reason(rows[0])}{more}; {SKIP}")
    if len(rows) == table.height:
        raise UserError(f"no row of {source.name} is left: {reason(0)}, in the first and in every other way below it")
    skipped = source.bad + [(place, reason(row)) for place, row in zip(source.places(rows), rows, strict=True)]
    if rows:
        columns = {role: column.filter(~bad) for role, column in columns.items()}
    if "group" in columns:
        _check_groups(source, columns)
    return _Kept(columns, skipped)


def _column(source: Source, role: str, given: str | None) -> str | None:
    """The column of a role: the one named, one of the role's own name, or one with a usual name."""
    names = source.table.columns
    if given is not None:
        if given not in names:
            raise unknown(f"column of {source.name}", given, names)
        return given
    if role in names:
        return role
    by_name = {plain(column): column for column in reversed(names)}
    usual = next((by_name[alias] for alias in ALIASES[role].split() if alias in by_name), None)
    if usual is None and role in ("user", "item"):
        error = unknown(f"column of {source.name}", role, names)
        raise UserError(f"{error}; name it with --{role}, or all of them with --columns if the first line is data")
    return usual


def _ids(source: Source, column: pl.Series, name: str, notes: list[str]) -> pl.Series:
    """Ids as text or whole numbers, null where there is none."""
    if column.dtype.is_nested():
        raise source.wrong(0, f"the {name} is a {column.dtype}; ids are numbers or text")
    if column.dtype.is_integer():
        return column
    if column.dtype == pl.Binary:  # how Parquet keeps UUIDs
        column = column.bin.encode("hex")
    if column.dtype.is_float() and (column.drop_nans().drop_nulls() % 1 == 0).all():
        return column.fill_nan(None).cast(pl.Int64)  # whole numbers that passed through a column with gaps
    text = column.cast(pl.String).str.strip_chars()
    text = text.set(text.is_in(_NOTHING).fill_null(False), None)
    there = text.drop_nulls()
    if len(there) and there[0].endswith(".0") and there.str.contains(r"^\d+\.0$").all():
        notes.append(f"{name} ids such as {there[0]} are whole numbers: the .0 is left out")
        text = text.str.strip_suffix(".0")
    return text


def _numbers(column: pl.Series) -> pl.Series:
    if column.dtype.is_numeric():
        return column.cast(pl.Float64).fill_nan(None)
    text = column.cast(pl.String).str.strip_chars().str.replace(",", ".", literal=True)
    return text.cast(pl.Float64, strict=False).fill_nan(None)


def _check_groups(source: Source, columns: dict[str, pl.Series]) -> None:
    """A user is in one group."""
    pairs = pl.DataFrame({"user": columns["user"], "group": columns["group"]}).drop_nulls().unique(maintain_order=True)
    again = pairs.filter(~pairs["user"].is_first_distinct())
    if again.height:
        user, group = again.row(0)
        before = pairs.filter(pairs["user"] == user)["group"][0]
        same = (columns["user"] == user) & (columns["group"] == group)
        raise source.wrong(
            int(same.arg_true()[0]), f"user '{user}' is in the group '{group}' and was in '{before}' before"
        )


def _made(name: str, columns: dict[str, pl.Series]) -> Interactions:
    users, items = indexed(columns["user"]), indexed(columns["item"])
    time = columns["time"].to_numpy() if "time" in columns else None
    of = {}
    for role, owner in (("title", "item"), ("group", "user")):
        if role in columns:
            pairs = pl.DataFrame({"of": columns[owner].cast(pl.String), role: columns[role]}).drop_nulls()
            of[role] = dict(pairs.unique("of", keep="first", maintain_order=True).iter_rows())
    return from_indices(name, users, items, time, of.get("title"), of.get("group"))


def indexed(column: pl.Series) -> tuple[NDArray[np.str_], Ints]:
    """Distinct ids as text, in order as numbers where all are whole numbers, and the index of each row."""
    if column.dtype.is_integer():
        distinct = column.unique().sort()
        return distinct.cast(pl.String).to_numpy().astype(np.str_), distinct.search_sorted(column).to_numpy().astype(
            np.int64
        )
    distinct = column.unique().sort()
    if distinct.str.contains(_WHOLE).all():
        distinct = distinct.gather(np.argsort(distinct.cast(pl.Int64).to_numpy(), kind="stable"))
    codes = column.cast(pl.Enum(distinct)).to_physical()
    return np.array(distinct.to_list(), dtype=np.str_), codes.to_numpy().astype(np.int64)


def _core(data: Interactions, least: int, notes: list[str]) -> Interactions:
    """Only users and items with at least this many of one another, repeated until none drops out."""
    keep = np.ones(len(data), dtype=bool)
    while True:
        users = np.bincount(data.user[keep], minlength=data.n_users)
        items = np.bincount(data.item[keep], minlength=data.n_items)
        fewer = keep & (users[data.user] >= least) & (items[data.item] >= least)
        if fewer.sum() == keep.sum():
            break
        keep = fewer
    if not keep.any():
        raise UserError(f"nothing of {data.name} is left of its {least}-core; ask for a smaller --core")
    out = data.only(keep)
    notes.append(
        f"{least}-core: {data.n_users - out.n_users:,} users, {data.n_items - out.n_items:,} items and "
        f"{len(data) - len(out):,} interactions left out"
    )
    return replace(out, about=data.about)


def _counted(reasons: Sequence[str]) -> str:
    """Reasons with how often each occurs; those that quote a value are one."""
    counts: dict[str, int] = {}
    for reason in reasons:
        kind = "the time cannot be read" if reason.startswith("the time '") else reason
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{reason} ({number:,})" for reason, number in counts.items())
