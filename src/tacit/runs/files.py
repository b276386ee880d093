"""Files that are whole or not there: written beside, synced, then put in place; a full disk is one sentence."""

import errno
import json
import math
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tacit.core.payload import State
from tacit.errors import UserError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

PIECE, SECTOR = 1 << 22, 1 << 12  # bytes written at a time, and what disks count in
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full or cannot be written ends with a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; fix that and try again; what was saved before is intact"
        ) from error


def write_tensors(path: Path, state: State) -> None:
    """A safetensors file, on the disk; safetensors' own writer copies everything first, most of what a save took."""
    head: dict[str, Any] = {}
    end = 0
    leaves = sorted(state.items(), key=lambda leaf: -leaf[1].element_size())  # each aligned to its own kind
    for name, value in leaves:
        place = [end, end + value.nbytes]
        head[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape), "data_offsets": place}
        end += value.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    with writing(path):
        try:
            _write(path, start, leaves, getattr(os, "O_DIRECT", 0))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            _write(path, start, leaves, 0)  # a file system without direct writing


def _write(path: Path, start: bytes, leaves: list[tuple[str, Tensor]], flag: int) -> None:
    """Past the system's cache where that is possible: fresh pages for it would take ten times the CPU of the copy."""
    block, filled, size = mmap.mmap(-1, PIECE), 0, 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0) | flag, 0o666)
    try:
        parts = (leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data for _, leaf in leaves)
        for rest in chain([memoryview(start)], parts):
            size += len(rest)
            while rest:
                step = min(len(rest), PIECE - filled)
                block[filled : filled + step] = rest[:step]
                filled, rest = filled + step, rest[step:]
                if filled == PIECE:
                    _put(file, block, filled)
                    filled = 0
        _put(file, block, -(-filled // SECTOR) * SECTOR)
        os.ftruncate(file, size)
        os.fsync(file)
    finally:
        os.close(file)


def _put(file: int, block: mmap.mmap, size: int) -> None:
    """All of it: the system may take less at a time, where a disk fills up."""
    with memoryview(block) as whole:
        done = 0
        while done < size:
            done += os.write(file, whole[done:size])


def read_tensors(path: Path) -> State:
    """The same, read; OSError where it is gone, cut short or no such file."""
    try:
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        raise OSError(str(error)) from error


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON as the standard has it: an infinite ε is the text "inf"."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False)


def from_json(text: str) -> Any:
    """The same, read: an ε of "inf" is infinite again."""
    return json.loads(text, object_hook=lambda d: {k: math.inf if _endless(k, v) else v for k, v in d.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "inf" if k.startswith("epsilon") and v == math.inf else _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _endless(key: str, value: Any) -> bool:
    return key.startswith("epsilon") and value == "inf"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file at once: a reader sees the old or the new, never a half."""
    write_text(path, to_json(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file at once."""
    fresh = path.with_name(path.name + ".new")
    with writing(path):
        try:
            with open(fresh, "wb", opener=_not_through_links) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            fresh.unlink(missing_ok=True)  # a full disk has room again
            raise
        fresh.replace(path)
        sync(path.parent)


def _not_through_links(path: str, flags: int) -> int:
    """A link that somebody put there is not followed."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def append(path: Path, line: str) -> None:
    """A line more in a text file."""
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def sync(path: Path) -> None:
    """Bring a file's bytes or a folder's names to the disk."""
    if path.is_dir() and sys.platform == "win32":
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def taken(path: Path) -> IO[bytes] | None:
    """The lock file, open and held; None while another process holds it. The system frees it when its holder dies."""
    file = path.open("ab")
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    except OSError:  # a file system without locks
        pass
    return file


def released(file: IO[bytes]) -> None:
    """Free a lock, also where a forked worker still has it open."""
    with suppress(OSError):
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_UN)
    file.close()
