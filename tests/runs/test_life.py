import json
import random
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from tacit.core.method import Moment
from tacit.data.imported import import_file
from tacit.data.sources import load
from tacit.errors import UserError
from tacit.runs import life
from tacit.runs.folder import RunFolder
from tacit.runs.run import reopen, run

SETTINGS = {"windows": [1, 5], "decays": [1.0, 0.8], "ridge": [1.0], "blend": [0.3]}
TACIT = str(Path(sys.executable).parent / "tacit")


def csv(path, rows):
    path.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    return path


@pytest.fixture
def folder(tmp_path):
    run("tally", data="demo", settings=SETTINGS, out=tmp_path / "run")
    return tmp_path / "run"


def server(folder):
    return reopen(folder).load_best()


def demo_rows(without=()):
    data = load("demo")
    return [
        (data.user_ids[u], data.item_ids[i], t)
        for u, i, t in zip(data.user, data.item, data.time, strict=True)
        if data.user_ids[u] not in without
    ]


def close(one, other, atol=1e-4):
    for name in ("A", "C", "G", "B", "E"):
        torch.testing.assert_close(one[name], other[name], atol=2e-3 if name == "A" else atol, rtol=1e-4)


def test_forgetting_equals_training_without_the_user(folder, tmp_path):
    gone = load("demo").user_ids[[3, 77, 150]].tolist()
    for user in gone:
        life.forget(reopen(folder), user)
    import_file(csv(tmp_path / "rest.csv", demo_rows(without=gone)), "rest")
    run("tally", data="rest", settings=SETTINGS, out=tmp_path / "fresh")
    assert load("rest").item_ids.tolist() == load("demo").item_ids.tolist()
    close(server(folder), server(tmp_path / "fresh"))
    with pytest.raises(UserError, match="forgotten"):
        tacit.recommend(folder, gone[0])
    with pytest.raises(UserError, match="already forgotten"):
        life.forget(reopen(folder), gone[0])


def test_nothing_of_a_forgotten_user_stays_in_the_folder_but_its_id(folder):
    user = str(load("demo").user_ids[3])
    life.update(reopen(folder), csv(folder.parent / "new.csv", [(user, reopen(folder).split.data.item_ids[0], 1)]))
    life.forget(reopen(folder), user)
    assert life.Life.of(reopen(folder).folder).sequences == {}
    assert len([f for f in folder.glob("checkpoints/*") if f.is_dir()]) == 1


def test_updating_equals_training_with_the_new_interactions(folder, tmp_path):
    opened = reopen(folder)
    data, train = opened.split.data, opened.split.train
    seen = set(train[8].tolist())
    extra = [i for i in range(data.n_items) if i not in seen][:3]
    rows = [(data.user_ids[8], data.item_ids[i], t) for t, i in enumerate(extra)]
    rows += [("newcomer", data.item_ids[i], t) for t, i in enumerate([5, 9, 14, 2])]
    rows += [("newcomer", "no-such-item", 9), (data.user_ids[8], data.item_ids[train[8][0]], 9)]
    done = life.update(opened, csv(tmp_path / "new.csv", rows))
    assert done == life.Update(users=2, new_users=1, interactions=7, unknown_items=1, repeated=1)

    sequences = [train[u] for u in range(data.n_users)]
    sequences[8] = np.concatenate([train[8], extra])
    sequences.append(np.array([5, 9, 14, 2]))
    method = opened.method
    cells = method._sums.cells([(s,) for s in sequences], np.arange(len(sequences)), data.n_items, many=False)
    fresh = {name: torch.zeros(part.shape) for name, part in cells.items()}
    for name, part in cells.items():
        part.add_to(fresh[name])
    fresh = method.aggregate(fresh | {"tried": torch.zeros(1).long()}, [], Moment(1, 0))
    close(server(folder), fresh)
    found = tacit.recommend(folder, "newcomer", 5)
    assert len(found) == 5
    assert not {line.item for line in found} & {str(data.item_ids[i]) for i in (5, 9, 14, 2)}


def test_an_updated_user_can_be_forgotten(folder, tmp_path):
    before = server(folder)
    life.update(reopen(folder), csv(tmp_path / "new.csv", [("newcomer", i, t) for t, i in enumerate([1, 2, 3, 4])]))
    life.forget(reopen(folder), "newcomer")
    close(before, server(folder))


def test_other_methods_say_why_they_cannot(tmp_path):
    run("popularity", data="demo", out=tmp_path / "run")
    with pytest.raises(UserError, match=r"popularity cannot .* keeps no sums"):
        life.forget(reopen(tmp_path / "run"), "1")


def test_from_the_command_line(folder, tmp_path):
    user = str(load("demo").user_ids[3])
    done = subprocess.run([TACIT, "forget", folder, "--user", user], capture_output=True, text=True, check=True)
    assert f"user {user} is forgotten" in done.stdout
    again = subprocess.run([TACIT, "recommend", folder, "--user", user], capture_output=True, text=True)
    assert again.returncode == 2
    assert "forgotten" in again.stderr
    file = csv(tmp_path / "new.csv", [("newcomer", i, t) for t, i in enumerate([1, 2, 3])])
    done = subprocess.run([TACIT, "update", folder, file], capture_output=True, text=True, check=True)
    assert "3 interactions of 1 users taken in, 1 of them new" in done.stdout


CHILDREN = """
import os, sys, time
from pathlib import Path
import torch
from tacit.runs import life
from tacit.runs.run import reopen

torch.set_num_threads(1)  # a pool of threads would not survive a fork
opened = {}
FILES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
for line in sys.stdin:
    path, user, operation, seconds = line.split()
    made = opened.get(path) or reopen(Path(path))  # its folder is as it was then
    opened[path] = made
    child = os.fork()
    if not child:
        left = int(operation)
        def hook(event, words):
            global left
            if event in FILES and (event != "open" or words[1] not in ("r", "rb")):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), 9)
        sys.addaudithook(hook)
        life.forget(made, user)
        os._exit(0)
    if float(seconds):
        time.sleep(float(seconds))
        os.kill(child, 9)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture
def killed():
    """Forget in a process of its own that is killed before its n-th change of a file, or after some time."""
    with subprocess.Popen([sys.executable, "-c", CHILDREN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as children:

        def forget(folder, user, operation=0, seconds=0.0):
            children.stdin.write(f"{folder} {user} {operation} {seconds}\n".encode())
            children.stdin.flush()
            return int(children.stdout.readline()) == 9

        yield forget
        children.stdin.close()


def test_a_kill_leaves_the_user_in_the_run_or_forgotten_by_it(folder, tmp_path, killed):
    user = str(load("demo").user_ids[3])
    before = server(folder)
    shutil.copytree(folder, tmp_path / "whole")
    assert not killed(tmp_path / "whole", user)
    after = server(tmp_path / "whole")
    assert not torch.equal(before["A"], after["A"])
    rng = random.Random(0)
    cases = [{"seconds": rng.uniform(0, 0.1)} for _ in range(5)] + [{"operation": n} for n in range(1, 60)]
    seen = set()
    for case in cases:
        place = shutil.copytree(folder, tmp_path / "struck", dirs_exist_ok=True)
        if not killed(place, user, **case):
            shutil.rmtree(place)
            if "operation" in case:
                break  # fewer changes than that: all have been tried
            continue
        opened = RunFolder.open(place)
        forgotten = user in life.Life.of(opened).forgotten
        seen.add(forgotten)
        assert torch.equal(opened.load("best")[0]["A"], (after if forgotten else before)["A"]), case
        with pytest.raises(UserError, match="already forgotten") if forgotten else nullcontext():
            life.forget(reopen(place), user)
        assert life.Life.of(opened).forgotten == [user]
        assert torch.equal(opened.load("best")[0]["A"], after["A"]), case
        assert len([f for f in place.glob("checkpoints/*") if f.is_dir()]) == 1, case
        shutil.rmtree(place)
    assert seen == {True, False}


def test_several_at_once_are_one_writer_and_sentences(folder):
    users = load("demo").user_ids[:3].tolist()
    commands = [[TACIT, "forget", folder, "--user", str(user)] for user in users]
    started = [subprocess.Popen(c, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for c in commands]
    ended = [(p.communicate()[1], p.returncode) for p in started]
    assert 0 in [code for _, code in ended]
    for said, code in ended:
        assert code == 0 or said.count("\n") == 1, said
        assert code == 0 or "another process is writing" in said or "revised since it was opened" in said
    done = [str(user) for user, (_, code) in zip(users, ended, strict=True) if code == 0]
    assert sorted(life.Life.of(RunFolder.open(folder)).forgotten) == sorted(done)
    for user in users:
        if str(user) not in done:
            life.forget(reopen(folder), str(user))


def test_a_run_opened_before_another_revision_is_not_revised(folder):
    one, other = reopen(folder), reopen(folder)
    users = load("demo").user_ids.tolist()
    life.forget(one, users[0])
    with pytest.raises(UserError, match="revised since it was opened; try again"):
        life.forget(other, users[1])


def test_the_note_of_an_earlier_version_is_read_and_then_replaced(folder):
    users = [str(user) for user in load("demo").user_ids[:2]]
    life.forget(reopen(folder), users[0])
    (note,) = folder.glob("checkpoints/*/life.json")
    note.rename(folder / "life.json")
    with pytest.raises(UserError, match="already forgotten"):
        life.forget(reopen(folder), users[0])
    life.forget(reopen(folder), users[1])
    assert not (folder / "life.json").exists()
    assert json.loads(next(folder.glob("checkpoints/*/life.json")).read_text())["forgotten"] == users


def test_an_unfinished_run_is_not_revised(folder):
    (folder / "summary.json").unlink()
    with pytest.raises(UserError, match=r"is not finished; tacit resume .* first"):
        life.forget(reopen(folder), str(load("demo").user_ids[0]))


def test_an_export_updates_as_it_was_imported(folder, tmp_path):
    items = reopen(folder).split.data.item_ids[:2]
    path = tmp_path / "export.csv"
    path.write_text(f"Kunde;Artikel;Datum\nneu;{items[0]};31.12.2024 14:05\n;{items[1]};31.12.2024 14:06\n")
    with pytest.raises(UserError, match="--skip-bad"):
        life.update(reopen(folder), path, "Kunde", "Artikel", "Datum")
    command = [TACIT, "update", str(folder), str(path), "--user", "Kunde", "--item", "Artikel", "--time", "Datum"]
    done = subprocess.run([*command, "--skip-bad"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 rows left out: the user is empty" in done.stdout
    assert "1 interactions of 1 users taken in, 1 of them new" in done.stdout
    path.write_text(f"neu;{items[1]};1\n")
    assert life.update(reopen(folder), path, separator=";", columns=["user", "item", "time"]).interactions == 1
