"""Data of the user's own: a CSV, Parquet or SQLite file becomes a data set with a name."""

import csv
import gzip
import io
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import polars as pl

from tacit.data.folders import imported_file, writing
from tacit.data.interactions import Interactions, from_columns
from tacit.data.raw import DATA_SETS
from tacit.errors import UserError, unknown

_SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
_SQLITE = (".sqlite", ".sqlite3", ".db")
_TIME_FORMATS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f%#z")

Fail = Callable[[int, str], UserError]  # index of a row, what is wrong with it


def import_file(
    path: str | Path,
    name: str,
    user: str = "user",
    item: str = "item",
    time: str | None = None,
    title: str | None = None,
    group: str | None = None,
) -> Interactions:
    """Read a file of interactions and keep it under a name, replacing an earlier import of that name.

    `user`, `item`, `time`, `title` and `group` name columns. Without `time`, a column called "time" or "timestamp" is
    used where there is one; without `title`, one called "title"; without `group`, the class of a user's device, one
    called "group". Ids may be anything that can be written as text; times are numbers or ISO dates. Every other column
    is ignored.
    """
    _check_name(name)
    table = _table(Path(path), user, item, time, title, group)
    with writing(imported_file(name)) as file:
        table.write_parquet(file)
    return load(name)


def read_file(path: str | Path, user: str = "user", item: str = "item", time: str | None = None) -> Interactions:
    """The interactions in a file, without keeping them."""
    return _interactions(Path(path).name, _table(Path(path), user, item, time, None))


def read_items(path: str | Path, item: str = "item") -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """A catalogue: the ids in a file's column `item` in the order of the file, and titles where it has any."""
    path = Path(path)
    table, where = _read(path)
    if item not in table.columns:
        raise unknown(f"column of {path.name}", item, table.columns)
    ids = _ids(table[item], "item", lambda row, problem: UserError(f"{path.name} {where(row)}: {problem}"))
    if ids.n_unique() < len(ids):
        repeated = int(ids.is_first_distinct().not_().arg_true()[0])
        raise UserError(f"{path.name} {where(repeated)}: the item '{ids[repeated]}' is there twice")
    if "title" not in table.columns:
        return tuple(ids), None
    titles = table["title"].cast(pl.String).str.strip_chars().replace("", None)
    return tuple(ids), tuple(titles.fill_null(ids))


def _table(
    path: Path, user: str, item: str, time: str | None, title: str | None, group: str | None = None
) -> pl.DataFrame:
    """The file's columns `user`, `item` and, where there are any, `time`, `title` and `group`, checked row by row."""
    table, where = _read(path)
    if not table.height:
        raise UserError(f"{path.name} holds no rows; it needs at least one interaction below its header")
    time = time or next((column for column in ("time", "timestamp") if column in table.columns), None)
    title = title or ("title" if "title" in table.columns else None)
    group = group or ("group" if "group" in table.columns else None)
    for column in (user, item, time, title, group):
        if column is not None and column not in table.columns:
            raise unknown(f"column of {path.name}", column, table.columns)

    def fail(row: int, problem: str) -> UserError:
        return UserError(f"{path.name} {where(row)}: {problem}")

    columns = [_ids(table[user], "user", fail), _ids(table[item], "item", fail)]
    if time is not None:
        columns.append(_times(table[time], fail))
    if title is not None:
        text = table[title].cast(pl.String).str.strip_chars()
        columns.append(text.replace("", None).rename("title"))
    if group is not None:
        columns.append(_groups(table[group], columns[0], fail))
    return pl.DataFrame(columns)


def count(name: str) -> int:
    """Rows of an imported data set, repeated pairs included."""
    return _read_parquet(imported_file(name)).height


def load(name: str) -> Interactions:
    """An imported data set."""
    return _interactions(name, _read_parquet(imported_file(name)))


def _interactions(name: str, table: pl.DataFrame) -> Interactions:
    titles = None
    if "title" in table.columns:
        titled = table.drop_nulls("title").unique("item", keep="first", maintain_order=True)
        titles = dict(titled.select("item", "title").iter_rows())
    time = table["time"].to_numpy() if "time" in table.columns else None
    groups = None
    if "group" in table.columns:
        groups = dict(table.drop_nulls("group").unique("user", keep="first").select("user", "group").iter_rows())
    return from_columns(name, table["user"].to_numpy(), table["item"].to_numpy(), time, titles, groups)


def _check_name(name: str) -> None:
    if name == "demo" or name in DATA_SETS:
        raise UserError(f"'{name}' is a built-in data set; choose another name")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"'{name}' cannot name a data set; use letters, digits, '-', '_' and '.'")


def _read(path: Path) -> tuple[pl.DataFrame, Callable[[int], str]]:
    """The table in a file, and a function that tells where a row of it is to be found."""
    if not path.is_file():
        raise UserError(f"there is no file '{path}'")
    if not path.stat().st_size:
        raise UserError(f"{path.name} is empty; it needs a header and at least one interaction")
    if path.name.lower().endswith(".parquet"):
        return _read_parquet(path), lambda row: f"row {row + 1:,}"
    if path.name.lower().endswith(_SQLITE):
        return _read_sqlite(path), lambda row: f"row {row + 1:,}"
    for ending, separator in _SEPARATORS.items():
        if path.name.lower().endswith(ending):
            return _read_text(path, separator)
    raise UserError(f"'{path.name}' has an unknown ending; known: {', '.join([*_SEPARATORS, '.parquet', *_SQLITE])}")


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]})") from error


def _read_sqlite(path: Path) -> pl.DataFrame:
    """The table `interactions` or `items`, or the only one there is; the file is opened for reading alone."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            found = [name for (name,) in base.execute("select name from sqlite_master where type in ('table', 'view')")]
            named = [name for name in found if name in ("interactions", "items")] or found
            if len(named) != 1:
                raise UserError(
                    f"{path.name} has the tables {', '.join(found) or 'none'}; call the one to read 'interactions'"
                )
            rows = base.execute('select * from "' + named[0].replace('"', '""') + '"')
            columns = [column for column, *_ in rows.description]
            return pl.DataFrame(rows.fetchall(), schema=columns, orient="row", infer_schema_length=None)
    except sqlite3.Error as error:
        raise UserError(f"{path.name} is not a readable SQLite file ({error})") from error
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise UserError(f"{path.name} has a column of mixed types ({str(error).splitlines()[0]})") from error


def _read_text(path: Path, separator: str) -> tuple[pl.DataFrame, Callable[[int], str]]:
    """Text as polars reads it; only where it may have misread is the file walked line by line."""
    data = path.read_bytes()
    if path.suffix.lower() == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path.name} is not a readable gzip file ({error})") from error
    data = data.rstrip(b"\r\n")
    first = next(_records(path.name, data, separator), None)
    if first is None:
        raise UserError(f"{path.name} is empty; it needs a header and at least one interaction")
    header = [column.strip() for column in first[1]]
    if len(set(header)) < len(header):
        raise UserError(f"{path.name} has two columns of one name; its header is {separator.join(header)}")

    def line_of(row: int) -> str:
        return f"line {next(islice(_records(path.name, data, separator), row + 1, None))[0]:,}"

    try:
        table = pl.read_csv(data, separator=separator, infer_schema=False)
        table.columns = header
        # polars fills a line with too few fields up with nulls, without a word
        complete = not table[:, -1].null_count()
        separators = (len(header) - 1) * (table.height + 1)
        if complete or (b'"' not in data and data.count(separator.encode()) == separators):
            return table, line_of
    except pl.exceptions.PolarsError:
        pass  # the walk below finds the line, or reads what polars could not, such as a lone quotation mark
    rows = []
    for line, fields in islice(_records(path.name, data, separator), 1, None):
        if len(fields) != len(header):
            problem = f"{len(fields)} fields, but the header has {len(header)}"
            raise UserError(f"{path.name} line {line:,}: {problem}")
        rows.append(fields)
    return pl.DataFrame(rows, schema=dict.fromkeys(header, pl.String), orient="row"), line_of


def _records(file: str, data: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every line that is not blank; a quoted field may span lines."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{file} line {line:,}: not UTF-8; save the file in that encoding") from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{file} line {line:,}: {error}") from error


def _ids(column: pl.Series, name: str, fail: Fail) -> pl.Series:
    """Ids as text, whatever they were."""
    if column.dtype.is_nested():
        raise fail(0, f"the {name} is a {column.dtype}; ids are numbers or text")
    if column.dtype == pl.Binary:  # how Parquet keeps UUIDs
        column = column.bin.encode("hex")
    if column.dtype.is_float() and (column.drop_nans().drop_nulls() % 1 == 0).all():
        column = column.fill_nan(None).cast(pl.Int64)  # whole numbers that passed through a column with gaps
    text = column.cast(pl.String).str.strip_chars().rename(name)
    missing = text.is_null() | (text == "").fill_null(False)
    if missing.any():
        raise fail(_first(missing), f"the {name} is empty")
    return text


def _groups(column: pl.Series, users: pl.Series, fail: Fail) -> pl.Series:
    """Groups as text, null where a row names none; a user is in one."""
    text = column.cast(pl.String).str.strip_chars().replace("", None).rename("group")
    first: dict[str, str] = {}
    for row, (user, group) in enumerate(zip(users, text, strict=True)):
        if group is not None and first.setdefault(user, group) != group:
            raise fail(row, f"user '{user}' is in the group '{group}' and was in '{first[user]}' before")
    return text


def _times(column: pl.Series, fail: Fail) -> pl.Series:
    """Times as numbers; dates become seconds since 1970, in UTC where they name no zone."""
    if column.dtype.is_numeric():
        seconds = column.cast(pl.Float64)
    elif column.dtype in (pl.Date, pl.Datetime):
        seconds = column.dt.timestamp("us") / 1e6
    else:
        text = column.cast(pl.String).str.strip_chars()
        seconds = text.cast(pl.Float64, strict=False)
        if seconds.null_count():
            dates = _dates(text)
            seconds = dates if dates.null_count() < seconds.null_count() else seconds
    bad = seconds.is_null() | ~seconds.is_finite().fill_null(False)
    if bad.any():
        row = _first(bad)
        shown = "" if column[row] is None else column[row]
        raise fail(row, f"the time '{shown}' is neither a number nor a date such as 2026-01-31T12:00:00")
    return seconds.rename("time")


def _dates(text: pl.Series) -> pl.Series:
    """ISO dates as seconds, null where a text is none."""
    text = text.str.replace(" ", "T", literal=True)
    micros = pl.Series([None] * len(text), dtype=pl.Int64)
    for pattern in _TIME_FORMATS:
        if not micros.null_count():
            break
        parsed = text.str.to_datetime(pattern, time_unit="us", strict=False).dt.timestamp("us")
        micros = micros.zip_with(micros.is_not_null(), parsed)
    return micros / 1e6


def _first(mask: pl.Series) -> int:
    return int(mask.arg_true()[0])
