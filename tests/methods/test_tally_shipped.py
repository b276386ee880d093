from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.config import build
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.errors import UserError
from tacit.methods.tally import Tally
from tacit.methods.tally_shipped import SmallTally, small_model
from tacit.methods.tally_small import decode
from tacit.runs.life import forget
from tacit.runs.model import Model
from tacit.runs.run import reopen, run
from toys import few_users, fitted

SMALL = {"windows": (1, 5), "decays": (1.0, 0.8), "ridge": (1.0,), "blend": (0.3,)}


@pytest.fixture(scope="module")
def divided():
    return split(few_users(60), "strict")


@pytest.mark.parametrize("inputs", [0, 40])
def test_clients_rank_with_what_they_download(divided, inputs):
    federation = Federation.of_users(divided)
    method = SmallTally(**SMALL, small=0.05, inputs=inputs)
    server, fleet = fitted(method, federation, rounds=1 + bool(inputs))
    exact, whole = fitted(Tally(**SMALL, inputs=inputs), federation, rounds=1 + bool(inputs))
    assert torch.equal(server["B"], exact["B"])
    model = decode(server["model"].numpy().tobytes())
    assert len(server["model"]) <= 50_000
    alike = []
    for user in (0, 11, 31):
        scores = fleet.scores_of(server, user, "valid").numpy()
        np.testing.assert_allclose(scores, model.scores(divided.train[user]), atol=1e-3)
        alike.append(np.corrcoef(scores, whole.scores_of(exact, user, "valid").numpy())[0, 1])
    assert 0.9 < min(alike) < max(alike) < 1


def test_all_that_is_sent_is_the_model_whoever_asks(divided):
    method = SmallTally(**SMALL, small=0.02)
    server, _ = fitted(method, Federation.of_users(divided))
    one, other = (method.downlink(server, torch.tensor([client])) for client in (4, 5))
    assert one.nbytes() == other.nbytes() == len(server["model"]) <= 20_000
    assert torch.equal(one["model"], other["model"])


def test_a_model_of_another_catalogue_is_not_written_out(divided):
    """Whose size is anything that a server likes to say."""
    other = split(few_users(80), "strict")
    assert other.n_items != divided.n_items
    method = SmallTally(**SMALL, small=0.05)
    server, _ = fitted(method, Federation.of_users(other))
    federation = Federation.of_users(divided)
    down = method.downlink(server, torch.arange(1))
    for changed in (method, replace(method, windows=(1, 5, 9), decays=(1.0, 0.8, 0.9))):
        of = federation if changed is method else Federation.of_users(other)
        with pytest.raises(UserError, match="other items or time scales"):
            changed.serve({}, down, of.people(torch.arange(1)), "valid")


def test_forgetting_is_exact_and_the_model_is_cut_anew(divided):
    method, exact = SmallTally(**SMALL, small=0.05), Tally(**SMALL)
    server, _ = fitted(method, Federation.of_users(divided))
    before = server["model"].clone()
    whole, _ = fitted(exact, Federation.of_users(divided))
    server, whole = (m.revise(s, divided.orders(5), ()) for m, s in ((method, server), (exact, whole)))
    assert torch.equal(server["B"], whole["B"])
    assert torch.equal(server["E"], whole["E"])
    assert server["model"].numpy().tobytes() == small_model(exact, whole, 0.05) != before.numpy().tobytes()


def test_a_run_measures_the_small_model_and_counts_it(tmp_path):
    settings = SMALL | {"small": 0.03}
    small = run("tally", data="demo", settings=settings, out=tmp_path / "small")
    whole = run("tally", data="demo", settings=SMALL, out=tmp_path / "whole")
    assert small.bytes_to_rank <= 30_000
    assert small.bytes_down == small.clients * small.bytes_to_rank
    assert whole.bytes_to_rank > 15 * small.bytes_to_rank
    assert small.test != whole.test
    assert small.test["NDCG@10"] > 0.8 * whole.test["NDCG@10"]
    opened = reopen(tmp_path / "small")
    user = str(opened.split.data.user_ids[7])
    model = decode(opened.load_best()["model"].numpy().tobytes())
    known = np.concatenate([opened.split.train[7], opened.split.valid[7]])
    scores = model.scores(opened.split.train[7])
    scores[known] = -np.inf
    best = [opened.split.data.item_ids[i] for i in np.argsort(-scores)[:5]]
    assert [line.item for line in Model(opened).recommend(user, 5, held_out=True)] == best
    before = opened.load_best()["model"].clone()
    forget(opened, user)
    assert not torch.equal(reopen(tmp_path / "small").load_best()["model"], before)


def test_the_size_is_a_setting():
    assert type(build(Tally, {"small": "2"})) is SmallTally
    assert type(build(Tally, {"small": "0"})) is type(build(Tally, {})) is Tally
    with pytest.raises(UserError, match=r"takes 0\.01 MB or more; 0: whole"):
        build(Tally, {"small": "0.001"})
    for wrong in ("-1", "nan", "much"):
        with pytest.raises(UserError, match="small"):
            build(Tally, {"small": wrong})
