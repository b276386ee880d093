import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.ragged import Complement, Ragged, union

rows_of_values = st.lists(st.lists(st.integers(0, 11), max_size=6), min_size=1, max_size=6)


def ragged(rows):
    row = np.array([r for r, values in enumerate(rows) for _ in values], dtype=np.int64)
    values = np.array([v for values in rows for v in values], dtype=np.int64)
    return Ragged.of(row, values, len(rows))


def lists(made):
    return [made[r].tolist() for r in range(len(made))]


@given(rows_of_values)
def test_rows_come_back_in_their_order(rows):
    made = ragged(rows)
    assert lists(made) == rows
    assert made.lengths.tolist() == [len(values) for values in rows]
    assert made.rows.tolist() == [r for r, values in enumerate(rows) for _ in values]


def test_values_are_grouped_by_row_in_the_order_given():
    made = Ragged.of(np.array([2, 0, 2, 0]), np.array([9, 5, 1, 7]), 4)
    assert lists(made) == [[5, 7], [], [9, 1], []]


@given(rows_of_values)
def test_sorted_rows_are_ascending_without_repeats(rows):
    assert lists(ragged(rows).sorted()) == [sorted(set(values)) for values in rows]


@given(rows_of_values, st.data())
def test_padding_fills_the_chosen_rows(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4))
    padded = ragged(rows).padded(np.array(chosen), fill=-7)
    longest = max([len(rows[r]) for r in chosen] + [1])
    assert padded.tolist() == [rows[r] + [-7] * (longest - len(rows[r])) for r in chosen]


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 11), max_size=5)] * 3), min_size=1, max_size=5))
def test_union_is_row_by_row(triples):
    parts = [ragged([triple[k] for triple in triples]) for k in range(3)]
    assert lists(union(*parts)) == [sorted(set(a) | set(b) | set(c)) for a, b, c in triples]


@given(rows_of_values)
def test_the_complement_lists_what_is_outside_in_order(rows):
    n = 12
    outside = Complement(ragged(rows).sorted(), n)
    for r, values in enumerate(rows):
        expected = [v for v in range(n) if v not in values]
        assert outside.count[r] == len(expected)
        assert outside.item(np.array(r), np.arange(len(expected))).tolist() == expected


def test_some_rows_alone():
    rows = Ragged.of(np.array([0, 0, 2, 3, 3, 3]), np.array([5, 4, 9, 1, 1, 0]), 4)
    some = rows.only(np.array([3, 1, 0]))
    assert [some[r].tolist() for r in range(3)] == [[1, 1, 0], [], [5, 4]]
    assert rows.lengths_of(np.array([3, 1])).tolist() == [3, 0]
    assert [rows.sorted()[r].tolist() for r in range(4)] == [[4, 5], [], [9], [0, 1]]
