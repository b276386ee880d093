import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.methods.history_sums import Sequences, gram, places, recent, recurrences, steps, transitions

ITEMS = 9
SCALES = [((3,), (0.5,)), ((1, 4), (1.0, 0.8)), ((2, 20), (1.0, 1.0)), ((1, 3, 6), (1.0, 0.9, 0.7))]
sequences = st.lists(
    st.permutations(range(ITEMS)).flatmap(lambda p: st.integers(0, ITEMS).map(lambda n: p[:n])), max_size=4
)


def histories(items, windows, decays):
    """h_t of every step, written as the definition says: Σ_{s<t, t−s≤W} γ^(t−s−1) e_{i_s}."""
    rows = np.zeros((max(len(items) - 1, 0), len(windows) * ITEMS))
    for t in range(1, len(items)):
        for scale, (window, decay) in enumerate(zip(windows, decays, strict=True)):
            for s in range(t):
                if t - s <= window:
                    rows[t - 1, scale * ITEMS + items[s]] += decay ** (t - s - 1)
    return rows


def written_out(cells, shape):
    out = np.zeros(shape)
    np.add.at(out, (cells.row, cells.column), cells.value)
    return out


def arrays(lists):
    return [np.array(x, dtype=np.int64) for x in lists]


@pytest.mark.parametrize(("windows", "decays"), SCALES)
@given(lists=sequences)
@settings(deadline=None)  # a busy machine is no fault of the sums
def test_sums_are_those_of_the_histories(windows, decays, lists):
    laid = Sequences.of(arrays(lists))
    wide = len(windows) * ITEMS
    A, C, G = np.zeros((wide, wide)), np.zeros((wide, ITEMS)), np.zeros((ITEMS, ITEMS))
    for items in lists:
        H = histories(items, windows, decays)
        A += H.T @ H
        C += H.T @ np.eye(ITEMS)[list(items[1:])] if len(items) > 1 else 0
        x = np.eye(ITEMS)[list(items)].sum(0) if items else np.zeros(ITEMS)
        G += np.outer(x, x)
    np.testing.assert_allclose(written_out(recurrences(laid, windows, decays, ITEMS), A.shape), np.tril(A), atol=1e-12)
    np.testing.assert_allclose(written_out(transitions(laid, windows, decays, ITEMS), C.shape), C, atol=1e-12)
    np.testing.assert_allclose(written_out(gram(laid), G.shape), np.tril(G), atol=1e-12)


@pytest.mark.parametrize(("windows", "decays"), SCALES)
def test_steps_are_the_histories(windows, decays):
    items = np.array([4, 1, 7, 0, 3, 8])
    expected = histories(items, windows, decays)
    for first in (1, 4):
        told = steps(items, windows, decays, ITEMS, first)
        rows = np.zeros_like(expected[first - 1 :])
        np.add.at(rows, (told.owner, told.column), told.value)
        np.testing.assert_allclose(rows, expected[first - 1 :])
    assert not len(steps(items[:1], windows, decays, ITEMS).value)


def test_a_cell_belongs_to_its_sequence_and_appears_once():
    laid = Sequences.of(arrays([[1, 2, 3], [2, 1]]))
    for cells in (recurrences(laid, (2, 5), (1.0, 0.5), ITEMS), transitions(laid, (2,), (0.5,), ITEMS), gram(laid)):
        named = list(zip(cells.owner.tolist(), cells.row.tolist(), cells.column.tolist(), strict=True))
        assert len(named) == len(set(named))
    alone = gram(Sequences.of(arrays([[2, 1]])))
    assert written_out(gram(laid), (ITEMS, ITEMS))[2, 1] == 2
    assert alone.squares(1).tolist() == [3.0]


def test_the_history_now_ends_with_the_newest_item():
    laid = Sequences.of(arrays([[5, 6, 7], [8]]))
    now = recent(laid, (2, 1), (0.5, 1.0), ITEMS)
    rows = np.zeros((2, 2 * ITEMS))
    np.add.at(rows, (now.owner, now.column), now.value)
    assert {tuple(x) for x in np.argwhere(rows).tolist()} == {(0, 6), (0, 7), (1, 8), (0, ITEMS + 7), (1, ITEMS + 8)}
    assert rows[0, 6] == 0.5
    assert rows.sum() == 4.5


def test_entries_move_to_the_places_of_chosen_items():
    table = places(np.array([2, 5]), ITEMS)
    assert table.tolist() == [-1, -1, 0, -1, -1, 1, -1, -1, -1]
    laid = Sequences.of(arrays([[5, 1, 2]]))
    whole = np.zeros((ITEMS, ITEMS))
    whole[np.ix_([1, 2, 5], [1, 2, 5])] = 1
    np.testing.assert_array_equal(written_out(gram(laid).both(), whole.shape), whole)
    np.testing.assert_array_equal(written_out(gram(laid).both().at(table, None), (2, ITEMS)), whole[[2, 5]])
    np.testing.assert_array_equal(written_out(gram(laid).at(table, table), (2, 2)), [[1, 0], [1, 1]])
