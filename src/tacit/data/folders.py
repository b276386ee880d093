"""Where data lies on this machine: the user's own folder and the cache."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tacit.errors import UserError


def data_folder() -> Path | None:
    """The folder named by TACIT_DATA, or None where it is not set."""
    setting = os.environ.get("TACIT_DATA")
    if not setting:
        return None
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise UserError(f"TACIT_DATA is '{setting}', which is not a folder; correct it or unset it")
    return folder


def cache_folder() -> Path:
    """TACIT_CACHE, or `tacit` in the user's cache folder; it need not exist yet."""
    if setting := os.environ.get("TACIT_CACHE"):
        return Path(setting).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tacit"


def imported_names() -> list[str]:
    """The names of imported data sets."""
    folder = imported_file("").parent
    return sorted({file.stem for ending in ("npz", "parquet") for file in folder.glob(f"*.{ending}")})


def imported_file(name: str) -> Path:
    """The file that keeps an imported data set."""
    return cache_folder() / "imported" / f"{name}.npz"


def skipped_file(name: str) -> Path:
    """The list of rows that an import left out."""
    return imported_file(name).with_name(f"{name}.skipped.csv")


@contextmanager
def writing(path: Path, way_out: str = "set TACIT_CACHE to a folder with room") -> Iterator[BinaryIO]:
    """Write `path` whole or not at all, so that a kill half way leaves no broken file behind that name."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path} ({reason}); {way_out}") from error
    finally:
        with suppress(OSError):  # what stands in the way of writing may stand in the way of this too
            part.unlink(missing_ok=True)
