"""Interactions in a file of their own, as they are in memory: what a run keeps of data that have no name."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.interactions import Interactions
from tacit.errors import UserError

FILE = "data.npz"
_TEXTS = ("user_ids", "item_ids", "titles", "groups")
_NUMBERS = ("user", "item", "time", "repeats")


def write(file: IO[bytes], data: Interactions) -> None:
    """Write a data set; `unpacked` gives back the same, to the last bit of its fingerprint."""
    arrays: dict[str, NDArray[Any]] = {n: getattr(data, n) for n in _NUMBERS if getattr(data, n) is not None}
    arrays |= {n: arrays[n].astype(np.int32) for n in ("user", "item")}
    texts = {name: getattr(data, name).tolist() for name in _TEXTS if getattr(data, name) is not None}
    about = json.dumps({"name": data.name, "about": data.about, "rows": data.rows_read, "texts": texts}).encode()
    arrays["about"] = np.frombuffer(about, dtype=np.uint8)
    np.savez(file, allow_pickle=False, **arrays)


def packed(data: Interactions) -> bytes:
    """The same as bytes."""
    out = io.BytesIO()
    write(out, data)
    return out.getvalue()


def unpacked(path: Path) -> Interactions:
    """The data set in such a file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            about = json.loads(found["about"].tobytes())
            numbers = {name: found[name] for name in _NUMBERS if name in found}
            numbers |= {name: numbers[name].astype(np.int64) for name in ("user", "item")}
            texts = {name: np.array(values, dtype=np.str_) for name, values in about["texts"].items()}
            return Interactions(**{"time": None} | numbers | texts, name=about["name"], about=about["about"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy, or make it again") from error


def rows(path: Path) -> int:
    """Rows of the source behind such a file, without reading them."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return int(json.loads(found["about"].tobytes())["rows"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy, or make it again") from error


def without(data: Interactions, user: int) -> Interactions:
    """The same data without one user's interactions; its place stays, so that all others keep theirs."""
    keep = data.user != user
    columns = {name: getattr(data, name)[keep] for name in _NUMBERS if getattr(data, name) is not None}
    return replace(data, **columns)
