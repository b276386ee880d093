"""Models in use: nothing owned is recommended, newcomers get lists, and what was saved answers the same."""

import json
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
import torch

import tacit
from tacit.data.sources import load as load_data
from tacit.errors import UserError
from tacit.methods import known
from tacit.runs.model import load
from tacit.runs.run import reopen

QUICK = {"threads": 1, "settings": {"dim": 8, "init": 0.3}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of an ordinary evaluation run."""
    folder = tmp_path_factory.mktemp("runs") / "fedmf"
    tacit.run("fedmf", data="demo", rounds=3, out=folder, **QUICK)
    return folder


@pytest.fixture(scope="module")
def tally():
    """A model on everything."""
    return tacit.train("tally", "demo", threads=1, settings={"ridge": "1,100", "blend": "0.3"})


def test_a_run_recommends_the_best_items_that_are_not_owned(run):
    made, model = reopen(run), load(run)
    data, server = made.split.data, made.load_best()
    for user in (0, 17):
        name = str(data.user_ids[user])
        scores = made.fleet.scores_of(server, user, "test")
        parts = made.split.train, made.split.valid, made.split.test
        train, valid, test = (set(part[user].tolist()) for part in parts)
        ranked = scores.argsort(descending=True).tolist()
        order = [i for i in ranked if i not in train | valid | test]
        found = model.recommend(name, 12)
        assert [line.item for line in found] == [str(data.item_ids[i]) for i in order[:12]]
        assert [line.title for line in found] == [data.title(i) for i in order[:12]]
        assert [line.score for line in found] == pytest.approx(scores[order[:12]].tolist())
        assert not any(line.held_out for line in model.recommend(name, 1000))
        assert len(model.recommend(name, 1000)) == data.n_items - len(train | valid | test)
        assert tacit.recommend(run, name, 12) == found
        marked = model.recommend(name, 1000, held_out=True)
        assert [line.item for line in marked] == [str(data.item_ids[i]) for i in ranked if i not in train | valid]
        assert {line.item for line in marked if line.held_out} == {str(data.item_ids[i]) for i in test}


def test_the_latest_items_are_the_known_ones_newest_first(run):
    model, user = load(run), 5
    data = model.data
    in_time = sorted((t, i) for t, i in zip(data.time[data.user == user], data.item[data.user == user], strict=True))
    expected = [data.title(i) for _, i in in_time[:-1]][::-1]  # all but the test item
    assert model.recent(str(data.user_ids[user]), 5) == expected[:5]


def test_a_user_who_does_not_exist_is_told_how_to_begin(run):
    with pytest.raises(UserError, match=r"no user 'nobody' in demo, which has 300, such as 1, 2, 3; .* --items ID,ID"):
        tacit.recommend(run, "nobody")


@pytest.mark.parametrize("k", [-3, 0, 2.5, True, "7"])
def test_a_list_has_a_whole_number_of_lines(run, tally, k):
    for ask in (lambda: tacit.recommend(run, "1", k), lambda: tally.recommend("1", k), lambda: tally.lists(k)):
        with pytest.raises(UserError, match="is invalid: a list has a whole number of lines"):
            ask()


def test_training_on_everything_withholds_nothing(tally):
    data = load_data("demo")
    assert len(tally.run.split.train.values) == len(data)
    assert not len(tally.run.split.valid.values)
    assert not len(tally.run.split.test.values)
    lists = tally.lists(10)
    assert lists.columns == ["user", "rank", "item", "title", "score"]
    assert lists["user"].n_unique() == 300
    assert len(lists) == 3000
    owned = set(zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True))
    assert not owned & set(lists.select("user", "item").iter_rows())
    for user in ("1", "250"):
        mine = lists.filter(pl.col("user") == user)
        found = tally.recommend(user, 10)
        assert mine["item"].to_list() == [line.item for line in found]
        assert mine["score"].to_list() == pytest.approx([line.score for line in found])
        assert mine["rank"].to_list() == list(range(1, 11))


def test_what_validation_chose_is_solved_anew_on_everything(tally, tmp_path):
    asked = {"threads": 1, "settings": {"ridge": "1,100", "blend": "0.3"}}
    tried = tacit.run("tally", data="demo", out=tmp_path / "run", **asked)
    method = reopen(tmp_path / "run").method.chosen(tried.best_round)
    assert tally.method == method
    (one,) = tally.method.candidates()
    assert (one.ridge, one.blend) == (100.0, 0.3)
    assert tried.best_round == 2, "the first is meant not to be the best"
    assert tally.run.folder.run["chosen"].startswith(f"solution {tried.best_round} of 2 was best")
    for name in ("A", "C"):  # sums over more interactions than the run had
        assert tally.server[name].sum() > reopen(tmp_path / "run").load_best()[name].sum()


@pytest.mark.parametrize(("method", "setting"), [("ease", "ridge"), ("gfcf", "rank")])
def test_other_closed_forms_are_solved_with_what_was_best(method, setting, tmp_path):
    tried = tacit.run(method, data="demo", threads=1, out=tmp_path / "run")
    model = tacit.train(method, "demo", threads=1)
    assert getattr(model.method, setting) == (tried.settings[setting][tried.best_round - 1],)


def test_a_trained_method_has_the_rounds_that_were_best(tmp_path):
    asked = QUICK | {"settings": {"lr": 0.3}}
    tried = tacit.run("mf", data="demo", rounds=4, out=tmp_path / "run", **asked)
    assert 1 <= tried.best_round < 4, "the case is meant to overfit"
    model = tacit.train("mf", "demo", **asked | {"settings": asked["settings"] | {"rounds": 4}})
    assert model.run.folder.last_round == tried.best_round
    assert tacit.train("mf", "demo", rounds=4, **asked).run.folder.last_round == 4


def test_a_training_that_was_stopped_is_resumed(tmp_path):
    expected = tacit.train("fedmf", "demo", rounds=4, out=tmp_path / "through", **QUICK)

    def stop(progress, plan):
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacit.train("fedmf", "demo", rounds=4, out=tmp_path / "stopped", watch=stop, **QUICK)
    assert tacit.resume(tmp_path / "stopped").rounds == 4
    assert load(tmp_path / "stopped").recommend("1") == expected.recommend("1")
    assert json.loads((tmp_path / "stopped" / "summary.json").read_text())["test"] == {}


def test_what_was_saved_answers_the_same_without_its_data(tally, tmp_path):
    tally.save(tmp_path / "model")
    again = tacit.load(tmp_path / "model")
    assert again.recommend("7") == tally.recommend("7")
    assert again.recommend(items=["3", "4"]) == tally.recommend(items=["3", "4"])
    assert again.data.fingerprint() == tally.data.fingerprint()
    with pytest.raises(UserError, match="is not an empty folder; name another"):
        tally.save(tmp_path / "model")
    with pytest.raises(UserError, match="is not a run folder"):
        tacit.load(tmp_path / "nothing")


def test_a_newcomer_with_a_users_items_has_the_users_list(tally):
    """A linear scorer knows of a user what it has and in which order, and no more."""
    for user in ("3", "77"):
        row = tally.user_index(user)
        had = [str(tally.data.item_ids[i]) for i in tally.run.split.train[row]]
        assert [line.item for line in tally.recommend(items=had)] == [line.item for line in tally.recommend(user)]
    five = tally.recommend(items=["1", "2", "3", "4", "5"], k=300)
    assert len(five) == tally.data.n_items - 5
    assert not {line.item for line in five} & {"1", "2", "3", "4", "5"}
    without = tally.recommend_items(["1", "2"], 5, exclude=[tally.recommend_items(["1", "2"], 5)[0].item])
    assert [line.item for line in without][:4] == [line.item for line in tally.recommend_items(["1", "2"], 5)][1:]


@pytest.mark.parametrize("method", sorted(set(known()) - {"tally", "lightgcn"}))
def test_every_method_has_a_list_for_a_newcomer(method):
    rounds = {} if method in ("popularity", "ease", "gfcf") else {"rounds": 2}
    model = tacit.train(method, "demo", threads=1, min_interactions=25, **rounds)
    before = {name: leaf.clone() for name, leaf in model.server.items()}
    kept = {name: leaf.clone() for name, leaf in model.run.fleet.store.leaves.items()}
    items = model.items[5:10]
    found = model.recommend(items=items, k=5)
    assert len({line.item for line in found} - set(items)) == 5
    assert all(torch.isfinite(torch.tensor(line.score)) for line in found)
    assert all(torch.equal(before[name], leaf) for name, leaf in model.server.items())
    assert all(torch.equal(kept[name], leaf) for name, leaf in model.run.fleet.store.leaves.items())


def test_a_newcomer_to_a_trained_method_has_a_list_of_its_own_taste():
    """Two users of planted tastes: who has a genre's films is recommended this genre's."""
    model = tacit.train("fedmf", "demo", rounds=30, threads=1)
    share = []
    for genre in ("horror", "western", "space"):
        films = [i for i in model.items if model.title(i).endswith(f"({genre})")]
        found = model.recommend(items=films[:8], k=10)
        share.append(sum(line.title.endswith(f"({genre})") for line in found) / 10)
    assert sum(share) / len(share) > 0.4  # of seven genres


def test_a_newcomer_has_the_mean_of_what_the_server_keeps_for_each_client():
    model = tacit.train("pfedgraph", "demo", rounds=2, threads=1)
    sent = model.for_newcomers
    assert model.server["tables"].shape[0] == 300
    torch.testing.assert_close(sent["tables"][0], model.server["tables"].mean(0))
    assert torch.equal(sent["start"], model.server["start"])


def test_a_graph_of_all_users_has_no_place_for_a_newcomer():
    model = tacit.train("lightgcn", "demo", rounds=1, threads=1)
    with pytest.raises(UserError, match="lightgcn ranks over the graph of all users"):
        model.recommend(items=["1"])
    assert len(model.recommend("1")) == 10


def test_items_are_named_by_id_or_title(tally):
    titles = [tally.title(i) for i in ("3", "4")]
    expected = tally.recommend(items=["3", "4"])
    assert tally.recommend(items=titles) == expected
    assert tally.recommend(items=[titles[0].upper(), 4]) == expected
    assert tally.items_in(f"3, {titles[1]}") == ["3", "4"]
    with pytest.raises(UserError, match=r"unknown item 'nothing' in demo; its items are 1, 2, 3, …"):
        tally.recommend(items=["nothing"])
    with pytest.raises(UserError, match="unknown item 'Haunted Cellar XII' in demo; did you mean 'Haunted Cellar"):
        tally.recommend(items=["Haunted Cellar XII"])
    with pytest.raises(UserError, match="at least one item"):
        tally.recommend(items=[])
    for both in ({}, {"user": "1", "items": ["2"]}):
        with pytest.raises(UserError, match="either a user or"):
            tally.recommend(**both)


def test_many_threads_may_ask_at_once(tally):
    expected = [tally.recommend(str(u)) for u in range(1, 40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda u: tally.recommend(str(u)), range(1, 40))) == expected


def test_a_forgotten_user_leaves_nothing_in_a_model(tally, tmp_path):
    from tacit.runs import life

    tally.save(tmp_path / "model")
    before = reopen(tmp_path / "model")
    life.forget(before, "9")
    after = tacit.load(tmp_path / "model")
    assert not (after.data.user == after.user_index("9")).any()
    assert len(after.data) == len(tally.data) - len(tally.owned("9"))
    assert "9" not in after.lists(3)["user"].to_list()
    with pytest.raises(UserError, match="knows nothing of user '9': it was forgotten"):
        after.recommend("9")
    with pytest.raises(UserError, match="already forgotten"):
        life.forget(reopen(tmp_path / "model"), "9")
    assert [line.item for line in after.recommend("10")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "paper"}, "protocol 'paper' is for evaluation"),
        ({"method": "fedmf", "ldp": "clip=1,scale=1"}, "would spend the privacy budget of fedmf twice.*--rounds"),
        ({"settings": {"clip": 1.0, "dp_noise": 1.0}}, "would spend the privacy budget of tally twice.*--set ridge=1"),
        ({"method": "tallly"}, "did you mean 'tally'"),
    ],
)
def test_what_train_refuses(options, message):
    with pytest.raises(UserError, match=message):
        tacit.train(**{"data": "demo", "threads": 1} | options)


def test_a_protocol_that_withholds_nothing_evaluates_nothing():
    with pytest.raises(UserError, match="tacit train trains on everything"):
        tacit.run("tally", data="demo", protocol="everything")


def test_a_user_who_has_everything_is_for_closed_forms_alone():
    rows = [(u, i) for u in "abc" for i in "xyzw"[: 4 if u == "a" else 3]]
    data = tacit.Data.of({"user": [u for u, _ in rows], "item": [i for _, i in rows]})
    with pytest.raises(UserError, match="1 users of data have every item, so that fedmf has no negative to draw"):
        tacit.train("fedmf", data, rounds=2, threads=1)
    model = tacit.train("popularity", data, threads=1)
    assert model.recommend("a") == []
    assert [line.item for line in model.recommend("b")] == ["w"]


def test_where_nobody_can_be_validated_the_defaults_are_taken_and_said():
    data = tacit.Data.of({"user": ["a", "a", "b", "b"], "item": ["x", "y", "y", "z"]})
    model = tacit.train("ease", data, threads=1)
    assert "nothing could be validated" in model.run.chosen
    assert len(model.method.ridge) == 1
    assert [line.item for line in model.recommend("a")] == ["z"]


def test_a_model_whose_data_are_damaged_says_so(tally, tmp_path):
    path = tally.save(tmp_path / "model")
    (path / "data.npz").write_bytes(b"junk")
    with pytest.raises(UserError, match=r"data\.npz cannot be read"):
        tacit.load(path)


def test_a_model_takes_in_new_interactions(tally, tmp_path):
    from tacit.runs import life

    path = tally.save(tmp_path / "model")
    (tmp_path / "new.csv").write_text("user,item\nfresh,3\nfresh,4\n1,5\n")
    done = life.update(reopen(path), tmp_path / "new.csv")
    after = tacit.load(path)
    assert done.new_users == 1
    assert set(after.owned("fresh")) == {"3", "4"}
    assert not {line.item for line in after.recommend("fresh", 300)} & {"3", "4"}
    assert "5" in after.owned("1")
