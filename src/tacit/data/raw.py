"""The known data sets and the formats of their raw files."""

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.data.interactions import Interactions, from_columns
from tacit.errors import UserError

if TYPE_CHECKING:  # loaded where a table is read: the names of data sets do not need it
    import polars as pl

Files = Mapping[str, bytes]  # content by file name, from a folder or an archive alike

Schema = dict[str, type[int] | type[float]]

_RATING: Schema = {"user": int, "item": int, "rating": float}
_RATING_AND_TIME: Schema = _RATING | {"time": int}


@dataclass(frozen=True)
class DataSet:
    """A data set whose files the user has, or which can be fetched."""

    description: str
    files: tuple[str, ...]
    read: Callable[[str, Files], Interactions]
    home: str  # where people get it


def _ml_100k(name: str, files: Files) -> Interactions:
    return _ratings(name, _table(files, "u.data", "\t", _RATING_AND_TIME), _titles(files, "u.item", "|", "latin-1"))


def _ml_1m(name: str, files: Files) -> Interactions:
    return _ratings(
        name,
        _table(files, "ratings.dat", "::", _RATING_AND_TIME),
        _titles(files, "movies.dat", "::", "latin-1"),
    )


def _filmtrust(name: str, files: Files) -> Interactions:
    return _ratings(name, _table(files, "ratings.txt", " ", _RATING))


def _lastfm_2k(name: str, files: Files) -> Interactions:
    return _ratings(
        name,
        _table(files, "user_artists.dat", "\t", _RATING, header=True),
        _titles(files, "artists.dat", "\t", "utf-8", header=True),
    )


def _douban_book(name: str, files: Files) -> Interactions:
    return _ratings(name, _table(files, "ratings.dat", "\t", _RATING))


def _amazon_beauty(name: str, files: Files) -> Interactions:
    file = "Beauty.txt"
    users: list[int] = []
    items: list[int] = []
    times: list[int] = []
    for number, line in enumerate(_body(files, file).split(b"\n"), 1):
        try:
            user, *history = map(int, line.split())
        except ValueError:
            history = []
        if not history:
            raise _malformed(file, number, line, "a user and their items, all whole numbers")
        users += [user] * len(history)
        items += history
        times += range(len(history))  # the line is in order of time, and says no more than that
    return from_columns(name, np.array(users), np.array(items), np.array(times, dtype=np.float64))


def _anime_5k(name: str, files: Files) -> Interactions:
    titles = _titles(files, "anime_info.dat", "\t", "utf-8", header=True)
    return _ratings(
        name,
        _table(files, "anime_history.dat", "\t", _RATING, header=True),
        {item: html.unescape(title) for item, title in titles.items()},
    )


_GROUPLENS = "https://grouplens.org/datasets/movielens/"

DATA_SETS = {
    "ml-100k": DataSet("MovieLens 100K: 943 people, 1,682 films, 1997-98", ("u.data", "u.item"), _ml_100k, _GROUPLENS),
    "ml-1m": DataSet(
        "MovieLens 1M: 6,040 people, 3,706 films, 2000-03", ("ratings.dat", "movies.dat"), _ml_1m, _GROUPLENS
    ),
    "filmtrust": DataSet(
        "FilmTrust: 1,508 people, 2,071 films, no times",
        ("ratings.txt",),
        _filmtrust,
        "https://guoguibing.github.io/librec/datasets.html",
    ),
    "lastfm-2k": DataSet(
        "Last.fm: 1,892 people, 17,632 artists, no times",
        ("user_artists.dat", "artists.dat"),
        _lastfm_2k,
        "https://grouplens.org/datasets/hetrec-2011/",
    ),
    "douban-book": DataSet(
        "Douban: 2,110 people, 6,777 books, no times",
        ("ratings.dat",),
        _douban_book,
        "https://github.com/FengZhu-Joey/GA-DTCDR",
    ),
    "amazon-beauty": DataSet(
        "Amazon Beauty: 22,363 people, 12,101 products, in order of purchase",
        ("Beauty.txt",),
        _amazon_beauty,
        "https://github.com/RUCAIBox/CIKM2020-S3Rec",
    ),
    "anime-5k": DataSet(
        "MyAnimeList: 5,000 people, 7,390 anime, no times",
        ("anime_history.dat", "anime_info.dat"),
        _anime_5k,
        "https://github.com/caserec/Datasets-for-Recommender-Systems",
    ),
}


def _ratings(name: str, table: "pl.DataFrame", titles: dict[str, str] | None = None) -> Interactions:
    """Interactions from a table of ratings; what the rating was does not matter, that there is one does."""
    time: NDArray[np.float64] | None = None
    if "time" in table.columns:
        time = table["time"].to_numpy().astype(np.float64)
    return from_columns(name, table["user"].to_numpy(), table["item"].to_numpy(), time, titles)


def _table(files: Files, file: str, separator: str, schema: Schema, header: bool = False) -> "pl.DataFrame":
    """A file of numbers with one row per line."""
    import polars as pl

    body = _body(files, file)
    single = separator if len(separator) == 1 else "\t"  # polars takes one byte
    try:
        table = pl.read_csv(
            body if single == separator else body.replace(separator.encode(), single.encode()),
            separator=single,
            has_header=False,
            skip_rows=int(header),
            schema={name: pl.Int64 if kind is int else pl.Float64 for name, kind in schema.items()},
            quote_char=None,
        )
    except pl.exceptions.PolarsError as error:
        raise _first_malformed(file, body, separator, schema, header) from error
    if sum(table.null_count().row(0)):  # a line with too few fields
        raise _first_malformed(file, body, separator, schema, header)
    return table


def _first_malformed(file: str, body: bytes, separator: str, schema: Schema, header: bool) -> UserError:
    """Name the first line that does not fit, once it is known that there is one."""
    for number, line in enumerate(body.split(b"\n")[header:], 1 + header):
        try:
            for kind, text in zip(schema.values(), line.split(separator.encode()), strict=True):
                kind(text)
        except ValueError:
            return _malformed(file, number, line, f"{separator.join(schema)}, all numbers")
    return UserError(f"{file} is not a table of {', '.join(schema)}; replace it with the original file")


def _titles(files: Files, file: str, separator: str, encoding: str, header: bool = False) -> dict[str, str]:
    """Titles by item id, from a file whose lines begin with id and title."""
    titles: dict[str, str] = {}
    for number, line in enumerate(_body(files, file).split(b"\n")[header:], 1 + header):
        try:
            item, title = line.decode(encoding).split(separator)[:2]
            titles[str(int(item))] = title.strip()
        except ValueError as error:
            raise _malformed(file, number, line, f"id{separator}title in {encoding}") from error
    return titles


def _body(files: Files, file: str) -> bytes:
    """The file without blank lines at its end."""
    body = files[file].rstrip()
    if not body:
        raise UserError(f"{file} is empty; replace it with the original file")
    return body


def _malformed(file: str, number: int, line: bytes, expected: str) -> UserError:
    shown = line.decode("latin-1").strip()[:60]
    return UserError(f"{file} line {number:,} is '{shown}'; expected {expected}")
