"""Work on every core: in threads, or in forked processes, which Python's lock does not slow down."""

import contextlib
import ctypes
import gc
import io
import math
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor

from tacit.errors import UserError

A = TypeVar("A")
T = TypeVar("T")


QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container, in microseconds: what it may use of a period


def cores() -> int:
    """How many this process may use: those it is bound to, or fewer where a container has a quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        quota, period = map(int, QUOTA.read_text().split())
        bound = min(bound, math.ceil(quota / period))
    return max(bound, 1)


def threaded(work: Callable[[A], T], tasks: Iterable[A], workers: int) -> Iterator[T]:
    """Results in the order of the tasks, a few tasks ahead of the reader; one worker is this thread itself."""
    with single_threaded_torch():
        if workers == 1:
            yield from map(work, tasks)
            return
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            ahead: deque[Future[T]] = deque()
            try:
                for task in tasks:
                    ahead.append(pool.submit(work, task))
                    if len(ahead) > 2 * workers:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()


def can_fork() -> bool:
    """Whether children can do work here: a process with other threads cannot fork safely, nor can torch with CUDA."""
    return sys.platform == "linux" and threading.active_count() == 1 and not torch.cuda.is_available()


class Crew(Generic[A, T]):
    """Children of this process, forked once, that do the same work on one task after another.

    They inherit what `work` refers to as it is now; what they change in it is seen here only in `shared_zeros`. Task n
    and then its result lie in file n modulo `slots`, which exists in memory only; two pipes tell what lies there.
    Forking for every round would cost a tenth of it: pages are copied or mapped again as the children touch them.
    """

    def __init__(self, work: Callable[[A], T], workers: int) -> None:
        self.slots = 2 * workers + 1  # tasks under way, at most
        self.pids: list[int] = []
        self.busy = False
        todo, self._todo = os.pipe()
        self._done, done = os.pipe()
        self._files = [os.memfd_create("tacit") for _ in range(self.slots)]
        self.end = weakref.finalize(self, _end, os.getpid(), self.pids, [self._todo, self._done, *self._files])
        _libc()
        print(end="", flush=True)  # or every child would print what is in the buffer
        held = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            with single_threaded_torch(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # newer Pythons warn of torch's idle threads
                for _ in range(workers):
                    if (pid := os.fork()) == 0:
                        os.close(self._todo)
                        os.close(self._done)
                        _serve(work, todo, done, self._files, held)
                    self.pids.append(pid)
        finally:
            os.close(todo)
            os.close(done)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, held)

    def each(self, tasks: Iterable[A]) -> Iterator[T]:
        """Results in the order of the tasks, a few tasks ahead of the reader."""
        queue = enumerate(tasks)
        under_way: dict[int, list[Tensor]] = {}  # by number: the tensors of the task
        ready: dict[int, tuple[bool, Any]] = {}
        number = 0
        self.busy = True
        try:
            with single_threaded_torch():
                while True:
                    for given, task in islice(queue, self.slots - len(under_way) - len(ready)):
                        length, under_way[given] = _write(self._files[given % self.slots], task)
                        os.write(self._todo, _TASK.pack(given, length))
                    if not under_way and not ready:
                        break
                    while number not in ready:
                        self._receive(under_way, ready)
                    fine, result = ready.pop(number)
                    if not fine:
                        raise result
                    number += 1
                    yield result
            self.busy = False
        except BrokenPipeError:
            raise _killed() from None
        finally:
            if self.busy:  # an error, an interrupt or a reader that has left: what is under way is of no use
                self.end()

    def _receive(self, under_way: dict[int, list[Tensor]], ready: dict[int, tuple[bool, Any]]) -> None:
        """Wait for a result, and look every second whether all children are alive."""
        news = select.poll()
        news.register(self._done, select.POLLIN)
        while not news.poll(1000):
            if any(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in self.pids):
                raise _killed()
        if not (note := os.read(self._done, _DONE.size)):
            raise _killed()
        number, length, fine, pid, cpu, memory = _DONE.unpack(note)
        ready[number] = fine, _read(self._files[number % self.slots], length, under_way.pop(number))[0]
        _cpu[pid] = cpu
        _memory[pid] = memory
        files = sum(os.fstat(file).st_size for file in self._files)
        _memory[_PEAK] = max(_memory.get(_PEAK, 0), files + sum(_memory.get(pid, 0) for pid in self.pids))


def cpu_seconds() -> float:
    """CPU seconds of this process and of all its workers so far."""
    return time.process_time() + sum(_cpu.values())


def workers_memory() -> int:
    """The most bytes that the workers of a crew have held beside what they share with this process."""
    return _memory.get(_PEAK, 0)


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that forked processes share with this one, in memory that no limit of /dev/shm counts."""
    size = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape) if size else torch.zeros(shape, dtype=dtype)


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks: a step's tensors of a few megabytes would otherwise be fresh pages every time.

    Measured at a tenth of a round, more with two threads. Elsewhere it does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL("libc.so.6").mallopt
            mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the most it accepts; larger blocks still go back at once
            mallopt(_M_TRIM_THRESHOLD, 1 << 28)
            mallopt(_M_TOP_PAD, 1 << 26)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """At most this many threads inside torch's operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def single_threaded_torch() -> AbstractContextManager[None]:
    """Workers over chunks beat threads inside operations: chunks are small and there are many."""
    return torch_threads(1)


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_PR_SET_PDEATHSIG = 1  # prctl.h
_TASK = struct.Struct("qq")  # number of the task, bytes in its file
_DONE = struct.Struct("qq?qdq")  # the same, whether it went well; process, its CPU seconds and its own memory
_PEAK = _ENDED = 0  # no process has this number
_cpu: dict[int, float] = {}
_memory: dict[int, int] = {}


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _serve(work: Callable[[A], T], todo: int, done: int, files: list[int], held: set[signal.Signals]) -> NoReturn:
    """A child's life: it ends with its parent, and it reports errors only to its parent."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends its children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        gc.freeze()  # a collection would write to every page that is shared with the parent
        count, memory = 0, 0
        while note := os.read(todo, _TASK.size):  # empty once the parent has left
            number, length = _TASK.unpack(note)
            file, fine = files[number % len(files)], True
            try:
                task, came = _read(file, length)
                length, _ = _write(file, work(task), came)
                print(end="", flush=True)
            except BaseException as error:
                fine, (length, _) = False, _write(file, _portable(error))
            count += 1
            if count & (count - 1) == 0:  # seldom: it takes milliseconds
                memory = _own_memory()
            os.write(done, _DONE.pack(number, length, fine, os.getpid(), time.process_time(), memory))
    finally:
        os._exit(0)


def _end(parent: int, pids: list[int], files: list[int]) -> None:
    """End the children of a crew and wait for them."""
    if os.getpid() != parent:  # a copy that somebody forked
        return
    for file in files:
        os.close(file)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        _memory.pop(pid, None)
        _cpu[_ENDED] = _cpu.get(_ENDED, 0.0) + _cpu.pop(pid, 0.0)


def _killed() -> UserError:
    return UserError("a worker process was killed, perhaps because memory ran out; --threads 1 needs the least memory")


def _portable(error: BaseException) -> BaseException:
    """An error as it can be sent: with the place it comes from, and as a plain one where it cannot be copied."""
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)))
    return copy


def _own_memory() -> int:
    """Bytes of this process that it shares with no other."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


class _Pickler(pickle.Pickler):
    """Leaves tensors out: those that `came` with a task go back as their places in it, the others are `fresh`."""

    def __init__(self, stream: io.BytesIO, came: Iterable[Tensor]) -> None:
        super().__init__(stream, protocol=5)
        self.fresh: dict[int, Tensor] = {}
        self._came = {x.untyped_storage().data_ptr(): place for place, x in enumerate(came) if x.numel()}

    def persistent_id(self, value: Any) -> Any:
        """Where the other side finds a tensor."""
        if not isinstance(value, Tensor):
            return None
        if (place := self._came.get(value.untyped_storage().data_ptr())) is not None:
            return place, value.dtype, value.shape, value.stride(), value.storage_offset()
        self.fresh.setdefault(id(value), value)
        return list(self.fresh).index(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, fresh: list[Tensor], sent: list[Tensor]) -> None:
        super().__init__(stream)
        self._fresh, self._sent = fresh, sent

    def persistent_load(self, place: Any) -> Tensor:
        """A tensor that came along, or a view of one that this side had sent."""
        if isinstance(place, int):
            return self._fresh[place]
        number, dtype, shape, strides, offset = place
        whole: Tensor = self._sent[number].view(-1).view(dtype)
        return whole.as_strided(shape, strides, whole.storage_offset() + offset)


def _write(file: int, value: Any, came: Iterable[Tensor] = ()) -> tuple[int, list[Tensor]]:
    """Bytes written, and the tensors among them: a head, then each tensor where a cache line begins."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, came)
    pickler.dump(value)
    tensors = [x.detach().contiguous() for x in pickler.fresh.values()]
    head = pickle.dumps((stream.getvalue(), [(x.dtype, x.shape) for x in tensors]))
    at = 0
    first = memoryview(len(head).to_bytes(8, "little") + head)
    for rest in (first, *(x.view(-1).view(torch.uint8).numpy().data for x in tensors)):
        while len(rest):
            written = os.pwrite(file, rest, at)
            rest, at = rest[written:], at + written
        at += -at % 64
    return at, tensors


def _read(file: int, length: int, sent: list[Tensor] | None = None) -> tuple[Any, list[Tensor]]:
    """What was written, and the tensors that came with it."""
    whole = torch.empty(length, dtype=torch.uint8).numpy()
    rest, at = whole.data, 0
    while read := os.preadv(file, [rest], at):
        rest, at = rest[read:], at + read
    at = 8 + int.from_bytes(whole[:8], "little")
    stream, kinds = pickle.loads(whole[8:at].data)
    tensors = []
    for dtype, shape in kinds:
        at += -at % 64
        count = math.prod(shape)
        # each with a storage of its own, by which it is known again
        flat = torch.frombuffer(whole, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
        tensors.append(flat.view(shape))
        at += count * dtype.itemsize
    return _Unpickler(io.BytesIO(stream), tensors, sent or []).load(), tensors
