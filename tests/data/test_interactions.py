import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.interactions import from_columns
from tacit.errors import UserError

ids = st.one_of(st.integers(-20, 20).map(str), st.text("ab0123456789-é", min_size=1, max_size=3))


def test_repeated_pairs_are_folded_into_their_first_row_and_counted() -> None:
    data = from_columns(
        "x",
        np.array([7, 7, 5, 7, 7, 5]),
        np.array([1, 2, 1, 1, 1, 3]),
        time=np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
        titles={"1": "one", "3": "three"},
    )
    assert data.user_ids.tolist() == ["5", "7"]
    assert data.user.tolist() == [1, 1, 0, 0]
    assert data.item.tolist() == [0, 1, 0, 2]
    assert data.time is not None
    assert data.time.tolist() == [10.0, 20.0, 30.0, 60.0]
    assert (len(data), data.rows_read, data.duplicates) == (4, 6, 2)
    assert [data.title(i) for i in range(3)] == ["one", "2", "three"]


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=30))
def test_indices_give_back_the_source(pairs: list[tuple[str, str]]) -> None:
    user, item = (np.array(column, dtype=object) for column in zip(*pairs, strict=True))
    data = from_columns("x", user, item)
    rows = zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True)
    assert list(rows) == list(dict.fromkeys(pairs))
    assert data.rows_read == len(pairs)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["7", "007", "1"], ["1", "007", "7"]),
        (["20", "3", "--1"], ["--1", "20", "3"]),
        (["20", "3", "²"], ["20", "3", "²"]),
    ],
)
def test_whole_numbers_sort_as_numbers_and_all_else_as_text(raw: list[str], expected: list[str]) -> None:
    assert from_columns("x", np.array(raw), np.array(raw)).user_ids.tolist() == expected


def test_numbers_and_their_text_are_the_same_data() -> None:
    user, item = np.array([10, 9, 9]), np.array([3, 20, 3])
    as_numbers = from_columns("x", user, item)
    as_text = from_columns("y", user.astype(str).astype(object), item.astype(str))
    assert as_numbers.fingerprint() == as_text.fingerprint()


@pytest.mark.parametrize("change", ["user", "item", "time", "order", "swap"])
def test_the_fingerprint_follows_the_content(change: str) -> None:
    columns = {"user": [1, 1, 2], "item": [1, 2, 1], "time": [1.0, 2.0, 3.0]}
    before = from_columns("x", *(np.array(column) for column in columns.values()))
    if change == "order":
        columns = {name: column[::-1] for name, column in columns.items()}
    elif change == "swap":
        columns["item"][:2] = [2, 1]
    else:
        columns[change][2] += 7
    after = from_columns("x", *(np.array(column) for column in columns.values()))
    assert before.fingerprint() != after.fingerprint()


def test_at_least_counts_different_items_and_drops_items_nobody_is_left_with() -> None:
    data = from_columns(
        "x",
        np.array(["z", "z", "z", "b", "b", "b", "c", "b"]),
        np.array(["1", "1", "1", "4", "2", "2", "3", "4"]),
        time=np.arange(8.0),
        titles={"1": "one", "2": "two", "3": "three", "4": "four"},
    )
    kept = data.at_least(2)  # z has three rows, but of one item
    assert kept.user_ids.tolist() == ["b"]
    assert kept.item_ids.tolist() == ["2", "4"]
    assert kept.titles is not None
    assert kept.titles.tolist() == ["two", "four"]
    assert kept.time is not None
    assert kept.time.tolist() == [3.0, 4.0]
    assert (len(kept), kept.rows_read, kept.duplicates) == (2, 4, 2)
    assert kept.about["min_interactions"] == "2"
    assert data.at_least(1) is data


def test_a_filter_that_nobody_passes_says_so() -> None:
    data = from_columns("x", np.array([1, 1, 2]), np.array([1, 2, 1]))
    with pytest.raises(UserError, match="no user of x has 1,000 interactions; the most is 2"):
        data.at_least(1000)


def test_users_are_found_by_the_id_of_the_source() -> None:
    data = from_columns("x", np.array([30, 4]), np.array([1, 1]))
    assert data.user_index("30") == 1
    with pytest.raises(UserError, match="no user '5' in x"):
        data.user_index("5")
