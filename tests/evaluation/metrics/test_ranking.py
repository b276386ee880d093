import math

import ir_measures
import pytest
import torch
from ir_measures import RR, P, R, Success, nDCG

from tacit.errors import UserError
from tacit.evaluation.metrics import KS, Rankings, UserMetric, by_hits
from tacit.evaluation.metrics.ranking import full_hits, sampled_hits, top

THEIRS = {"HR": Success, "NDCG": nDCG, "MRR": RR, "Recall": R, "Precision": P}


def cells(mask):
    """Where a mask (n, M) is True, as rows and columns."""
    return mask.nonzero(as_tuple=True)


def random_case(users, items, targets, seed, spread=False):
    """Scores without ties, targets (n, T) padded with -1, and excluded items."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.stack([torch.randperm(items, generator=draw) for _ in range(users)]).float()
    wanted = torch.full((users, targets), -1)
    excluded = torch.zeros(users, items, dtype=torch.bool)
    for u in range(users):
        order = torch.randperm(items, generator=draw)
        n = int(torch.randint(1, targets + 1, (), generator=draw)) if spread else targets
        wanted[u, :n] = order[:n]
        excluded[u, order[n : n + 15]] = True
    return scores, wanted, excluded


def by_ir_measures(scores, targets, candidates):
    """The metrics of each user as ir-measures computes them, name@K -> list."""
    qrels, run = {}, {}
    for u in range(len(scores)):
        qrels[f"u{u}"] = {f"i{i}": 1 for i in targets[u].tolist() if i >= 0}
        run[f"u{u}"] = {f"i{i}": float(scores[u, i]) for i in candidates[u]}
    measures = {f"{name}@{k}": measure @ k for name, measure in THEIRS.items() for k in KS}
    out = {name: [math.nan] * len(scores) for name in measures}
    names = {str(measure): name for name, measure in measures.items()}
    for line in ir_measures.iter_calc(list(measures.values()), qrels, run):
        out[names[str(line.measure)]][int(line.query_id[1:])] = line.value
    return out


def assert_same(hits, total, theirs):
    found = Rankings(hits, total, torch.zeros(len(hits), 0), torch.zeros(1), 1)
    ours = {str(metric): metric for metric in by_hits() if isinstance(metric, UserMetric)}
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        assert ours[name].each(found).tolist() == pytest.approx(values, abs=1e-9), name
        assert ours[name](found) == pytest.approx(sum(values) / len(values), abs=1e-9), name


@pytest.mark.parametrize(("targets", "spread"), [(1, False), (2, False), (7, True), (30, True)])
def test_full_ranking_agrees_with_ir_measures(targets, spread):
    scores, wanted, excluded = random_case(users=40, items=60, targets=targets, seed=targets, spread=spread)
    hits = full_hits(scores, wanted, cells(excluded), depth=20)
    allowed = [(~excluded[u]).nonzero().flatten().tolist() for u in range(40)]
    assert_same(hits, (wanted >= 0).sum(1), by_ir_measures(scores, wanted, allowed))


def test_sampled_ranking_agrees_with_ir_measures():
    scores, wanted, _ = random_case(users=60, items=150, targets=1, seed=3)
    draw = torch.Generator().manual_seed(0)
    negatives = torch.full((60, 99), -1)
    for u in range(60):
        others = torch.tensor([i for i in torch.randperm(150, generator=draw).tolist() if i != wanted[u, 0]])
        n = 99 if u % 3 else 12
        negatives[u, :n] = others[:n]
    hits = sampled_hits(scores, wanted[:, 0], negatives, depth=20)
    candidates = [[i for i in negatives[u].tolist() if i >= 0] + wanted[u].tolist() for u in range(60)]
    assert_same(hits, torch.ones(60, dtype=torch.long), by_ir_measures(scores, wanted, candidates))


def test_one_target_ranks_the_same_on_both_paths():
    scores, wanted, excluded = random_case(users=30, items=50, targets=1, seed=9)
    doubled = torch.cat([wanted, torch.full_like(wanted, -1)], 1)  # takes the path of many targets
    assert torch.equal(full_hits(scores, wanted, cells(excluded), 20), full_hits(scores, doubled, cells(excluded), 20))


@pytest.mark.parametrize("targets", [1, 2])
def test_ties_count_against_the_target(targets):
    scores = torch.zeros(1, 30)
    wanted = torch.tensor([[4, 9][:targets]])
    nothing = torch.zeros(1, 30, dtype=torch.bool)
    assert not full_hits(scores, wanted, cells(nothing), 20).any()  # 28 or 29 equals stand before
    some = nothing.clone()
    some[0, 10:] = True  # ten items are left: 0 to 9
    places = full_hits(scores, wanted, cells(some), 20)[0].nonzero().flatten().tolist()
    assert places == ([9] if targets == 1 else [8, 9])


@pytest.mark.parametrize("targets", [1, 2])
def test_a_tie_moves_the_target_behind_its_equals_only(targets):
    scores = torch.tensor([[0.5, 0.9, 0.5, 0.5000001, 0.4999999, 0.1]])
    wanted = torch.tensor([[0, 5][:targets]])
    nothing = torch.zeros(1, 6, dtype=torch.bool)
    places = full_hits(scores, wanted, cells(nothing), 20)[0].nonzero().flatten().tolist()
    assert places == ([3] if targets == 1 else [3, 5])  # behind 1, 3 and its equal 2, before 4


def test_ties_count_against_the_target_when_sampled():
    scores = torch.tensor([[0.5, 0.5, 0.5, 0.4, 0.9]])
    hits = sampled_hits(scores, torch.tensor([0]), torch.tensor([[1, 3, -1]]), 5)
    assert hits[0].nonzero().flatten().tolist() == [1]


@pytest.mark.parametrize("targets", [1, 3])
def test_excluded_items_never_rank(targets):
    scores, wanted, excluded = random_case(users=20, items=40, targets=targets, seed=5)
    scores[excluded] = 1e9
    high = full_hits(scores, wanted, cells(excluded), 20)
    scores[excluded] = -1e9
    assert torch.equal(high, full_hits(scores, wanted, cells(excluded), 20))


@pytest.mark.parametrize("targets", [1, 2])
def test_fewer_items_than_places(targets):
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    wanted = torch.tensor([[1, 2][:targets]])
    hits = full_hits(scores, wanted, cells(torch.zeros(1, 3, dtype=torch.bool)), 20)
    assert hits.shape == (1, 20)
    assert hits[0].nonzero().flatten().tolist() == [1, 2][:targets]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("targets", [1, 2])
def test_scores_are_left_as_they_were(dtype, targets):
    scores, wanted, excluded = random_case(users=5, items=30, targets=targets, seed=1)
    scores = scores.to(dtype)
    before = scores.clone()
    full_hits(scores, wanted, cells(excluded), 20)
    sampled_hits(scores, wanted[:, 0], wanted, 20)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("place", [0, 7])
def test_a_score_that_is_not_a_number_is_an_error(place):
    scores = torch.zeros(2, 10)
    scores[1, place] = math.nan
    wanted = torch.tensor([[1], [2]])
    with pytest.raises(UserError, match=r"not a number.*smaller lr"):
        full_hits(scores, wanted, cells(torch.zeros(2, 10, dtype=torch.bool)), 5)
    with pytest.raises(UserError, match=r"not a number.*smaller lr"):
        sampled_hits(scores, wanted[:, 0], torch.tensor([[3, 4], [3, 4]]), 5)


def test_logits_beyond_the_saturation_of_sigmoids_still_have_an_order():
    scores = torch.tensor([[30.0, 40.0, 50.0]])  # float32 sigmoids of all three are 1
    hits = full_hits(scores, torch.tensor([[2]]), cells(torch.zeros(1, 3, dtype=torch.bool)), 5)
    assert hits[0, 0]


def test_a_list_goes_from_the_best_to_the_worst_without_what_is_excluded():
    scores, _, excluded = random_case(users=20, items=40, targets=1, seed=5)
    for user, items in enumerate(top(scores, cells(excluded), 10).tolist()):
        allowed = [i for i in range(40) if not excluded[user, i]]
        assert items == sorted(allowed, key=lambda i: -float(scores[user, i]))[:10]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_stand_in_a_list_by_their_number(dtype):
    draw = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 4, (50, 200), generator=draw).to(dtype)  # ties within lists and at their ends
    excluded = torch.rand(50, 200, generator=draw) < 0.3
    for user, items in enumerate(top(scores, cells(excluded), 20).tolist()):
        allowed = [i for i in range(200) if not excluded[user, i]]
        assert items == sorted(allowed, key=lambda i: (-float(scores[user, i]), i))[:20]


def test_a_list_ends_where_nothing_is_left():
    scores = torch.tensor([[1.0, 2.0, 3.0, -torch.inf]])
    excluded = torch.tensor([[False, True, False, False]])
    assert top(scores, cells(excluded), 6).tolist() == [[2, 0, -1, -1, -1, -1]]
