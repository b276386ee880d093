"""Any file of a table: plain or compressed text, Parquet, Arrow or SQLite, told by its first bytes."""

import bz2
import csv
import gzip
import io
import lzma
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import polars as pl

from tacit.data import sniffing
from tacit.errors import UserError

SKIP = "--skip-bad leaves such rows out and lists them"
_UNIT = ("\x1f", "\x1e", "\x1d", "\x01")  # stand for a separator of several characters
_NEVER = {
    b"%PDF": "a PDF",
    b"\x89PNG": "a picture",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
    b"7z\xbc\xaf": "a 7z archive",
}


@dataclass(frozen=True)
class Source:
    """A table as it was read."""

    name: str
    table: pl.DataFrame
    places: Callable[[Sequence[int]], list[str]]  # rows -> where each is to be found, as in "line 7"
    notes: list[str] = field(default_factory=list)  # what was recognised
    bad: list[tuple[str, str]] = field(default_factory=list)  # rows left out already: where, and why

    def wrong(self, row: int, problem: str) -> UserError:
        """A row that is refused."""
        return UserError(f"{self.name} {self.places([row])[0]}: {problem}")


@dataclass(frozen=True)
class Layout:
    """What is known of a text file beforehand."""

    separator: str | None = None  # None: to be recognised
    columns: tuple[str, ...] = ()  # empty: in the header, or guessed
    wanted: tuple[str, ...] = ()  # names that a header would have
    alone: bool = False  # whether there may be a single column
    skip_bad: bool = False  # leave out lines with too many or too few fields


def read(path: Path, layout: Layout = Layout()) -> Source:
    """The table in a file."""
    if path.is_dir():
        raise UserError(f"there is no file '{path}': it is a folder; name the file in it")
    if not path.is_file():
        raise UserError(f"there is no file '{path}'")
    try:
        with path.open("rb") as file:
            start = file.read(16)
        if not start:
            raise UserError(f"{path.name} is empty; it needs a header and at least one interaction")
        if start[:4] == b"PAR1" or path.suffix.lower() == ".parquet":
            return _typed(path.name, _parquet(path.name, path), "Parquet")
        if start == b"SQLite format 3\0" or path.suffix.lower() in (".sqlite", ".sqlite3", ".db"):
            return _typed(path.name, _sqlite(path), "SQLite")
        return _content(path.name, path.read_bytes(), layout)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from error
    except MemoryError:
        raise UserError(f"{path} does not fit into memory; save it as Parquet with the needed columns") from None


def _content(name: str, data: bytes, layout: Layout, said: tuple[str, ...] = ()) -> Source:
    """A table in memory, unpacked as often as it was packed."""
    unpack = next((kind for kind in _PACKED if data.startswith(kind[0])), None)
    if unpack is not None and len(said) < 3:
        _, what, unpacked = unpack
        try:
            return _content(name, unpacked(name, data), layout, (*said, what))
        except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{name} is not a readable {what} file ({error})") from error
    if name.lower().endswith(".gz") and not said:
        raise UserError(f"{name} is not a readable gzip file (it does not begin as one); rename it if it is plain")
    notes = [f"compressed with {', '.join(said)}"] if said else []
    for start, what in _NEVER.items():
        if data.startswith(start):
            raise UserError(f"{name} is {what}; save the table in it as CSV")
    if data.startswith(b"PAR1"):
        return _typed(name, _parquet(name, io.BytesIO(data)), "Parquet", notes)
    if data.startswith(b"ARROW1"):
        return _typed(name, _arrow(name, data), "Arrow", notes)
    return _text(name, data, layout, notes)


def _typed(name: str, table: pl.DataFrame, what: str, notes: Sequence[str] = ()) -> Source:
    return Source(name, table, lambda rows: [f"row {row + 1:,}" for row in rows], [*notes, f"a {what} file"])


def _parquet(name: str, place: Path | io.BytesIO) -> pl.DataFrame:
    try:
        return pl.read_parquet(place)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{name} is not a readable Parquet file ({str(error).splitlines()[0]})") from error


def _arrow(name: str, data: bytes) -> pl.DataFrame:
    try:
        return pl.read_ipc(io.BytesIO(data))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{name} is not a readable Arrow file ({str(error).splitlines()[0]})") from error


def _sqlite(path: Path) -> pl.DataFrame:
    """The table `interactions` or `items`, or the only one there is; the file is opened read-only."""
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


def _unzipped(name: str, data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        inside = [m for m in archive.namelist() if not m.endswith("/") and not m.startswith("__MACOSX/")]
        if "[Content_Types].xml" in inside:
            raise UserError(f"{name} is an Excel workbook or another document; save the table in it as CSV")
        if len(inside) != 1:
            some = ", ".join(inside[:5]) + (", …" if len(inside) > 5 else "")
            raise UserError(f"{name} holds {len(inside)} files ({some or 'none'}); unpack it and import one of them")
        return archive.read(inside[0])


def _from_zstd(name: str, data: bytes) -> bytes:
    """Through polars, the one reader of it that is always here; it gives lines, and takes only text."""
    try:
        return "\n".join(pl.read_lines(data).to_series().to_list()).encode()
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{name} is not a readable zstd file of UTF-8 text ({str(error).splitlines()[0]})") from error


_PACKED: tuple[tuple[bytes, str, Callable[[str, bytes], bytes]], ...] = (
    (b"\x1f\x8b", "gzip", lambda name, data: gzip.decompress(data)),
    (b"BZh", "bzip2", lambda name, data: bz2.decompress(data)),
    (b"\xfd7zXZ\0", "xz", lambda name, data: lzma.decompress(data)),
    (b"PK\x03\x04", "zip", _unzipped),
    (b"PK\x05\x06", "zip", _unzipped),
    (b"\x28\xb5\x2f\xfd", "zstd", _from_zstd),
)


def _text(name: str, data: bytes, layout: Layout, notes: list[str]) -> Source:
    data, said = sniffing.decoded(name, data)
    notes = [*notes, said] if said else notes
    data = data.rstrip(b"\r\n")
    if not data.strip():
        raise UserError(f"{name} is empty; it needs a header and at least one interaction")
    if data.lstrip()[:1] in (b"{", b"<"):
        what = "JSON" if data.lstrip()[:1] == b"{" else "a web page or XML"
        raise UserError(f"{name} looks like {what}; save the table in it as CSV or Parquet")
    sample = sniffing.sample_of(data)
    separator = layout.separator or sniffing.separator_of(name, sample, layout.alone)
    rows = sniffing.rows_of(sample, separator)
    header, names, said = _names(name, rows, layout)
    shown = sniffing.NAMES.get(separator, f"'{separator}'")
    notes = [*notes, f"text with {shown} between fields, {said}"]
    if len(separator) > 1:
        unit = next((u for u in _UNIT if u.encode() not in data), None)
        if unit is None:
            raise UserError(
                f"{name} cannot be cut at '{separator}': it holds control characters; replace the separator"
            )
        data, separator = data.replace(separator.encode(), unit.encode()), unit
    quote = None if separator in _UNIT else '"'
    source = _fast(name, data, separator, quote, header, names, notes)
    return source or _walked(name, data, separator, quote, header, names, notes, layout.skip_bad)


def _names(name: str, rows: list[list[str]], layout: Layout) -> tuple[bool, list[str], str]:
    """Whether there is a header, the columns' names, and what to say about it."""
    header = sniffing.has_header(rows, layout.wanted)
    first = [cell.strip() for cell in rows[0]]
    if layout.columns:
        if len(layout.columns) > len(first):
            raise UserError(f"{name} has {len(first)} columns, and --columns names {len(layout.columns)}")
        names = [*layout.columns, *(f"column {n}" for n in range(len(layout.columns) + 1, len(first) + 1))]
        names = [f"column {n}" if column in ("", "-") else column for n, column in enumerate(names, 1)]
        said = "its header passed over" if header else "without a header"
        said += f", columns {', '.join(layout.columns)} as given"
    elif header:
        names, said = [cell or f"column {n}" for n, cell in enumerate(first, 1)], "with a header"
    else:
        names = sniffing.guessed_columns(name, rows)
        said = f"without a header: columns taken for {', '.join(names)}"
    if len(set(names)) < len(names):
        raise UserError(
            f"{name} has two columns of one name; its header is {','.join(names)}; rename them with --columns"
        )
    return header, names, said


def _fast(
    name: str, data: bytes, separator: str, quote: str | None, header: bool, names: list[str], notes: list[str]
) -> Source | None:
    """As polars reads it; None where it may have misread, or cannot say where."""
    try:
        table = pl.read_csv(
            data, separator=separator, quote_char=quote, has_header=header, infer_schema=False, raise_if_empty=False
        )
    except pl.exceptions.PolarsError:
        return None
    if table.width != len(names):
        return None
    table.columns = names
    # polars fills a line with too few fields up with nulls, without a word
    separators = (len(names) - 1) * (table.height + header)
    quoted = quote is not None and b'"' in data
    if table[:, -1].null_count() and (quoted or data.count(separator.encode()) != separators):
        return None

    def places(rows: Sequence[int]) -> list[str]:
        if not quoted and data.count(b"\n") + 1 == table.height + header:
            return [f"line {row + header + 1:,}" for row in rows]
        wanted, found = set(rows), {}
        for row, (line, _) in enumerate(islice(_records(name, data, separator, quote), int(header), None)):
            if row in wanted:
                found[row] = f"line {line:,}"
        return [found[row] for row in rows]

    return Source(name, table, places, notes)


def _walked(
    name: str,
    data: bytes,
    separator: str,
    quote: str | None,
    header: bool,
    names: list[str],
    notes: list[str],
    skip_bad: bool,
) -> Source:
    """Line by line, where a line has too many or too few fields or a lone quotation mark."""
    rows, lines, bad = [], [], []
    for line, fields in islice(_records(name, data, separator, quote), int(header), None):
        if len(fields) == len(names):
            rows.append([cell or None for cell in fields])
            lines.append(line)
            continue
        there = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        problem = f"{there}, but the {'header has' if header else 'others have'} {len(names)}"
        if not skip_bad:
            raise UserError(f"{name} line {line:,}: {problem}; {SKIP}")
        bad.append((f"line {line:,}", problem))
    table = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
    return Source(name, table, lambda found: [f"line {lines[row]:,}" for row in found], notes, bad)


def _records(file: str, data: bytes, separator: str, quote: str | None) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every line that is not blank; a quoted field may span lines."""
    text = io.StringIO(data.decode("utf-8"), newline="")
    reader = csv.reader(text, delimiter=separator, strict=True, quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{file} line {line:,}: {error}; close the quotation mark, or double it") from error
