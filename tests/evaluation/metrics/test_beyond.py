import math

import numpy as np
import pytest
import torch

from tacit.data.protocols import PROTOCOLS
from tacit.data.splits import split
from tacit.evaluation.metrics import KS, Rankings, all_of, measured
from tacit.evaluation.metrics.beyond import Coverage, Gini, Novelty, Popularity
from tacit.evaluation.protocol import Evaluator
from toys import random_data


def found(lists, train, users):
    lists, n = torch.tensor(lists), len(lists)
    hits = torch.zeros(n, lists.shape[1], dtype=torch.bool)
    return Rankings(hits, torch.ones(n, dtype=torch.long), lists, torch.tensor(train), users)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (Coverage(2), 3 / 4),  # 0, 1 and 2 of four items
        (Gini(2), (-3 * 0 - 1 * 1 + 1 * 1 + 3 * 2) / (4 * 4)),  # shown 2, 1, 1, 0 times
        (Novelty(2), (2 * 1 + 2 + 3) / 4),  # shares 4/8, 2/8, and 1/8 for the item that nobody has
        (Popularity(2), (2 * 4 + 2 + 0) / 4),
    ],
)
def test_by_hand(metric, value):
    assert metric(found([[0, 1, 3], [2, 0, 3]], train=[4, 2, 0, 7], users=8)) == pytest.approx(value)


def test_extremes():
    even = found([[0, 1], [2, 3]], [1] * 4, 4)
    assert (Gini(2)(even), Coverage(2)(even)) == (0, 1)
    one = found([[0], [0], [0]], [1] * 100, 4)
    assert Gini(1)(one) == pytest.approx(0.99)
    nothing = found([[-1, -1]], [3] * 4, 4)
    assert [metric(2)(nothing) for metric in (Coverage, Gini, Novelty, Popularity)] == [0, 0, 0, 0]


def plainly(made, scores):
    """Every metric of the lists in plain Python."""
    lists = {}
    for user in range(made.n_users):
        if len(made.test[user]):
            seen = {*made.train[user].tolist(), *made.valid[user].tolist()}
            rest = [i for i in range(made.n_items) if i not in seen]
            lists[user] = sorted(rest, key=lambda i: (-float(scores[user, i]), i))
    having = [sum(i in made.train[u].tolist() for u in range(made.n_users)) for i in range(made.n_items)]
    people = sum(len(made.train[u]) > 0 for u in range(made.n_users))
    out = {}
    for k in KS:
        shown = [item for items in lists.values() for item in items[:k]]
        counts = [shown.count(i) for i in range(made.n_items)]
        apart = sum(abs(a - b) for a in counts for b in counts)
        out[f"Coverage@{k}"] = len(set(shown)) / made.n_items
        out[f"Gini@{k}"] = apart / (2 * made.n_items * sum(counts))  # half the mean difference over the mean
        out[f"Novelty@{k}"] = sum(-math.log2(max(having[i], 1) / people) for i in shown) / len(shown)
        out[f"Popularity@{k}"] = sum(having[i] for i in shown) / len(shown)
    return out


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_they_are_those_of_full_lists_under_every_protocol(protocol):
    made = split(random_data(shortest=1), protocol)
    draw = torch.Generator().manual_seed(3)
    scores = torch.randint(0, 30, (made.n_users, made.n_items), generator=draw).float()  # with ties
    scores += torch.from_numpy(np.bincount(made.train.values, minlength=made.n_items))
    result = Evaluator(made)([(torch.arange(made.n_users), scores)], "test")
    expected = plainly(made, scores)
    assert {name: result.main[name] for name in expected} == pytest.approx(expected)
    assert {str(metric) for metric in all_of()} == set(result.main)
    assert not set(expected) & set(result.sampled99 or {})


def test_any_blocks_in_any_order_give_exactly_the_same():
    made = split(random_data(), "strict")
    users = torch.arange(made.n_users)
    scores = torch.randint(0, 9, (made.n_users, made.n_items), generator=torch.Generator().manual_seed(3)).float()
    whole = Evaluator(made)([(users, scores)], "test")
    order = torch.randperm(made.n_users, generator=torch.Generator().manual_seed(1))
    assert Evaluator(made)([(users[part], scores[part]) for part in order.split(7)], "test") == whole


def test_validation_does_without_them():
    made = split(random_data(), "strict")
    result = Evaluator(made)([(torch.arange(made.n_users), torch.rand(made.n_users, made.n_items))], "valid")
    assert set(result.main) == {str(metric) for metric in all_of() if not metric.lists}


def test_measured_names_every_metric():
    names = measured(all_of(), found([[0] * 20], [1], 1))
    assert {name.partition("@")[0] for name in names} >= {"HR", "F1", "Coverage", "Gini", "Novelty", "Popularity"}
    assert len(names) == 30
