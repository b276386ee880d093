import json
import math
import resource
import subprocess
import sys

import pytest
import torch

from tacit.core.rounds import Progress, RoundRecord
from tacit.errors import UserError
from tacit.runs.files import write_json
from tacit.runs.folder import RunFolder

SPENT = {"seconds": 1.5, "cpu_seconds": 2.5, "peak_memory_mb": 100.0}
ASKED = {"config": {"method": "fedmf"}, "settings": {}, "fingerprint": "x"}


def record(round, value=0.1):
    return RoundRecord(round, 0.5, 0.6, {"NDCG@10": value}, 10, 20, 3)


def state(round):
    return {"items": torch.full((2, 3), float(round))}, {"user": torch.full((4,), -float(round))}


def played(folder, values):
    """Rounds with these validation values, each logged and checkpointed."""
    best, best_round, history = -math.inf, 0, []
    for round, value in enumerate(values, 1):
        server, clients = state(round)
        improved = value > best
        best, best_round = (value, round) if improved else (best, best_round)
        history.append(record(round, value))
        folder.log(history[-1])
        folder.save(Progress(server, round, best_round, best, history), clients, SPENT)


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", ASKED)


def test_a_new_folder_holds_what_was_asked_for(folder):
    assert RunFolder.open(folder.path).run == ASKED
    assert folder.summary is None
    assert folder.load("last") is None
    assert folder.rounds() == []


def test_an_empty_folder_is_taken_and_a_full_one_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    made = RunFolder.create(tmp_path / "empty", ASKED)
    with pytest.raises(UserError, match=rf"{made.path} is not an empty folder; tacit resume {made.path}"):
        RunFolder.create(made.path, ASKED)
    (made.path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="is not an empty folder; its run is finished; name another"):
        RunFolder.create(made.path, ASKED)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="is not an empty folder; name another"):
        RunFolder.create(tmp_path / "other", ASKED)
    with pytest.raises(UserError, match="is not an empty folder; name another"):
        RunFolder.create(tmp_path / "other" / "letter.txt", ASKED)
    assert (tmp_path / "other" / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("left", "taken"),
    [
        ([".lock"], True),
        ([".lock", "run.json.new"], True),
        ([".lock", "data.npz", "run.json.new"], True),
        (["run.json.new"], False),  # somebody's
        (["data.npz"], False),
        ([".lock", "letter.txt"], False),
    ],
)
def test_what_a_kill_left_before_there_was_a_run_is_no_run(tmp_path, left, taken):
    for name in left:
        (tmp_path / name).write_text("{")
    if taken:
        assert RunFolder.create(tmp_path, ASKED).run == ASKED
        assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".new") == []
        return
    with pytest.raises(UserError, match="is not an empty folder; name another"):
        RunFolder.create(tmp_path, ASKED)
    assert {p.name for p in tmp_path.iterdir()} == set(left)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"cannot write to .*file/run: .*; name another --out"):
        RunFolder.create(tmp_path / "file" / "run", ASKED)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"config": {}}'])
def test_what_is_not_a_run_folder_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError) as caught:
        RunFolder.open(tmp_path).run  # noqa: B018
    assert str(tmp_path) in str(caught.value)


def test_the_last_and_the_best_checkpoint_are_kept_and_no_others(folder):
    played(folder, [0.1, 0.3, 0.2, 0.25])
    assert sorted(p.name for p in folder.checkpoints.glob("round-*")) == ["round-000002", "round-000004"]
    for which, round in (("last", 4), ("best", 2)):
        for found, expected in zip(folder.load(which), state(round), strict=True):
            assert set(found) == set(expected)
            assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_progress_comes_back_whole(folder):
    played(folder, [0.1, 0.3, 0.2])
    progress, spent = folder.progress(state(3)[0])
    assert (progress.round, progress.best_round, progress.best) == (3, 2, 0.3)
    assert progress.history == [record(1, 0.1), record(2, 0.3), record(3, 0.2)]
    assert spent == SPENT


def test_without_validation_so_far_the_last_is_the_best(folder):
    server, clients = state(1)
    folder.log(RoundRecord(1, 0.5, None, None, 1, 2, 3))
    folder.save(Progress(server, 1, 0, -math.inf), clients, SPENT)
    progress, _ = folder.progress(server)
    assert (progress.best_round, progress.best) == (0, -math.inf)
    assert torch.equal(folder.load("best")[0]["items"], server["items"])


@pytest.mark.parametrize("tail", ["", '{"round": 4', '{"round": 4, "seconds": 1}\n{"rou'])
def test_lines_behind_the_last_checkpoint_are_cut_off(folder, tail):
    """Killed between the line and the checkpoint, or within the line."""
    played(folder, [0.1, 0.3, 0.2])
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write(tail)
    progress, _ = folder.progress(state(3)[0])
    assert [r.round for r in progress.history] == [1, 2, 3]
    folder.log(record(4))
    assert [line["round"] for line in folder.rounds()] == [1, 2, 3, 4]


def test_killed_before_the_first_checkpoint(folder):
    folder.log(record(1))
    (folder.checkpoints / "round-000001").mkdir()
    (folder.checkpoints / "round-000001" / "server.safetensors").write_bytes(b"half")
    progress, spent = folder.progress(state(0)[0])
    assert (progress.round, progress.history, spent) == (0, [], {})
    assert folder.load("last") is None
    assert folder.rounds() == []
    played(folder, [0.4])
    assert torch.equal(folder.load("last")[0]["items"], state(1)[0]["items"])


def test_killed_while_a_checkpoint_is_written(folder):
    """The index still names the one before; the half of the next is written over."""
    played(folder, [0.1, 0.3])
    folder.log(record(3))
    (folder.checkpoints / "round-000003").mkdir()
    (folder.checkpoints / "round-000003" / "server.safetensors").write_bytes(b"half")
    (folder.checkpoints / "index.json.new").write_text("{")
    (folder.path / "summary.json.new").write_text("{")
    progress, _ = folder.progress(state(2)[0])
    assert progress.round == 2
    assert folder.summary is None
    assert torch.equal(folder.load("last")[0]["items"], state(2)[0]["items"])
    server, clients = state(3)
    folder.save(Progress(server, 3, 2, 0.3, [*progress.history, record(3)]), clients, SPENT)
    assert torch.equal(folder.load("last")[0]["items"], server["items"])
    assert torch.equal(folder.load("best")[0]["items"], state(2)[0]["items"])


def test_a_server_may_keep_one_tensor_under_two_names(folder):
    table = torch.ones(2, 3)
    server = {"items": table, "before": table, "turned": table.T}
    folder.save(Progress(server, 1, 1, 0.1), {}, SPENT)
    found, clients = folder.load("last")
    assert clients == {}
    assert all(torch.equal(found[n], server[n]) for n in server)


def test_the_summary_is_read_as_written(folder):
    folder.finish({"method": "fedmf", "test": {"HR@10": 0.25}})
    assert folder.summary == {"method": "fedmf", "test": {"HR@10": 0.25}}
    assert json.loads((folder.path / "summary.json").read_text()) == folder.summary


def test_an_infinite_budget_is_valid_json_and_comes_back(folder):
    one = record(1)
    one.epsilon = math.inf
    folder.log(one)
    folder.finish({"epsilon": math.inf, "ldp": {"epsilon_round": math.inf, "scale": 0.5}, "name": "inf"})

    def strict(text):
        return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    assert strict((folder.path / "rounds.jsonl").read_text())["epsilon"] == "inf"
    assert strict((folder.path / "summary.json").read_text())["ldp"]["epsilon_round"] == "inf"
    assert folder.rounds()[0]["epsilon"] == math.inf
    assert folder.summary == {
        "epsilon": math.inf,
        "ldp": {"epsilon_round": math.inf, "scale": 0.5},
        "name": "inf",
    }
    folder.save(Progress({}, 1, 1, 0.1, [one]), {}, SPENT)
    assert folder.progress({})[0].history[0].epsilon == math.inf
    assert strict((folder.path / "rounds.jsonl").read_text())["epsilon"] == "inf"


LINES = [json.dumps({"round": n}) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        LINES[0] + "\n",
        "\n".join([LINES[0], LINES[2]]),
        "\n".join([LINES[0], "{]", LINES[2]]),
        "\n".join([LINES[0]] * 3),
    ],
)
def test_a_log_without_all_finished_rounds_is_refused(folder, text):
    """Totals are sums over its lines."""
    played(folder, [0.1, 0.3, 0.2])
    (folder.path / "rounds.jsonl").write_text(text)
    for ask in (folder.rounds, lambda: folder.progress({})):
        with pytest.raises(UserError, match=r"rounds\.jsonl has [01] of 3 finished rounds.*restore it"):
            ask()
    (folder.path / "rounds.jsonl").unlink()
    with pytest.raises(UserError, match="0 of 3 finished rounds"):
        folder.progress({})
    folder.drop_checkpoints()
    folder.finish({"rounds": 3})
    with pytest.raises(UserError, match="0 of 3 finished rounds"):
        folder.rounds()


@pytest.mark.parametrize("file", ["server", "clients"])
@pytest.mark.parametrize("size", [None, 0, 7, 60, -1])
def test_a_checkpoint_that_is_cut_short_or_gone_is_one_sentence(folder, file, size):
    played(folder, [0.1])
    path = folder.checkpoints / "round-000001" / f"{file}.safetensors"
    content = path.read_bytes()
    path.unlink() if size is None else path.write_bytes(content[:size])
    with pytest.raises(
        UserError, match=r"round-000001 cannot be read: .*; restore it from a copy, or remove .*checkpoints"
    ):
        folder.load("last")


@pytest.mark.parametrize("name", ["run.json", "summary.json", "checkpoints/index.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"[]"])
def test_a_file_that_cannot_be_read_is_one_sentence(folder, name, content):
    played(folder, [0.1])
    (folder.path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{folder.path / name} .*; restore it from a copy"):
        _ = (folder.run, folder.summary, folder.last_round)


def test_a_full_disk_is_one_sentence_and_costs_nothing_saved(folder):
    played(folder, [0.1, 0.3])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = {"items": torch.ones(100_000)}
    folder.log(record(3))
    for server, clients in ((large, {}), ({}, large)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            with pytest.raises(
                UserError, match=r"cannot write .*round-000003/(server|clients)\.safetensors: .*try again"
            ):
                folder.save(Progress(server, 3, 2, 0.3), clients, SPENT)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not (folder.checkpoints / "round-000003").exists()
        assert torch.equal(folder.load("last")[0]["items"], state(2)[0]["items"])
    folder.save(Progress(large, 3, 2, 0.3), {}, SPENT)
    assert torch.equal(folder.load("last")[0]["items"], large["items"])


def test_a_line_that_cannot_be_written_is_one_sentence(folder):
    (folder.path / "rounds.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cannot write .*rounds\.jsonl: No space left on device; "):
        folder.log(record(1))


def test_one_process_writes(folder):
    other = RunFolder.open(folder.path)
    for _ in range(2):
        with pytest.raises(UserError, match=f"another process is writing to {folder.path}; "):
            other.lock()
    with pytest.raises(UserError, match="is not an empty folder; tacit resume"):
        RunFolder.create(folder.path, ASKED)
    folder.unlock()
    with other.writer(), pytest.raises(UserError, match="another process"):
        folder.lock()
    folder.lock()


def test_a_killed_process_holds_no_lock_and_what_it_left_is_removed(folder):
    played(folder, [0.1])
    folder.unlock()
    words = "import sys; from tacit.runs.folder import *; a = RunFolder(Path(sys.argv[1])); a.lock(); print(1); input()"
    command = [sys.executable, "-c", words, folder.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(UserError, match="another process"):
            folder.lock()
        (folder.checkpoints / "round-000002").mkdir()
        holder.kill()
    folder.lock()
    assert [p.name for p in folder.checkpoints.iterdir() if p.is_dir()] == ["round-000001"]


def test_any_kind_of_leaf_is_written_as_safetensors_reads_it(folder):
    server = {
        "flags": torch.tensor([True, False, True]),
        "single": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "large": torch.rand(3_000_001)[::2],
        "wide": torch.rand(5, dtype=torch.float64),
    }
    folder.save(Progress(server, 1), {}, SPENT)
    found, _ = folder.load("last")
    assert {name: leaf.dtype for name, leaf in found.items()} == {name: leaf.dtype for name, leaf in server.items()}
    assert all(torch.equal(found[name], leaf) for name, leaf in server.items())


def test_a_link_in_the_place_of_a_new_file_is_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "there.json.new").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="cannot write"):
        write_json(tmp_path / "there.json", {"a": 1})
    assert (tmp_path / "mine").read_text() == "precious"
