import json
from itertools import islice

import numpy as np
import pytest

from tacit.config import config
from tacit.errors import UserError
from tacit.privacy.poison import FAVOURITES, histories, rare_item
from tacit.runs.assembly import method_of
from tacit.runs.poison import FILE, poison
from tacit.runs.run import run

QUICK = {"data": "demo", "threads": 1}


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    """What is played on a run of each kind by nobody and by one client, by what it was."""
    found = {}
    for name, count, options in (("fedmf", 14, {"rounds": 15, "settings": {"dim": 8}}), ("tally", 6, {})):
        folder = tmp_path_factory.mktemp("runs") / name
        run(name, out=folder, **QUICK, **options)
        for one in islice(poison([folder], rounds=2), count):
            found[one.method, one.attack, one.attackers, one.defence] = one
        assert len(json.loads((folder / FILE).read_text())["plays"]) == count
    return found


def test_one_client_puts_its_item_before_many_where_nothing_stops_it(plays):
    assert plays["fedmf", "boosted", 1, "none"].exposure > 0.5
    assert plays["tally", "boosted", 1, "none"].exposure > 0.3


def test_bounds_keep_it_out_and_the_honest_have_what_they_had(plays):
    for key in (("fedmf", "boosted", 1, "bound 1"), ("tally", "boosted", 1, "announced")):
        honest = plays[key[0], "none", 0, key[3]]
        assert plays[key].exposure <= honest.exposure + 0.02
        assert plays[key].ndcg > 0.9 * honest.ndcg
    assert plays["tally", "boosted", 1, "announced"].refused == 1


def test_fake_users_pass_every_check(plays):
    fakes = [p for p in plays.values() if p.attack == "fake users"]
    assert {p.method for p in fakes} == {"fedmf", "tally"}
    assert all(p.refused == 0 for p in fakes)


def test_defences_that_a_method_cannot_have_are_not_played(plays):
    assert {key[3] for key in plays if key[0] == "tally"} == {"none", "announced"}
    assert {key[3] for key in plays if key[0] == "fedmf"} == {"none", "announced", "bound 1", "trimmed"}


def test_what_cannot_be_poisoned_says_why(tmp_path):
    run("popularity", out=tmp_path / "run", data="demo", threads=1)
    with pytest.raises(UserError, match="nothing that has a row"):
        list(poison([tmp_path / "run"]))


def test_the_target_is_rare_and_fake_histories_end_with_it():
    counts = np.array([0, 3, 9, 9, 50])
    assert rare_item(counts, 6, 0) in (1, 2, 3)
    assert rare_item(counts, 1, 0) == 1
    made = histories(3, np.arange(100), 7, 60, 0)
    assert all(h[-1] == 7 and len(set(h.tolist())) == len(h) == FAVOURITES + 1 for h in made)
    assert made[0].tolist() != made[1].tolist()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"method": "fedmf", "robust": "median", "secure": True}, "single uploads"),
        ({"method": "fedmf", "bound": 3, "ldp": "clip=1,scale=1"}, "single uploads"),
        ({"method": "tally", "robust": "trimmed"}, "its uploads are added up"),
        ({"method": "gpfedrec", "robust": "median"}, "does not average uploads"),
    ],
)
def test_what_only_sums_exist_of_is_refused_in_a_sentence(options, why):
    with pytest.raises(UserError, match=why):
        method_of(config(**options))
