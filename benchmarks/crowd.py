"""Made-up interactions of any number of users, in time order: `python -m benchmarks.crowd 1000000 crowd.parquet`."""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from tacit import rng

ITEMS, GENRES = 20_000, 40
EACH = 16.3  # interactions of a user, on average, before repeated ones go; nobody draws fewer than five
STEEP = 3.0  # how much the popular items of a genre stand out
DAYS = 365


def crowd(users: int, path: Path, items: int = ITEMS) -> int:
    """Write them as Parquet; gives their number. A user likes one genre, and strays from it a fifth of the time."""
    draw = rng.generator(0, "crowd")
    lengths = 5 + draw.geometric(1 / (EACH - 4), users) - 1
    user = np.repeat(np.arange(users, dtype=np.int32), lengths)
    genre = draw.integers(GENRES, size=users, dtype=np.int32)[user]
    stray = draw.random(len(user), dtype=np.float32) < 0.2
    genre[stray] = draw.integers(GENRES, size=int(stray.sum()), dtype=np.int32)
    place = (items // GENRES * draw.random(len(user), dtype=np.float32) ** STEEP).astype(np.int32)
    time = 1_700_000_000 + draw.integers(DAYS * 86_400, size=len(user))
    table = pl.DataFrame({"user": user, "item": place * GENRES + genre, "time": time})
    table = table.unique(["user", "item"], keep="any").sort("time", "user", "item")
    table.write_parquet(path)
    return len(table)


if __name__ == "__main__":
    print(crowd(int(sys.argv[1]), Path(sys.argv[2])))
