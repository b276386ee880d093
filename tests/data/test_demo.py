import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.data.demo import GENRES, Planted, demo, planted
from tacit.data.interactions import Interactions


@pytest.fixture(scope="module")
def data() -> Interactions:
    return demo()


@pytest.fixture(scope="module")
def truth() -> Planted:
    return planted()


def test_the_seed_alone_decides(data: Interactions) -> None:
    np.random.seed(1)  # noqa: NPY002 the global state must not matter
    assert demo(0).fingerprint() == data.fingerprint()
    assert demo(1).fingerprint() != data.fingerprint()


def test_it_is_small_and_complete(data: Interactions, truth: Planted) -> None:
    assert (data.n_users, data.n_items) == (300, 210)
    assert data.duplicates == 0
    per_user = np.bincount(data.user)
    assert per_user.min() >= 20
    assert per_user.max() <= 40
    assert data.user_ids.tolist() == [str(i + 1) for i in range(300)]
    assert data.item_ids.tolist() == [str(i + 1) for i in range(210)]
    assert truth.genre.shape == truth.sequel.shape == (210,)
    assert truth.favourites.shape == (300, len(GENRES))


def test_times_rise_within_every_user(data: Interactions) -> None:
    assert data.time is not None
    same_user = data.user[1:] == data.user[:-1]
    assert (np.diff(data.time)[same_user] > 0).all()


def test_titles_are_distinct_and_carry_the_genre(data: Interactions, truth: Planted) -> None:
    titles = [data.title(i) for i in range(data.n_items)]
    assert len(set(titles)) == data.n_items
    assert all(f"({GENRES[genre]})" in title for genre, title in zip(truth.genre, titles, strict=True))


def test_tastes_are_in_the_data(data: Interactions, truth: Planted) -> None:
    assert set(truth.favourites.sum(1).tolist()) == {1, 2}
    liked = truth.favourites[data.user, truth.genre[data.item]]
    outside = np.bincount(data.user, weights=~liked)
    assert (outside == np.round(0.12 * np.bincount(data.user))).all()


def test_series_are_watched_in_order(data: Interactions, truth: Planted) -> None:
    has_next = np.flatnonzero(truth.sequel >= 0)
    assert len(has_next) == len(GENRES) * 5 * 2
    assert [data.title(i) for i in (0, 1, 2)] == [f"Haunted Cellar{n} (horror)" for n in ("", " II", " III")]
    assert truth.sequel[:4].tolist() == [1, 2, -1, 4]
    follows = (truth.sequel[data.item[:-1]] >= 0) & (data.user[1:] == data.user[:-1])
    assert (truth.sequel[data.item[:-1]] == data.item[1:])[follows].mean() > 0.6
    position = np.full((data.n_users, data.n_items), 10**6)
    position[data.user, data.item] = np.arange(len(data))
    assert (position[:, has_next] <= position[:, truth.sequel[has_next]]).all()


def test_a_recommender_that_finds_tastes_beats_popularity_by_far(data: Interactions, truth: Planted) -> None:
    last = np.append(np.flatnonzero(np.diff(data.user)), len(data) - 1)
    seen = np.zeros((data.n_users, data.n_items))
    seen[data.user, data.item] = 1
    seen[data.user[last], data.item[last]] = 0

    def hit_rate(scores: NDArray[np.float64]) -> float:
        top = np.argsort(-np.where(seen > 0, -np.inf, scores), axis=1)[:, :10]
        return float((top == data.item[last][:, None]).any(1).mean())

    popularity = hit_rate(np.broadcast_to(seen.sum(0), seen.shape))
    neighbours = hit_rate(seen @ (seen.T @ seen) / np.sqrt(seen.sum(0)))
    assert 0.05 < popularity < 0.3
    assert neighbours > 4 * popularity


def test_popularity_has_a_tail_inside_a_genre_and_another_for_every_seed(data: Interactions, truth: Planted) -> None:
    alone = (truth.sequel < 0) & ~np.isin(np.arange(data.n_items), truth.sequel)
    counts = np.bincount(data.item)
    assert counts.min() > 0
    for genre in range(len(GENRES)):
        within = np.sort(counts[alone & (truth.genre == genre)])
        assert within[-5:].mean() > 2 * within[:5].mean()
    other = np.bincount(demo(1).item)
    assert np.corrcoef(counts[alone], other[alone])[0, 1] < 0.5
