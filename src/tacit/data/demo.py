"""A generated data set whose right answers are known: tastes by genre, and series watched in order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.data.interactions import Interactions, Ints, from_columns
from tacit.rng import generator

_WORDS = {  # five first words and five second words make the 25 names of a genre
    "horror": ("Haunted Cursed Screaming Bloody Hollow", "Cellar Mirror Graveyard Doll Orchard"),
    "western": ("Dusty Lonesome Wild Crooked Golden", "Saddle Canyon Sheriff Stagecoach Prairie"),
    "space": ("Distant Frozen Orbiting Silent Burning", "Nebula Starship Moon Comet Colony"),
    "romance": ("Tender Secret Endless Stolen Summer", "Kiss Wedding Letters Heart Promise"),
    "crime": ("Deadly Missing Guilty Midnight Perfect", "Alibi Witness Heist Detective Verdict"),
    "comedy": ("Clumsy Awkward Goofy Unlucky Noisy", "Neighbours Butler Holiday Landlord Cousins"),
}
GENRES = tuple(_WORDS)

_N_USERS = 300
_SERIES = 5  # names in a genre that are series of three parts; the other twenty stand alone
_NUMERALS = ("", " II", " III")
_PER_GENRE = 25 + _SERIES * (len(_NUMERALS) - 1)

_OFF_TASTE = 0.12  # share of a user's interactions outside their favourite genres
_NEXT_PART = 0.8  # chance that the next part follows a part of a series
_TAIL = 0.7  # popularity within a genre falls like rank ** -0.7


@dataclass(frozen=True)
class Planted:
    """What a good recommender should find in the demo."""

    genre: Ints  # (n_items,) index into GENRES
    sequel: Ints  # (n_items,) the next part of the series, or -1
    favourites: NDArray[np.bool_]  # (n_users, genres), one or two of them each


def planted(seed: int = 0) -> Planted:
    """The right answers for `demo(seed)`, in the order of its users and items."""
    items = np.arange(len(GENRES) * _PER_GENRE)
    place = items % _PER_GENRE  # within a genre the series come first, part after part
    parts = len(_NUMERALS)
    sequel = np.where((place < _SERIES * parts) & (place % parts < parts - 1), items + 1, -1)
    rng = generator(seed, "demo tastes")
    order = rng.permuted(np.tile(np.arange(len(GENRES)), (_N_USERS, 1)), axis=1)
    return Planted(items // _PER_GENRE, sequel, order < rng.integers(1, 3, size=(_N_USERS, 1)))


def demo(seed: int = 0) -> Interactions:
    """300 users, 210 films, 20 to 40 interactions each with times; made only from the seed."""
    truth = planted(seed)
    rng = generator(seed, "demo")
    popularity = np.concatenate([rng.permutation(np.arange(1, _PER_GENRE + 1) ** -_TAIL) for _ in GENRES])
    users, items, times = [], [], []
    for user, favourites in enumerate(truth.favourites):
        count = int(rng.integers(20, 41 if favourites.sum() == 2 else 27))  # one genre alone holds 35 films
        gaps = 1 + rng.exponential(86_400.0, size=count).astype(np.int64)  # a film a day, in seconds
        users.append(np.full(count, user + 1))
        items.append(_history(rng, popularity, favourites[truth.genre], truth.sequel, count) + 1)
        times.append(1_700_000_000 + rng.integers(200 * 86_400) + np.cumsum(gaps))
    titles = {str(i + 1): title for i, title in enumerate(_titles())}
    return from_columns(
        "demo", np.concatenate(users), np.concatenate(items), np.concatenate(times).astype(np.float64), titles
    )


def _history(
    rng: np.random.Generator,
    popularity: NDArray[np.float64],
    liked: NDArray[np.bool_],
    sequel: Ints,
    count: int,
) -> Ints:
    """One user's films in order, none twice and no part of a series before the one it continues."""
    in_series = sequel >= 0
    in_series[sequel[in_series]] = True
    unlocked = np.ones(len(liked), dtype=bool)
    unlocked[sequel[sequel >= 0]] = False
    off_taste = rng.permutation(count) < round(_OFF_TASTE * count)
    history: list[int] = []
    for strays in off_taste:
        following = sequel[history[-1]] if history else -1
        if strays:
            pool = unlocked & ~liked & ~in_series  # a series begun here would pull more films from outside
        elif following >= 0 and rng.random() < _NEXT_PART:
            pool = np.arange(len(liked)) == following
        else:
            pool = unlocked & liked
        weight = popularity * pool
        film = int(rng.choice(len(liked), p=weight / weight.sum()))
        history.append(film)
        unlocked[film] = False
        if sequel[film] >= 0:
            unlocked[sequel[film]] = True
    return np.array(history)


def _titles() -> list[str]:
    titles = []
    for genre, (firsts, seconds) in _WORDS.items():
        # the diagonal gives the five series different words
        grid = [(first, second) for first in firsts.split() for second in seconds.split()]
        series, alone = grid[::6], [name for i, name in enumerate(grid) if i % 6]
        titles += [f"{a} {b}{numeral} ({genre})" for a, b in series for numeral in _NUMERALS]
        titles += [f"{a} {b} ({genre})" for a, b in alone]
    return titles
