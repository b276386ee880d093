"""A search: what it draws from, that it never sees the test, and that it goes on after a kill."""

import copy
import json
import os

import numpy as np
import polars as pl
import pytest
from optuna.trial import TrialState

import tacit
from tacit.config import config
from tacit.core.settings import settings_of
from tacit.errors import UserError
from tacit.methods import PLUGS, find, known
from tacit.runs import search_journal as journal
from tacit.runs.assembly import federation_of, method_of
from tacit.runs.folder import RunFolder
from tacit.runs.run import resume
from tacit.runs.search import Budget, opened, search
from tacit.runs.search_final import RESULT, figures, lost, outdated, run_finals
from tacit.runs.search_report import importance, save, summary
from tacit.runs.search_space import Dimension, drawn, parse_ranges, points, space_of
from tacit.runs.search_trials import work

QUICK = {"data": "demo", "rounds": 6, "threads": 1}
METHODS = [*known(), *(f"{plug}+fedmf" for plug in PLUGS.known())]


class Middle:
    """Draws the middle of everything."""

    def suggest_float(self, name, low, high, *, log=False):
        return (low * high) ** 0.5 if log else (low + high) / 2

    def suggest_int(self, name, low, high, *, log=False):
        return (low + high) // 2

    def suggest_categorical(self, name, choices):
        return choices[-1]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_from_its_ranges(name):
    space = space_of(name, {}, {})
    own = {key: one.default for key, one in settings_of(find(name)).items()}
    assert all(one.contains_default for one in space), [str(one) for one in space]
    settings = drawn(space, Middle(), {}, own)
    method = method_of(config(method=name, settings=settings, data="demo"))
    assert all(getattr(method, key) == value for key, value in settings.items())


@pytest.mark.parametrize("name", [name for name in METHODS if find(name).starts])
def test_every_start_lies_in_its_own_ranges(name):
    space, own = space_of(name, {}, {}), {key: one.default for key, one in settings_of(find(name)).items()}

    class There(Middle):
        def __init__(self, point):
            self.point = point

        def suggest_float(self, name, low, high, *, log=False):
            assert low <= self.point[name] <= high
            return self.point[name]

        def suggest_int(self, name, low, high, *, log=False):
            return self.suggest_float(name, low, high)

        def suggest_categorical(self, name, choices):
            assert self.point[name] in choices
            return self.point[name]

    found = [drawn(space, There(point), {}, own) for point in points(space)]
    assert found[0] == {}
    for start, settings in zip(find(name).starts, found[1:], strict=True):
        assert settings == {key: value for key, value in start.items() if value != own[key]}
        method_of(config(method=name, settings=settings, data="demo"))


def test_a_search_tries_every_start_and_looks_around_it(tmp_path):
    one = search("pfedrec", trials=6, out=tmp_path, **QUICK | {"rounds": 1})[0]
    (start,) = find("pfedrec").starts
    assert [t.settings for t in one.trials[:2]] == [{}, dict(start)]
    from_it = [t.settings.get("weighting") == "size" for t in one.trials]  # nothing else asks for it
    assert from_it == [False, True] * 3
    around = [t.settings for t in one.trials[3::2]]
    assert all(100 <= settings["table_lr"] <= 90_000 for settings in around)
    assert opened(one.folder).space == one.space
    fixed = search("pfedrec", trials=2, out=tmp_path / "fixed", settings={"lr": 0.5}, **QUICK | {"rounds": 1})[0]
    assert "lr" not in fixed.trials[1].settings


def test_what_depends_on_another_setting_is_drawn_only_with_it():
    own = {key: one.default for key, one in settings_of(find("tally")).items()}
    space = space_of("tally", {"weights": "ease"}, {})
    assert "gfcf_rank" not in drawn(space, Middle(), {"weights": "ease"}, own)
    assert drawn(space_of("tally", {}, {}), Middle(), {}, own)["weights"] == "gfcf"
    assert "gfcf_rank" in drawn(space_of("tally", {}, {}), Middle(), {}, own)


def test_a_setting_that_can_be_off_is_off_half_of_the_time():
    one = Dimension("decay", 0.0, (), 1e-5, 1e-1, log=True, zero=True)
    assert one.contains_default
    assert one.at_default == {"decay is on": False}

    class Off(Middle):
        def suggest_categorical(self, name, choices):
            return choices[0]

    assert one.draw(Off()) == 0
    assert one.draw(Middle()) == 0.001


@pytest.mark.parametrize(
    ("range_", "parts"),
    [
        ("lr=1:0.1", ["lr=1:0.1", "low end must be below"]),
        ("lr=0:1:log", ["above 0"]),
        ("lr=0.1:1:logg", ["'logg' is no scale"]),
        ("lr=a:b", ["it must be a number"]),
        ("dim=0:8", ["at least 1"]),
        ("dim=8", ["one value is no range", "--set dim=8"]),
        ("optimizer=adam:sgd", ["write its values"]),
        ("optimizer=adam,adagrad", ["optimizer=adam,adagrad"]),
        ("dmi=1:8", ["unknown setting of fedmf 'dmi'", "did you mean 'dim'?"]),
    ],
)
def test_a_wrong_range_is_one_sentence(range_, parts):
    with pytest.raises(UserError) as caught:
        space_of("fedmf", {}, parse_ranges([range_]))
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_ranges_that_were_given_replace_those_declared():
    space = {one.name: one for one in space_of("fedncf", {"dim": 8}, {"layers": "8/16,8", "batch": "64,256"})}
    assert "dim" not in space
    assert space["layers"].values == ((8,), (16, 8))
    assert space["batch"].values == (64, 256)
    with pytest.raises(UserError, match="both fixed"):
        space_of("fedmf", {"dim": 8}, {"dim": "8:16"})


def shop(last):
    """Ten choices of each of sixty users, of which `last` is the last one."""
    draw = np.random.default_rng(0)
    rows = []
    for user in range(60):
        items = draw.permutation(40)[:9] + 40 * (user % 2)
        rows += [(user, int(item), time) for time, item in enumerate(items)]
        rows.append((user, last(user), 9))
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def test_no_trial_reads_the_test_items(tmp_path):
    """Other test items, of which each item has as many, change nothing; nothing of a trial knows a test figure."""
    one = search("fedmf", shop(lambda u: 80 + u), 5, out=tmp_path / "one", rounds=4, threads=1)[0]
    other = search("fedmf", shop(lambda u: 80 + (u + 7) % 60), 5, out=tmp_path / "other", rounds=4, threads=1)[0]
    with pytest.raises(UserError, match="other data"):
        search("fedmf", shop(lambda u: 80 + (u + 7) % 60), 5, out=tmp_path / "one", rounds=4, threads=1)
    plain = [(t.state, t.settings, t.value) for t in one.trials]
    assert plain == [(t.state, t.settings, t.value) for t in other.trials]
    assert len({value for *_, value in plain}) > 1
    for path in one.folder.glob("trial-*"):
        folder = RunFolder.open(path)
        assert not (path / "users.npz").exists()
        if folder.summary is not None:
            assert folder.summary["test"] == {}
            assert folder.summary["groups"] == {}
            assert not folder.summary["test_sampled99"]
    run_finals(one, [0])
    run_finals(other, [0])
    figures = [json.loads(next(s.folder.glob("final-*/summary.json")).read_text())["test"] for s in (one, other)]
    assert figures[0]
    assert figures[0] != figures[1]


@pytest.mark.parametrize("protocol", ["strict", "paper", "symmetric", "ratio"])
def test_the_split_of_a_trial_has_no_test_items(protocol):
    asked = config(method="fedmf", data="demo", protocol=protocol)
    whole = federation_of(asked, method_of(asked), None).split
    blind = federation_of(asked.model_copy(update={"tested": False}), method_of(asked), None).split
    assert len(whole.test.values)
    assert not len(blind.test.values)
    assert "test" not in blind.negatives
    assert blind.evaluates
    assert (blind.valid.values == whole.valid.values).all()


def test_the_first_trial_is_the_default_and_a_second_call_goes_on(tmp_path):
    one = search("fedmf", trials=3, out=tmp_path, **QUICK)[0]
    assert one.trials[0].settings == {}
    before = one.trials
    assert [t.state for t in before] == ["finished"] * 3
    again = search("fedmf", trials=5, out=tmp_path, **QUICK)[0]
    assert again.trials[:3] == before
    assert len(again.trials) == 5
    whole = search("fedmf", trials=5, out=tmp_path / "whole", **QUICK)[0]
    assert [(t.settings, t.value) for t in whole.trials] == [(t.settings, t.value) for t in again.trials]
    with pytest.raises(UserError, match="other ranges"):
        search("fedmf", trials=5, out=tmp_path, ranges={"lr": "0.1:1"}, **QUICK)
    with pytest.raises(UserError, match="other options"):
        search("fedmf", trials=5, out=tmp_path, **QUICK | {"rounds": 7})


def test_a_trial_that_was_left_is_resumed_and_counted_once(tmp_path):
    def leave(name):
        def watch(progress, plan):
            if name.endswith("trial 1") and progress.round == 3:
                raise KeyboardInterrupt

        return watch

    with pytest.raises(KeyboardInterrupt):
        search("fedmf", trials=3, out=tmp_path, begin=leave, **QUICK)
    one = opened(tmp_path / "demo" / "fedmf", 1)
    assert [t.state for t in one.trials] == ["finished", "running"]
    rounds = []
    work(one, Budget(3), lambda name: lambda progress, plan: rounds.append((name[-1], progress.round)))
    assert rounds[0] == ("1", 4)
    assert [t.state for t in one.trials] == ["finished"] * 3
    whole = search("fedmf", trials=3, out=tmp_path / "whole", **QUICK)[0]
    assert [(t.settings, t.value) for t in whole.trials] == [(t.settings, t.value) for t in one.trials]


def test_half_a_line_of_a_killed_writer_is_cut_off(tmp_path):
    one = search("fedmf", trials=2, out=tmp_path, **QUICK)[0]
    before = one.trials
    path = one.folder / journal.JOURNAL
    path.write_bytes(path.read_bytes() + b'{"op_code": 4, "worker_')
    assert one.trials == before
    assert len(search("fedmf", trials=3, out=tmp_path, **QUICK)[0].trials) == 3


def test_a_full_disk_costs_no_trial(tmp_path):
    def full(name):
        def watch(progress, plan):
            if name.endswith("trial 1") and progress.round == 3:
                raise OSError(28, "No space left on device")

        return watch

    with pytest.raises(UserError, match="No space left on device; fix that and try again"):
        search("fedmf", trials=3, out=tmp_path, begin=full, **QUICK)
    assert [t.state for t in opened(tmp_path / "demo" / "fedmf", 1).trials] == ["finished", "running"]
    one = search("fedmf", trials=3, out=tmp_path, **QUICK)[0]
    whole = search("fedmf", trials=3, out=tmp_path / "whole", **QUICK)[0]
    assert [(t.state, t.value) for t in one.trials] == [(t.state, t.value) for t in whole.trials]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("journal.log", "what\n"),
        ("journal.log", '{"op_code": 4}\n'),
        ("search.json", "[]"),
        ("search.json", '{"config": {}, "space": null, "seeds": [0]}'),
        ("search.json", '{"config": {}, "space": [{"nmae": "lr"}], "seeds": [0]}'),
    ],
)
def test_a_damaged_search_is_one_sentence(tmp_path, file, text):
    one = search("popularity", trials=1, out=tmp_path, **QUICK)[0]
    path = one.folder / file
    path.write_text(text + (path.read_text() if file == "journal.log" else ""))
    with pytest.raises(UserError, match=r"is damaged.*; restore it, or remove"):
        print(opened(one.folder, 1).trials)


def test_reading_leaves_the_journal_as_it_is(tmp_path):
    one = search("popularity", trials=1, out=tmp_path, **QUICK)[0]
    before = (one.folder / journal.JOURNAL).read_bytes()
    assert one.best is not None
    assert (one.folder / journal.JOURNAL).read_bytes() == before


def test_a_trial_that_ends_while_another_worker_looks_is_not_taken_again(tmp_path):
    one = search("popularity", trials=1, out=tmp_path, **QUICK)[0]
    study = one.study()
    (ended,) = study.get_trials()
    stale = copy.copy(ended)
    stale.state = TrialState.RUNNING  # as it was a moment ago
    study.get_trials = lambda **_: [stale]
    assert journal.claimed(study, one.folder, 0, [], more=False) is None


def test_the_best_is_known_once_nobody_is_at_work(tmp_path):
    one = search("popularity", trials=1, out=tmp_path, **QUICK)[0]
    study = one.study()
    trial = study.ask()
    lock = journal.taken(journal.lock_of(one.folder, trial.number))
    assert journal.busy(study, one.folder)
    journal.released(lock)
    assert not journal.busy(study, one.folder), "its worker is gone"


@pytest.mark.parametrize(
    ("starts", "said"),
    [("({'lrr': 2.0},)", "lrr"), ("({'lr': 2.0})", "not a tuple of settings"), ("'lr'", "not a tuple of settings")],
)
def test_wrong_starts_are_one_sentence(tmp_path, monkeypatch, starts, said):
    name = f"mine{abs(hash(starts))}"
    (tmp_path / f"{name}.py").write_text(
        "from dataclasses import dataclass\nfrom tacit.methods.fedmf import FedMF\n"
        f"@dataclass(frozen=True)\nclass Mine(FedMF):\n    starts = {starts}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=said):
        space_of(f"{name}:Mine", {}, {})


def test_a_worker_that_says_much_holds_nothing_up(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(
        "import sys\nfrom dataclasses import dataclass\nfrom tacit.methods.references import Popularity\n"
        "@dataclass(frozen=True)\nclass Loud(Popularity):\n    def init_server(self, federation):\n"
        "        print('x' * 300_000, file=sys.stderr)\n        return super().init_server(federation)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    one = search("loud:Loud", trials=1, out=tmp_path / "out", workers=2, **QUICK)[0]
    assert [t.state for t in one.trials] == ["finished"]


def test_hopeless_trials_are_pruned_and_can_be_resumed(tmp_path):
    one = search("fedmf", trials=12, out=tmp_path, **QUICK | {"rounds": 10})[0]
    pruned = [t for t in one.trials if t.state == "pruned"]
    assert pruned
    assert max(t.value for t in pruned) < one.best.value
    assert all(5 <= t.rounds < 10 for t in pruned)
    summary = resume(one.folder / f"trial-{pruned[0].number:03d}-s0")
    assert summary.rounds == 10
    assert summary.test == {}


def test_a_range_without_the_default_has_no_default_trial(tmp_path):
    one = search("fedmf", trials=2, out=tmp_path, ranges={"lr": "2:3"}, **QUICK)[0]
    assert all(2 <= t.settings["lr"] <= 3 for t in one.trials)


def test_a_trial_out_of_time_counts_with_the_rounds_it_had(tmp_path):
    one = search("fedmf", trials=2, trial_seconds=1e-6, out=tmp_path, **QUICK)[0]
    default, other = one.trials
    assert (default.state, other.state) == ("out of time", "out of time")
    assert (default.rounds, other.rounds) == (1, 1)
    assert one.run_of(default).rounds == QUICK["rounds"]  # a method's own settings stand with all of their rounds
    assert one.run_of(other).rounds == 1
    assert one.run_of(other).tested


def test_a_trial_has_its_first_validation_however_short_its_time(tmp_path):
    one = search("fedmf", trials=2, trial_seconds=1e-6, evaluate_every=3, out=tmp_path, **QUICK)[0]
    assert [(t.state, t.rounds, t.best_round) for t in one.trials] == [("out of time", 3, 3)] * 2
    assert all(t.value is not None for t in one.trials)


def test_a_budget_of_cpu_seconds_ends_a_search(tmp_path):
    one = search("fedmf", trials=50, cpu_seconds=1e-6, out=tmp_path, **QUICK)[0]
    assert len(one.trials) == 1


def test_a_search_whose_trials_all_fail_says_why(tmp_path):
    with pytest.raises(UserError, match=r"fedmf on demo: every trial failed: .*diverged"):
        search("fedmf", trials=9, out=tmp_path, settings={"lr": 1e30, "table_lr": 1e30}, **QUICK)


def test_a_method_without_settings_has_one_trial(tmp_path):
    one = search("popularity", trials=7, data="demo", out=tmp_path)[0]
    assert len(one.trials) == 1
    assert importance(one) == {}


def test_several_seeds_are_one_trial_by_their_mean(tmp_path):
    one = search("fedmf", trials=1, seeds=(0, 1), out=tmp_path, **QUICK)[0]
    values = [RunFolder.open(one.folder / f"trial-000-s{s}").summary["valid"]["NDCG@10"] for s in (0, 1)]
    assert one.best.value == pytest.approx(sum(values) / 2)


def test_importance_finds_the_setting_that_decides(tmp_path):
    fixed = {"scored_with": "server", "init": 0.1, "negatives": 4, "table_lr": 1000, "epochs": 1}
    ranges = {"dim": "15:17", "lr": "1e-6:10:log"}
    one = search("fedmf", trials=9, out=tmp_path, settings=fixed, ranges=ranges, **QUICK)[0]
    shares = importance(one)
    assert list(shares) == ["lr", "dim"]
    assert sum(shares.values()) == pytest.approx(1)


def test_finals_and_the_file_for_an_experiment(tmp_path):
    one = search("fedmf", trials=3, out=tmp_path, **QUICK)[0]
    run_finals(one, [0, 1])
    rows = json.loads((one.folder / RESULT).read_text())["rows"]
    assert rows["default"] == 0
    assert rows["best"] == one.best.number
    for number in set(rows.values()):
        for seed in (0, 1):
            summary = RunFolder.open(one.folder / f"final-{number:03d}-s{seed}").summary
            assert summary["test"]["NDCG@10"] > 0
    best = RunFolder.open(one.folder / f"final-{one.best.number:03d}-s0").summary
    assert best["valid"]["NDCG@10"] == one.best.value
    save([one], tmp_path / "rows.toml")
    from tacit.runs import experiments

    plans = experiments.planned(experiments.read(tmp_path / "rows.toml"))
    assert [p.label for p in plans] == ["fedmf (default)", "fedmf (best of 3)"]
    assert plans[1].asked.settings == one.best.settings
    (tmp_path / "mine.toml").write_text("title = 'mine'")
    with pytest.raises(UserError, match="not a file that tacit search wrote"):
        save([one], tmp_path / "mine.toml")


def test_the_best_alone_may_be_run(tmp_path):
    one = search("fedmf", trials=3, out=tmp_path, ranges={"init": "0.1:1", "table_lr": "100:9000"}, **QUICK)[0]
    assert (one.trials[0].settings, one.best.number > 0) == ({}, True)
    run_finals(one, [0], which="best")
    assert [path.name for path in one.folder.glob("final-*-s*")] == [f"final-{one.best.number:03d}-s0"]
    assert set(figures(one)) == {"best"}
    run_finals(one, [0, 1])
    assert {kind: found["seeds"] for kind, found in figures(one).items()} == {"default": 2, "best": 2}


def test_a_final_run_that_was_killed_at_its_start_is_begun_again(tmp_path):
    one = search("fedmf", trials=1, out=tmp_path, **QUICK)[0]
    for seed in (0, 7):
        (one.folder / f"final-000-s{seed}").mkdir()
        for name in (".lock", "run.json.new"):
            (one.folder / f"final-000-s{seed}" / name).touch()
    run_finals(one, [0])
    assert figures(one)["best"]["seeds"] == 1


def test_test_figures_of_a_former_best_are_not_those_of_the_best(tmp_path):
    some = {"out": tmp_path, "ranges": {"init": "0.1:1", "table_lr": "100:9000"}, **QUICK}
    one = search("fedmf", trials=1, **some)[0]
    run_finals(one, [0])
    assert (set(figures(one)), outdated(one)) == ({"default", "best"}, False)
    one = search("fedmf", trials=3, **some)[0]
    assert one.best.number > 0
    assert (set(figures(one)), outdated(one)) == ({"default"}, True)
    run_finals(one, [0])
    assert (set(figures(one)), outdated(one)) == ({"default", "best"}, False)
    assert summary(one)["test"] == figures(one)


def test_a_final_run_that_diverges_is_written_down_and_the_others_count(tmp_path):
    one = search("fedmf", trials=1, out=tmp_path, **QUICK)[0]

    def begin(name):
        def watch(progress, plan):
            if name.endswith("seed 1"):
                raise UserError("the training diverged")

        return watch

    run_finals(one, [0, 1], begin)
    assert lost(one) == {"default and best, seed 1": "the training diverged"}
    assert figures(one)["best"]["seeds"] == 1
    run_finals(one, [0, 1])
    assert (lost(one), figures(one)["best"]["seeds"]) == ({}, 2)


def test_it_is_there_from_python():
    assert tacit.search is search


def test_a_trial_killed_while_its_folder_was_made_starts_over(tmp_path):
    def leave(name):
        def watch(progress, plan):
            raise KeyboardInterrupt

        return watch

    with pytest.raises(KeyboardInterrupt):
        search("fedmf", trials=1, out=tmp_path, begin=leave, **QUICK)
    path = tmp_path / "demo" / "fedmf" / "trial-000-s0"
    (path / "run.json").rename(path / "run.json.new")
    assert [t.state for t in search("fedmf", trials=1, out=tmp_path, **QUICK)[0].trials] == ["finished"]


def test_settings_are_not_run_twice(tmp_path):
    """Three values of one setting: three runs at most, and those that were drawn again cost nothing."""
    one = search("ease", data="demo", trials=20, out=tmp_path)[0]
    ran = [t.settings for t in one.trials if t.state != "repeated"]
    assert len(ran) == 3
    assert len(one.trials) < 20
    assert all(ran.count(settings) == 1 for settings in ran)
    assert all(t.cpu_seconds == 0 for t in one.trials if t.state == "repeated")
    assert len(list(one.folder.glob("trial-*"))) == len(ran)
