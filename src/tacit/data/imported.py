"""The user's own data: a file becomes a data set with a name, and what was done to it is kept with it."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from tacit.data import kept
from tacit.data.cleaning import Cleaned, Wish, clean
from tacit.data.folders import imported_file, imported_names, skipped_file, writing
from tacit.data.interactions import Interactions
from tacit.data.raw import DATA_SETS
from tacit.data.reading import Layout, Source, read
from tacit.data.sniffing import written_separator
from tacit.errors import UserError, unknown

PLAIN = Wish()
NOTES = "done"  # where `about` of a data set keeps what was done, as JSON


def import_file(
    path: str | Path,
    name: str,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    title: str | None = None,
    group: str | None = None,
    *,
    rating: str | None = None,
    separator: str | None = None,
    columns: Sequence[str] = (),
    time_format: str | None = None,
    min_rating: float | None = None,
    core: int = 0,
    skip_bad: bool = False,
    replace: bool = False,
) -> Interactions:
    """Read a file of interactions and keep it under a name.

    `user`, `item`, `time`, `title`, `group` and `rating` name columns; those left out are recognised by their usual
    names. `separator` and `columns` say how a text file is laid out where that is not to be recognised. Ids may be
    anything that can be written as text. `skip_bad` leaves out rows without user, item or readable time and lists them
    beside the data set; without it the first one is an error.
    """
    _check_name(name, replace)
    wish = Wish(user, item, time, title, group, rating, time_format, min_rating, core, skip_bad)
    found = read_clean(Path(path), name, wish, separator, columns)
    notes = [f"from {Path(path).name}", *found.notes]
    if found.skipped:
        notes.append(f"rows that were left out are listed in {skipped_file(name)}")
        with writing(skipped_file(name)) as file:
            pl.DataFrame(found.skipped, schema={"where": str, "why": str}, orient="row").write_csv(file)
    data = _with(found.interactions, notes)
    with writing(imported_file(name)) as file:
        kept.write(file, data)
    if not found.skipped:
        skipped_file(name).unlink(missing_ok=True)
    _older(name).unlink(missing_ok=True)
    return data


def read_clean(
    path: Path, name: str, wish: Wish = PLAIN, separator: str | None = None, columns: Sequence[str] = ()
) -> Cleaned:
    """The interactions in a file, and what was done to get them."""
    for column in columns:
        if columns.count(column) > 1 and column not in ("", "-"):
            raise UserError(f"--columns names '{column}' twice")
    layout = Layout(
        None if separator is None else written_separator(separator), tuple(columns), wish.names, skip_bad=wish.skip_bad
    )
    return clean(name, read(path, layout), wish)


def read_file(path: str | Path, user: str = "user", item: str = "item", time: str | None = None) -> Interactions:
    """The interactions in a file, without keeping them."""
    own = {role: None if name == role else name for role, name in (("user", user), ("item", item))}
    return read_clean(Path(path), Path(path).name, Wish(own["user"], own["item"], time)).interactions


def read_items(path: str | Path, item: str = "item") -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """A catalogue: the ids in a file's column `item` in the order of the file, and titles where it has any."""
    source = read(Path(path), Layout(wanted=(item, "title"), alone=True))
    if item not in source.table.columns:
        raise unknown(f"column of {source.name}", item, source.table.columns)
    ids = _catalogue(source, source.table[item])
    if ids.n_unique() < len(ids):
        repeated = int(ids.is_first_distinct().not_().arg_true()[0])
        raise source.wrong(repeated, f"the item '{ids[repeated]}' is there twice")
    if "title" not in source.table.columns:
        return tuple(ids), None
    titles = source.table["title"].cast(pl.String).str.strip_chars().replace("", None)
    return tuple(ids), tuple(titles.fill_null(ids))


def _catalogue(source: Source, column: pl.Series) -> pl.Series:
    text = column.cast(pl.String).str.strip_chars()
    missing = (text.is_null() | (text == "").fill_null(False)).arg_true()
    if len(missing):
        raise source.wrong(int(missing[0]), "the item is empty")
    return text


def load(name: str) -> Interactions:
    """An imported data set."""
    if imported_file(name).exists():
        return replace(kept.unpacked(imported_file(name)), name=name)
    return clean(name, read(_older(name))).interactions  # as earlier versions kept it


def done(data: Interactions) -> list[str]:
    """What was done when a data set was imported."""
    return list(json.loads(data.about.get(NOTES, "[]")))


def remove(name: str) -> None:
    """Remove an imported data set and what is beside it."""
    if name == "demo" or name in DATA_SETS:
        raise UserError(f"'{name}' is a built-in data set; only what was imported can be removed")
    if name not in imported_names():
        raise unknown("imported data set", name, imported_names())
    try:
        for file in (imported_file(name), _older(name), skipped_file(name)):
            file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot remove {error.filename} ({error.strerror})") from error


def with_notes(found: Cleaned) -> Interactions:
    """The interactions with what was done about them."""
    return _with(found.interactions, found.notes)


def _with(data: Interactions, notes: Sequence[str]) -> Interactions:
    return replace(data, about=data.about | {NOTES: json.dumps(list(notes))})


def _older(name: str) -> Path:
    return imported_file(name).with_suffix(".parquet")


def _check_name(name: str, again: bool) -> None:
    if name == "demo" or name in DATA_SETS:
        raise UserError(f"'{name}' is a built-in data set; choose another name")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"'{name}' cannot name a data set; use letters, digits, '-', '_' and '.'")
    if not again and name in imported_names():
        raise UserError(f"there is already a data set '{name}'; --replace replaces it")
