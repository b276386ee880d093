"""What a text file is: its encoding, what stands between its fields, and whether its first line is a header."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from tacit.errors import UserError

SEPARATORS = ("::", "\t", ";", ",", "|", " ")  # in this order where several would do
NAMES = {"\t": "tab", " ": "space", ",": "comma", ";": "semicolon", "|": "pipe"}
ALIASES = {
    "user": "user userid uid customer customerid customerno member memberid visitor visitorid reviewer reviewerid "
    "account accountid person personid client clientid profile profileid buyer buyerid",
    "item": "item itemid iid product productid sku movie movieid film filmid book bookid isbn asin parentasin artist "
    "artistid track trackid song songid article articleid stockcode game gameid anime animeid business businessid",
    "time": "time timestamp date datetime ts at createdat orderdate invoicedate unixreviewtime reviewtime purchasedate "
    "eventtime",
    "title": "title itemname productname movietitle",
    "rating": "rating ratings stars score overall preference weight",
    "group": "group",
}
_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")
_DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*")
SAMPLE = 1 << 16  # characters


def decoded(name: str, data: bytes) -> tuple[bytes, str]:
    """A file as UTF-8 with plain line ends, and what had to be assumed; refuses what is not text."""
    said = ""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            data, said = data.decode("utf-16").encode(), "the file is in UTF-16"
        except UnicodeDecodeError as error:
            raise UserError(f"{name} begins as UTF-16 and is cut short; save it again, as UTF-8") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        raise UserError(f"{name} is not a text file; save it as CSV or Parquet")
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            data, said = data.decode("latin-1").encode(), f"not UTF-8 from line {line:,} on: read as Latin-1"
    if b"\r" in data and b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    return data, said


def written_separator(text: str) -> str:
    """A separator as it is typed: itself, a name such as `tab`, or \\t."""
    if text in NAMES.values():
        return next(sign for sign, name in NAMES.items() if name == text)
    if not text:
        raise UserError("--separator is empty; write it as in ',', ';', '::', tab or space")
    return "\t" if text == "\\t" else text


def separator_of(name: str, sample: str, alone: bool = False) -> str:
    """What stands between the fields: what cuts most lines into equally many; one column may be `alone`."""
    best, share = "", 0.0
    for separator in SEPARATORS:
        counts = Counter(map(len, rows_of(sample, separator)))
        fields, times = max(counts.items(), key=lambda pair: (pair[0] > 1, pair[1]), default=(0, 0))
        if fields > 1 and times / sum(counts.values()) > share:
            best, share = separator, times / sum(counts.values())
    if not best:
        first = sample.lstrip().partition("\n")[0].strip()[:60]
        if alone:
            return ","
        raise UserError(f"{name}: no separator was found in '{first}'; name it, as in --separator tab")
    return best


def rows_of(sample: str, separator: str, most: int = 200) -> list[list[str]]:
    """The fields of the first lines; quotation marks are not taken for anything beside '::'."""
    if len(separator) > 1:
        return [line.split(separator) for line in sample.splitlines()[:most] if line.strip()]
    try:
        return list(islice(filter(None, csv.reader(io.StringIO(sample, newline=""), delimiter=separator)), most))
    except csv.Error:
        return [line.split(separator) for line in sample.splitlines()[:most] if line.strip()]


def sample_of(data: bytes) -> str:
    """The first whole lines of a file."""
    text = data[:SAMPLE].decode("utf-8", errors="ignore")
    return text.rpartition("\n")[0] if len(data) > SAMPLE and "\n" in text else text


def has_header(rows: Sequence[Sequence[str]], wanted: Iterable[str] = ()) -> bool:
    """Whether the first line names columns: one of those asked for or usual, or text above numbers, or all text."""
    first = [cell.strip() for cell in rows[0]]
    usual = {*wanted, *(word for words in ALIASES.values() for word in words.split())}
    if any(cell in usual or plain(cell) in usual for cell in first):
        return True
    for column, cell in enumerate(first):
        below = [row[column].strip() for row in rows[1:] if column < len(row) and row[column].strip()]
        if below and cell and not is_value(cell) and all(map(is_value, below)):
            return True
    return not any(map(is_value, first))


def guessed_columns(name: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """The columns of a file without header, by how many there are and what is in them."""
    width = Counter(map(len, rows)).most_common(1)[0][0]
    kinds = [_kind([row[c] for row in rows if len(row) == width]) for c in range(2, width)]
    known = {
        (): ["user", "item"],
        ("rating",): ["user", "item", "rating"],
        ("time",): ["user", "item", "time"],
        ("rating", "time"): ["user", "item", "rating", "time"],
        ("time", "rating"): ["user", "item", "time", "rating"],
    }
    if tuple(kinds) not in known:
        raise UserError(
            f"{name} has no header, and its {width} columns are not clear; name them, as in --columns user,item,time"
        )
    return known[tuple(kinds)]


def plain(name: str) -> str:
    """A column's name without capitals, spaces and signs."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_value(cell: str) -> bool:
    """Whether a field is a number or a date, which no header is."""
    return bool(_NUMBER.fullmatch(cell) or _DATE.fullmatch(cell))


def _kind(cells: Sequence[str]) -> str:
    cells = [cell for cell in cells if cell.strip()]
    if cells and all(_NUMBER.fullmatch(cell) for cell in cells):
        return "rating" if all(abs(float(cell.replace(",", "."))) <= 1000 for cell in cells) else "time"
    return "time" if cells and all(map(_DATE.fullmatch, cells)) else "?"
