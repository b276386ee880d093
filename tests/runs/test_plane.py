import json

import pytest

import tacit
from tacit.errors import UserError
from tacit.figures import inside, records
from tacit.runs.plane import FILE, plane
from tacit.runs.run import reopen


def test_own_items_are_mapped_among_the_others(tmp_path):
    path = tmp_path / "fedrap"
    tacit.run("fedrap", data="demo", rounds=2, threads=1, out=path)
    run = reopen(path)
    plane(run)
    written = json.loads((path / FILE).read_text())
    assert len(written["users"]) == 4
    for one in written["users"]:
        assert one["own"] == len(run.split.train[run.split.data.user_index(one["user"])])
        assert len(one["points"]) == run.split.n_items
    audit = {"protection": "none", "attacks": {"a": {"auc": 0.5}, "b": {"auc": 0.875}}}
    (path / inside.AUDITS).write_text(json.dumps(audit) + "\n")
    drawn = inside.planes(records.read(path))
    assert "AUC of 0.875" in drawn["note"]
    assert [len(s["points"]) for s in drawn["panels"][0]["series"]] == [
        run.split.n_items - written["users"][0]["own"],
        written["users"][0]["own"],
    ]


def test_what_has_no_table_or_clients_of_many_users_is_refused(tmp_path):
    tacit.run("popularity", data="demo", threads=1, out=tmp_path / "popularity")
    with pytest.raises(UserError, match="trains no item table"):
        plane(reopen(tmp_path / "popularity"))
    tacit.run("fedmf", data="demo", rounds=1, clients=10, threads=1, out=tmp_path / "many")
    with pytest.raises(UserError, match="clients of many users"):
        plane(reopen(tmp_path / "many"))
