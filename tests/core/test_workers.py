import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import tacit
from tacit.core import workers
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.store import ClientStore
from tacit.core.trained import Trained
from tacit.core.workers import (
    Crew,
    can_fork,
    cpu_seconds,
    shared_zeros,
    workers_memory,
)
from tacit.errors import UserError
from toys import few_clients

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are threads here")

RUN = [sys.executable, "-m", "tacit", "run", "fedmf", "--data", "demo", "--threads", "2"]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(condition, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(met)


def slow_first(n: int) -> tuple[int, int]:
    time.sleep(0.05 if n == 0 else 0.0)
    return n, os.getpid()


def test_results_come_in_order_from_several_processes():
    crew = Crew(slow_first, 3)
    for _ in range(3):
        numbers, pids = zip(*crew.each(range(50)), strict=True)
        assert numbers == tuple(range(50))
        assert set(pids) <= set(crew.pids)
    assert len(set(pids)) > 1
    assert not list(crew.each([]))


def test_tasks_are_taken_a_few_ahead_of_the_reader_and_no_more():
    taken = []
    crew = Crew(lambda n: n, 2)
    results = crew.each(taken.append(n) or n for n in range(100))
    assert [next(results) for _ in range(10)] == list(range(10))
    assert 10 <= len(taken) <= 15


def test_tensors_arrive_as_they_were_and_those_of_the_task_are_not_sent_back():
    table, wide = torch.randn(40, 8), torch.randn(6, 5).T
    own = [
        torch.randn(3, 7).T, torch.empty(0, 4), torch.tensor(2.5, dtype=torch.float64), torch.ones(3) > 0,
        torch.randn(4).bfloat16(), torch.arange(3).expand(4, 3),
    ]  # fmt: skip
    crew = Crew(lambda task: (task[0], task[0][3:5, 2:], task[1].T, own, own[0]), 1)
    ((whole, part, turned, fresh, again),) = crew.each([(table, wide)])
    assert whole.data_ptr() == table.data_ptr()
    assert torch.equal(part, table[3:5, 2:])
    assert part.data_ptr() == table[3:5, 2:].data_ptr()
    assert torch.equal(turned, wide.T)
    assert again is fresh[0]
    for found, expected in zip(fresh, own, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_results_are_still_right_after_their_file_was_used_again():
    crew = Crew(lambda n: torch.full((1000,), n), 2)
    assert all(bool((x == n).all()) for n, x in enumerate(list(crew.each(range(40)))))


def test_shared_memory_is_the_same_on_both_sides():
    x, plain = shared_zeros((4, 3), torch.float32), torch.zeros(4)

    def work(n: int) -> None:
        x[n] = n
        plain[n] = n

    list(Crew(work, 2).each(range(4)))
    assert x[:, 1].tolist() == [0, 1, 2, 3]
    assert not plain.any()
    assert shared_zeros((0, 3), torch.int64).shape == (0, 3)


class Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UserError("say so"), UserError, "say so"),
        (SystemExit(3), SystemExit, "3"),
        (Odd(1, 2), RuntimeError, "Odd: 1 and 2"),
    ],
)
def test_an_error_arrives_as_it_was_in_its_turn_and_ends_the_crew(error, kind, text):
    def work(n: int) -> int:
        if n == 3:
            raise error
        return n

    crew, before = Crew(work, 2), []
    with pytest.raises(kind, match=text) as caught:
        before.extend(crew.each(range(9)))
    assert "in work" in caught.value.__notes__[0]
    assert before == [0, 1, 2]
    assert not any(alive(pid) for pid in crew.pids)


def test_what_cannot_be_sent_is_an_error_too():
    with pytest.raises(Exception, match="pickle"):
        list(Crew(lambda n: lambda: n, 2).each(range(3)))


def test_a_killed_worker_is_said_so():
    with pytest.raises(UserError, match="worker process was killed"):
        list(Crew(lambda n: os.kill(os.getpid(), signal.SIGKILL), 2).each(range(9)))
    with pytest.raises(UserError, match="worker process was killed"):
        list(Crew(lambda n: n == 1 and os.kill(os.getpid(), signal.SIGKILL), 2).each(range(2)))
    crew = Crew(lambda n: n, 2)
    for pid in crew.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UserError, match="worker process was killed"):
        list(crew.each(range(9)))


def test_a_reader_that_leaves_and_a_crew_that_is_forgotten_leave_nothing():
    list(Crew(lambda n: n, 2).each(range(3)))
    gc.collect()
    before = open_files()
    for leave in (True, False) * 2:
        crew = Crew(lambda n: n, 2)
        pids, results = list(crew.pids), crew.each(range(99))
        next(results)
        if leave:
            results.close()
            assert not any(alive(pid) for pid in pids)
        del crew, results
        gc.collect()
        assert not any(alive(pid) for pid in pids)
    assert open_files() == before
    assert not children(os.getpid())


def test_a_thousand_rounds_open_no_more_files():
    crew = Crew(lambda n: torch.ones(3), 2)
    list(crew.each(range(9)))
    before = open_files()
    for _ in range(1000):
        list(crew.each(range(3)))
    assert open_files() == before
    assert len(children(os.getpid())) == 2


def test_torch_has_one_thread_in_a_worker_after_many_here():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        x = torch.ones(2000, 2000)
        (x @ x).sum()
        results = list(Crew(lambda n: (torch.get_num_threads(), float((x @ x).mean())), 2).each(range(4)))
        assert results == [(1, 2000.0)] * 4
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_work_of_the_workers_is_counted():
    def work(n: int) -> int:
        end = time.process_time() + 0.1
        kept = torch.ones(10_000_000)
        while time.process_time() < end:
            pass
        return len(kept)

    cpu, own = cpu_seconds(), time.process_time()
    list(Crew(work, 2).each(range(4)))
    gc.collect()
    assert cpu_seconds() - cpu - (time.process_time() - own) > 0.35
    assert workers_memory() > 2_000_000


METHOD = Trained(dim=4, epochs=1, init=0.3)


def after_rounds(how: str, monkeypatch, **options):
    federation = few_clients(20)
    monkeypatch.setattr("tacit.core.fleet.can_fork", lambda: how == "processes")
    fleet = SimulatedFleet(METHOD, federation, chunk=3, threads=1 if how == "serial" else 2, **options)
    server, traffic = METHOD.init_server(federation), Traffic()
    for round in (1, 2):
        ids = torch.arange(round, 20)
        server = METHOD.aggregate(server, fleet.train(server, ids, round, traffic), Moment(round, 0))
    assert (fleet._crew is not None) == (how == "processes")
    return server, fleet.store.leaves, traffic


@pytest.mark.parametrize("options", [{}, {"sums": True}, {"mapped": True}])
def test_serial_threads_and_processes_are_equal_to_the_bit(monkeypatch, tmp_path, options):
    found = []
    for how in ("serial", "threads", "processes"):
        folder = {"folder": tmp_path / how} if options.get("mapped") else {"sums": options.get("sums", False)}
        found.append(after_rounds(how, monkeypatch, **folder))
    for server, leaves, traffic in found[1:]:
        assert torch.equal(server["items"], found[0][0]["items"])
        assert torch.equal(leaves["user"], found[0][1]["user"])
        assert traffic == found[0][2]


def test_folded_uploads_come_to_the_same(monkeypatch):
    (plain, _, counted), (folded, _, again) = (after_rounds("serial", monkeypatch, sums=sums) for sums in (False, True))
    torch.testing.assert_close(folded["items"], plain["items"], atol=1e-7, rtol=1e-6)
    assert counted == again


def test_other_threads_keep_a_fleet_from_forking():
    federation, leave = few_clients(20), threading.Event()
    fleet = SimulatedFleet(METHOD, federation, chunk=3, threads=2)
    server = METHOD.init_server(federation)
    other = threading.Thread(target=leave.wait)
    other.start()
    try:
        assert not can_fork()
        for _ in fleet.train(server, torch.arange(20), 1, Traffic()):
            assert not children(os.getpid())
    finally:
        leave.set()
        other.join()


def test_a_node_does_not_fork():
    federation = few_clients(20)
    fleet, server = SimulatedFleet(METHOD, federation, chunk=3, threads=2), METHOD.init_server(federation)
    for _ in fleet.train_on(lambda ids: METHOD.downlink(server, ids), torch.arange(20), 1, Traffic()):
        assert not children(os.getpid())


def test_two_rounds_at_once_do_not_mix(monkeypatch):
    monkeypatch.setattr("tacit.core.fleet.can_fork", lambda: True)
    federation = few_clients(20)
    fleet, server = SimulatedFleet(METHOD, federation, chunk=3, threads=2), METHOD.init_server(federation)
    one, two = (fleet.train(server, torch.arange(20), round, Traffic()) for round in (1, 1))
    for up, other in zip(one, two, strict=True):
        assert up.ids.tolist() == other.ids.tolist()


def test_another_store_has_other_workers(monkeypatch):
    monkeypatch.setattr("tacit.core.fleet.can_fork", lambda: True)
    federation = few_clients(20)
    fleet, server = SimulatedFleet(METHOD, federation, chunk=3, threads=2), METHOD.init_server(federation)
    list(fleet.train(server, torch.arange(20), 1, Traffic()))
    first, fleet.store = fleet.store, ClientStore(METHOD, federation)
    list(fleet.train(server, torch.arange(20), 1, Traffic()))
    assert torch.equal(fleet.store.leaves["user"], first.leaves["user"])
    assert len(children(os.getpid())) == 2


def started(folder: Path, *options: str) -> subprocess.Popen:
    """A run that is in the middle of its rounds, in a process group of its own."""
    process = subprocess.Popen(
        [*RUN, "--rounds", "60", "--out", str(folder), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    rounds = folder / "rounds.jsonl"
    assert until(lambda: rounds.exists() and rounds.read_text().count("\n") > 3), process.communicate()
    assert len(children(process.pid)) == 2
    return process


def test_ctrl_c_ends_all_at_once_and_the_run_resumes_to_the_same_end(tmp_path):
    process = started(tmp_path / "cut")
    pids = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert not any(alive(pid) for pid in pids)
    tacit.resume(tmp_path / "cut")
    tacit.run("fedmf", data="demo", rounds=60, threads=2, out=tmp_path / "whole")
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("cut", "whole"))
    for measured in ("seconds", "cpu_seconds", "peak_memory_mb", "folder"):
        one.pop(measured), other.pop(measured)
    assert one == other


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    process = started(tmp_path / "cut")
    pids = children(process.pid)
    process.kill()
    process.wait()
    gone = until(lambda: not any(alive(pid) for pid in pids), 2.0)
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)
    assert gone
    process.communicate()


def test_cores_are_those_that_a_process_may_use(tmp_path, monkeypatch):
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from tacit.core.workers import cores; "
    said = subprocess.run([sys.executable, "-c", code + "print(cores())"], capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"
    monkeypatch.setattr(workers, "QUOTA", tmp_path / "cpu.max")
    bound = len(os.sched_getaffinity(0))
    assert workers.cores() == bound  # no file
    for text, most in (
        ("max 100000", bound),
        ("50000 100000", 1),
        ("150000 100000", min(bound, 2)),
        ("1 0", bound),
        ("?", bound),
    ):
        workers.QUOTA.write_text(text)
        assert workers.cores() == most
