import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import sources
from tacit.data.interactions import from_columns
from tacit.data.protocols import PROTOCOLS, SHARES
from tacit.data.ragged import union
from tacit.data.splits import SAMPLED, split
from tacit.errors import UserError
from toys import few_users, random_data

LEAVE_ONE_OUT = ("strict", "paper", "symmetric")


def sets(ragged):
    return [set(ragged[u].tolist()) for u in range(len(ragged))]


def parts(made):
    return [made.train, made.valid, made.test]


def columns(data):
    return data.user, data.item, data.time


def permuted(data, seed):
    order = np.random.default_rng(seed).permutation(len(data))
    user, item, time = columns(data)
    return from_columns(
        data.name, data.user_ids[user][order], data.item_ids[item][order], None if time is None else time[order]
    )


@pytest.mark.parametrize("protocol", LEAVE_ONE_OUT)
def test_the_last_by_time_is_test_and_the_last_but_one_validation(protocol):
    data = random_data()
    made = split(data, protocol)
    for user in range(data.n_users):
        mine = data.user == user
        in_time = data.item[mine][np.argsort(data.time[mine])].tolist()
        assert made.train[user].tolist() == in_time[:-2]
        assert made.valid[user].tolist() == [in_time[-2]]
        assert made.test[user].tolist() == [in_time[-1]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("times", [True, False])
def test_the_parts_are_disjoint_and_make_up_all_interactions(protocol, times):
    data = random_data(times=times, ties=True, shortest=1)
    train, valid, test = (sets(part) for part in parts(split(data, protocol)))
    for user in range(data.n_users):
        assert not train[user] & valid[user]
        assert not train[user] & test[user]
        assert not valid[user] & test[user]
        rows = data.item[data.user == user][int(protocol == "fileorder" and user == data.user[0]) :]
        assert train[user] | valid[user] | test[user] == set(rows.tolist())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_users_with_fewer_than_three_are_counted_and_trained_on_only(protocol):
    lengths = [1, 2, 3, 4, 2]
    user = np.append(6, np.repeat(np.arange(7), [*lengths, 300, 300]))
    item = np.concatenate([[600], *(np.arange(n) for n in lengths), np.arange(600)])
    made = split(from_columns("x", user, item, np.arange(613.0)), protocol)
    assert made.too_short == 3
    for u in (0, 1, 4):
        assert (len(made.train[u]), len(made.valid[u]), len(made.test[u])) == (lengths[u], 0, 0)
    for u in (2, 3):
        assert (len(made.train[u]), len(made.valid[u]), len(made.test[u])) == (lengths[u] - 2, 1, 1)


@pytest.mark.parametrize("protocol", ["strict", "symmetric", "ratio"])
@pytest.mark.parametrize("times", [True, False])
def test_a_permuted_file_gives_the_same_split(protocol, times):
    data = random_data(times=times, ties=True)
    made, again = split(data, protocol, seed=3), split(permuted(data, 1), protocol, seed=3)
    for a, b in zip(parts(made), parts(again), strict=True):
        assert (a.start == b.start).all()
        assert (a.values == b.values).all()
    for phase, candidates in made.negatives.items():
        everyone = np.arange(data.n_users)
        assert (candidates[everyone] == again.negatives[phase][everyone[::-1]][::-1]).all()


def six_items_each(time=None, count=400):
    """Everyone touched items 0 to 5, in the order of the file; two more users have 300 other items each."""
    user = np.concatenate([np.repeat(np.arange(count), 6), np.repeat([count, count + 1], 300)])
    item = np.concatenate([np.tile(np.arange(6), count), np.arange(6, 606)])
    return from_columns("six", user, item, None if time is None else np.full(len(user), time))


def of_the_six(ragged):
    return ragged.values[ragged.values < 6]


@pytest.mark.parametrize("protocol", ["strict", "symmetric"])
def test_equal_times_go_in_a_random_order_of_each_users_own(protocol):
    made = split(six_items_each(time=1.0), protocol)
    valid, test = of_the_six(made.valid), of_the_six(made.test)
    assert np.bincount(test, minlength=6).min() > 40  # 66.7 expected, deviation 7.5
    assert len(set((valid * 6 + test).tolist())) == 30  # every ordered pair of the six items
    other = of_the_six(split(six_items_each(time=1.0), protocol, seed=1).test)
    assert (other != test).mean() > 0.5


def test_the_papers_protocol_keeps_the_order_of_the_file_for_equal_times():
    for seed in (0, 9):
        made = split(six_items_each(time=1.0), "paper", seed)
        assert set(of_the_six(made.test).tolist()) == {5}
        assert set(of_the_six(made.valid).tolist()) == {4}


@pytest.mark.parametrize("protocol", LEAVE_ONE_OUT)
def test_data_without_times_is_split_at_random_per_user(protocol):
    made = split(six_items_each(), protocol)
    assert np.bincount(of_the_six(made.test), minlength=6).min() > 40


@settings(max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 5))
def test_ratio_holds_out_a_fifth_and_a_tenth_of_the_rest(lengths, seed):
    user = np.repeat(np.arange(len(lengths) + 1), [*lengths, 3])
    item = np.concatenate([*(np.arange(n) for n in lengths), [97, 98, 99]])
    made = split(from_columns("x", user, item), "ratio", seed)
    for u, n in enumerate(lengths):
        expected_test = max(round(0.2 * n), 1) if n >= 3 else 0
        expected_valid = max(round(0.1 * (n - expected_test)), 1) if n >= 3 else 0
        assert len(made.test[u]) == expected_test
        assert len(made.valid[u]) == expected_valid
        assert len(made.train[u]) == n - expected_test - expected_valid


def test_ratio_draws_at_random_and_not_by_time():
    user = np.repeat(np.arange(300), 10)
    data = from_columns("x", user, np.tile(np.arange(10), 300), np.tile(np.arange(10.0), 300))
    made = split(data, "ratio")
    assert np.bincount(made.test.values, minlength=10).min() > 35  # 60 expected, deviation 7
    assert (split(data, "ratio", seed=1).test.values != made.test.values).any()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 5))
def test_file_order_holds_out_the_last_fifth_of_the_file_and_a_tenth_of_the_rest(lengths, seed):
    """Users' rows stand among one another, with times that go against the file; the first row is left out."""
    chance = np.random.default_rng(seed)
    user = np.concatenate([[0], chance.permutation(np.repeat(np.arange(len(lengths) + 1), [*lengths, 3]))])
    item = chance.permutation(500)[: len(user)]
    data = from_columns("x", user, np.append(item, 999)[: len(user)], -np.arange(float(len(user))))
    made = split(data, "fileorder", seed)
    for u in range(len(lengths) + 1):
        rows = data.item[1:][data.user[1:] == u].tolist()
        n = len(rows)
        n_test = max(n // 5, 1) if n >= 3 else 0
        n_valid = max(round(0.1 * (n - n_test)), 1) if n >= 3 else 0
        assert made.test[u].tolist() == rows[n - n_test :]
        assert len(made.valid[u]) == n_valid
        assert set(made.train[u].tolist()) | set(made.valid[u].tolist()) == set(rows[: n - n_test])
        assert made.train[u].tolist() == [i for i in rows if i in set(made.train[u].tolist())]


def test_file_order_validates_on_a_random_tenth():
    user = np.repeat(np.arange(300), 20)
    data = from_columns("x", user, np.tile(np.arange(20), 300))
    made = split(data, "fileorder")
    assert np.bincount(made.valid.values, minlength=20)[:16].min() > 15  # 37.5 expected, deviation 6
    assert (split(data, "fileorder", seed=1).valid.values != made.valid.values).any()
    assert (split(data, "fileorder", seed=1).test.values == made.test.values).all()


@pytest.mark.usefixtures("raw_data")
def test_file_order_has_the_counts_that_hetefedrec_prints():
    """Its Figure 1 and Table I: mean 132.8, deviation 154.2; half the users below 77, 80% below 203.

    Counts say how much is withheld, not which rows. Those of this file's end are other films than those of its start.
    """
    made = split(sources.load("ml-1m"), "fileorder")
    count = union(made.train, made.valid).lengths
    assert (int(10 * count.mean()) / 10, round(float(count.std()), 1)) == (132.8, 154.2)
    assert (np.median(count), np.quantile(count, 0.8)) == (77, 203)
    rows = np.bincount(made.data.item, minlength=made.n_items)
    withheld = np.bincount(made.test.values, minlength=made.n_items) / rows
    often = withheld[rows >= 1000]
    assert (often < 0.01).mean() > 0.4  # films of which nearly nothing is withheld
    assert (often > 0.9).mean() > 0.05  # and those of which nearly everything is


def test_what_may_be_drawn_as_a_negative():
    data = few_users(30)
    for protocol in PROTOCOLS:
        made = split(data, protocol)
        train, valid, test = (sets(part) for part in parts(made))
        for user, barred in enumerate(sets(made.barred)):
            held_out = valid[user] | test[user]
            if protocol in ("strict", *SHARES):
                assert barred == train[user]
                assert not barred & held_out
            elif protocol == "paper":
                assert barred == train[user] | held_out
            else:
                candidates = {i for c in made.negatives.values() for i in c[np.array([user])][0].tolist()}
                assert barred == train[user] | held_out | candidates


@pytest.mark.parametrize("protocol", LEAVE_ONE_OUT)
def test_sampled_candidates_are_99_different_untouched_items(protocol):
    data = few_users(40)
    made = split(data, protocol)
    touched = [set(data.item[data.user == user].tolist()) for user in range(40)]
    everyone = np.arange(40)
    for candidates in made.negatives.values():
        assert candidates[everyone].shape == (40, SAMPLED)
        for user, row in enumerate(candidates[everyone].tolist()):
            assert len(set(row)) == SAMPLED
            assert not set(row) & touched[user]
            assert max(row) < data.n_items
            assert min(row) >= 0
    assert (made.negatives["valid"][everyone] != made.negatives["test"][everyone]).any()


def test_a_small_catalogue_has_fewer_candidates():
    made = split(random_data(items=40), "strict")
    for user, row in enumerate(made.negatives["test"][np.arange(made.n_users)].tolist()):
        real = [item for item in row if item >= 0]
        touched = sum(len(part[user]) for part in parts(made))
        assert len(set(real)) == len(real) == 40 - touched


def test_at_test_time_the_validation_item_is_known():
    made = split(random_data(), "strict")
    train, valid, test = (sets(part) for part in parts(made))
    assert sets(made.known("valid")) == train
    assert sets(made.known("test")) == [a | b for a, b in zip(train, valid, strict=True)]
    assert all(not known & wanted for known, wanted in zip(sets(made.known("test")), test, strict=True))


def test_an_unknown_protocol_names_the_known_ones():
    with pytest.raises(UserError, match="unknown protocol 'strikt'; did you mean 'strict'"):
        split(random_data(), "strikt")


def test_a_protocol_that_leaves_a_user_no_negative_says_so():
    """30 items: the 99 candidates of `symmetric` are the whole rest of the catalogue."""
    user = np.repeat(np.arange(20), 5)
    data = from_columns("small", user, np.arange(100) * 7 % 30, np.arange(100.0))
    split(data, "strict")
    with pytest.raises(UserError, match=r"symmetric.*small.*strict"):
        split(data, "symmetric")


def test_items_that_came_at_once_stand_in_both_orders():
    time = np.array([1.0, 2.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 6.0])
    divided = split(from_columns("toy", np.zeros(9), np.arange(9), time), "strict")
    one, two = divided.orders(0)
    assert (one[0], one[4]) == (two[0], two[4]) == (0, 4)
    assert set(one[1:4]) == {1, 2, 3}
    assert one[1:4].tolist() == two[3:0:-1].tolist()
    assert one[5:].tolist() == two[:4:-1].tolist()
    again, _ = divided.orders(0, np.array([0, 3, 2, 1, 4, 6, 5]))
    assert again.tolist() == one.tolist()  # whatever order they were given in
    assert [x.tolist() for x in divided.orders(0, np.array([0, 1, 4]))] == [[0, 1, 4]]


def test_items_without_a_time_came_after_all_before_them():
    timed = split(from_columns("toy", np.zeros(4), np.arange(4), np.ones(4)), "strict")
    assert [x.tolist() for x in timed.orders(7, np.array([2, 0, 1]))] == [[2, 0, 1]]  # of a user who is not in the data
    untimed = split(from_columns("toy", np.zeros(4), np.arange(4)), "strict")
    assert [x.tolist() for x in untimed.orders(0, np.array([2, 0, 1]))] == [[2, 0, 1]]
    assert [x.tolist() for x in timed.orders(0, np.zeros(0, dtype=np.int64))] == [[]]
