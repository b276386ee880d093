import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.core.method import Moment
from tacit.data.imported import import_file
from tacit.data.sources import load
from tacit.errors import UserError
from tacit.runs import life
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
        reopen(folder).recommend(gone[0])
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
    cells = method.cells(sequences, np.arange(len(sequences)), data.n_items, many=False)
    fresh = {name: torch.zeros(part.shape) for name, part in cells.items()}
    for name, part in cells.items():
        part.add_to(fresh[name])
    fresh = method.aggregate(fresh | {"tried": torch.zeros(1).long()}, [], Moment(1, 0))
    close(server(folder), fresh)
    found = reopen(folder).recommend("newcomer", 5)
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
