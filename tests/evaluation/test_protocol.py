import numpy as np
import pytest
import torch

from tacit.data import sources
from tacit.data.interactions import from_columns
from tacit.data.protocols import PROTOCOLS
from tacit.data.ragged import union
from tacit.data.splits import split
from tacit.errors import UserError
from tacit.evaluation import protocol as protocol_module
from tacit.evaluation.metrics import by_hits
from tacit.evaluation.protocol import Evaluator, by_activity, gap, validated
from toys import few_users, random_data

KS = (5, 10, 20)


def scored(made, seed=0):
    """One block of random scores for all users."""
    draw = torch.Generator().manual_seed(seed)
    return torch.arange(made.n_users), torch.rand(made.n_users, made.n_items, generator=draw)


def ranked(made, scores, user, phase, sampled):
    """The user's candidates from the best to the worst, in plain Python."""
    wanted = set(made.held_out(phase)[user].tolist())
    if sampled:
        candidates = wanted | {i for i in made.negatives[phase][np.array([user])][0].tolist() if i >= 0}
    else:
        seen = set(made.train[user].tolist()) | (set(made.valid[user].tolist()) if phase == "test" else set())
        candidates = set(range(made.n_items)) - seen
    return sorted(candidates, key=lambda i: -float(scores[user, i])), wanted


def plain_mrr(made, scores, phase, sampled, k=20):
    found = []
    for user in range(made.n_users):
        order, wanted = ranked(made, scores, user, phase, sampled)
        if wanted:
            found.append(max([1 / place for place, item in enumerate(order[:k], 1) if item in wanted], default=0.0))
    return float(np.mean(found)), len(found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("phase", ["valid", "test"])
def test_candidates_are_those_of_the_protocol(protocol, phase):
    made = split(random_data(shortest=1), protocol)
    users, scores = scored(made)
    for user in range(made.n_users):  # everything the user ever touched is near the top, in some order
        for part in (made.train, made.valid, made.test):
            scores[user, part[user]] += 0.95
    result = Evaluator(made)([(users, scores)], phase)
    expected, count = plain_mrr(made, scores, phase, sampled=protocol in ("paper", "symmetric"))
    assert result.main["MRR@20"] == pytest.approx(expected)
    assert result.users == count == made.n_users - made.too_short
    if protocol == "strict":
        assert result.sampled99["MRR@20"] == pytest.approx(plain_mrr(made, scores, phase, sampled=True)[0])
    else:
        assert result.sampled99 is None


def test_a_perfect_scorer_is_perfect_and_chance_is_chance():
    made = split(few_users(200), "strict")
    users, scores = scored(made)
    chance = Evaluator(made)([(users, scores)], "test")
    assert chance.sampled99["HR@10"] == pytest.approx(0.1, abs=0.05)
    for user in range(200):
        scores[user, made.test[user]] = 2.0
    perfect = Evaluator(made)([(users, scores)], "test")
    for metrics in (perfect.main, perfect.sampled99):
        assert metrics["HR@5"] == metrics["NDCG@10"] == metrics["MRR@20"] == 1.0
    assert Evaluator(made)([(users, scores)], "valid").main["HR@5"] < 0.2  # the test item does not help validation


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_blocks_in_any_order_give_the_same(protocol):
    made = split(few_users(30), protocol)
    users, scores = scored(made)
    groups = by_activity(made)
    whole = Evaluator(made)([(users, scores)], "test", groups)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    parts = [(users[part], scores[part]) for part in torch.split(order, 7)]
    other = Evaluator(made)(parts, "test", groups)
    assert whole.users == other.users
    for a, b in [
        (whole.main, other.main),
        (whole.sampled99, other.sampled99),
        *zip(whole.groups.values(), other.groups.values(), strict=True),
    ]:
        assert a == (None if b is None else pytest.approx(b))


def test_results_by_group_are_those_of_its_users_alone():
    made = split(few_users(60), "strict")
    users, scores = scored(made)
    groups = by_activity(made)
    result = Evaluator(made)([(users, scores)], "test", groups)
    assert list(result.groups) == list(groups)
    for name, inside in groups.items():
        alone = Evaluator(made, by_hits())([(users[inside], scores[inside])], "test")
        assert result.groups[name] == pytest.approx(alone.main)
    shares = [int(inside.sum()) / 60 for inside in groups.values()]
    total = sum(share * metrics["HR@10"] for share, metrics in zip(shares, result.groups.values(), strict=True))
    assert total == pytest.approx(result.main["HR@10"])


def test_the_gap_is_between_the_best_and_the_worst_group():
    assert gap([{"HR@5": 0.25, "F1@5": 0.5}, {"HR@5": 0.75, "F1@5": 0.5}, {"HR@5": 0.5, "F1@5": 0.25}]) == {
        "HR@5": 0.5,
        "F1@5": 0.25,
    }
    assert gap([]) == {}


def assert_partition(made, groups):
    evaluated = torch.from_numpy(made.test.lengths > 0)
    together = torch.stack(list(groups.values()))
    assert torch.equal(together.sum(0), evaluated.long())
    assert together.any(1).all()


def test_groups_go_from_the_least_to_the_most_active():
    made = split(random_data(users=31), "strict")
    groups = by_activity(made)
    assert len(groups) == 3
    assert_partition(made, groups)
    lengths = [made.train.lengths[inside.numpy()] for inside in groups.values()]
    assert lengths[0].max() <= lengths[1].min() <= lengths[1].max() <= lengths[2].min()
    for name, inside in zip(groups, lengths, strict=True):
        assert name == f"{inside.min()}–{inside.max()} interactions"


def test_users_of_one_length_all_stay_in_the_groups():
    user = np.repeat(np.arange(20), 5)
    made = split(from_columns("x", user, np.arange(100) * 7 % 30, np.arange(100.0)), "strict")
    assert_partition(made, by_activity(made))


def test_users_who_are_never_evaluated_are_in_no_group():
    lengths = [1] * 10 + [2] * 10 + [8] * 10
    user = np.repeat(np.arange(30), lengths)
    item = np.concatenate([np.arange(n) + u for u, n in enumerate(lengths)])
    made = split(from_columns("x", user, item, np.arange(len(user)).astype(float)), "strict")
    groups = by_activity(made)
    assert_partition(made, groups)
    users, scores = scored(made)
    for metrics in Evaluator(made)([(users, scores)], "test", groups).groups.values():
        assert metrics["Recall@20"] > 0


@pytest.mark.usefixtures("raw_data")
def test_popularity_is_worth_little_where_the_last_rows_of_a_file_are_withheld():
    """.0175 and .0284 on MovieLens-1M, counted over all that is not test; .114 and .191 on a random fifth."""
    made = split(sources.load("ml-1m"), "fileorder")
    count = torch.from_numpy(np.bincount(union(made.train, made.valid).values, minlength=made.n_items)).float()
    users = torch.arange(made.n_users).split(512)
    found = Evaluator(made)(((u, count.expand(len(u), -1)) for u in users), "test").main
    assert found["Recall@20"] == pytest.approx(0.0175, abs=5e-5)
    assert 0.0283 < found["NDCG@20"] < 0.02845  # by which of two equally popular items comes first


def test_a_score_that_is_not_a_number_is_an_error():
    made = split(few_users(10), "strict")
    users, scores = scored(made)
    scores[3, 5] = float("nan")
    with pytest.raises(UserError, match="not a number"):
        Evaluator(made)([(users, scores)], "valid")


def test_validation_looks_at_the_same_users_for_everyone(monkeypatch):
    some = validated(1000, 3, 40)
    assert len(some) == len(set(some.tolist())) == 40
    assert some.tolist() == sorted(some.tolist()) == validated(1000, 3, 40).tolist()
    assert some.tolist() != validated(1000, 4, 40).tolist()
    assert set(some.tolist()) < set(validated(1000, 3, 60).tolist())
    assert validated(1000, 3, None) is None
    assert validated(10**6, 3, 0) is None
    monkeypatch.setattr(protocol_module, "MANY", 900)
    monkeypatch.setattr(protocol_module, "SOME", 30)
    assert validated(1000, 3, None).tolist() == validated(1000, 3, 30).tolist()
    with pytest.raises(UserError, match="--evaluate-users 1001 is more than the 1,000 users"):
        validated(1000, 3, 1001)


def test_candidates_are_drawn_for_those_who_are_evaluated_alone():
    made = split(few_users(30), "strict")
    users, scores = scored(made)
    Evaluator(made)([(users[4:9], scores[4:9])], "test")
    assert made.negatives["test"]._done.nonzero()[0].tolist() == [4, 5, 6, 7, 8]
    assert Evaluator(made)([(users, scores)], "valid", sampled_too=False).sampled99 is None
    assert not made.negatives["valid"]._done.any()
