import zipfile
from pathlib import Path

import polars as pl
import pytest

from tacit.data import sources
from tacit.data.imported import import_file
from tacit.data.sources import describe, fetch, find, load, names
from tacit.errors import UserError

COUNTS = [  # users, items, rows of the source, as papers report them
    ("ml-100k", 0, 943, 1682, 100_000),
    ("ml-1m", 0, 6040, 3706, 1_000_209),
    ("filmtrust", 0, 1508, 2071, 35_497),
    ("filmtrust", 5, 1227, 2059, 34_889),
    ("filmtrust", 10, 1002, 2042, 33_372),
    ("lastfm-2k", 0, 1892, 17_632, 92_834),
    ("lastfm-2k", 10, 1874, 17_612, 92_780),
    ("douban-book", 0, 2110, 6777, 96_041),
    ("douban-book", 5, 1696, 6777, 95_107),
    ("amazon-beauty", 0, 22_363, 12_101, 198_502),
    ("anime-5k", 0, 5000, 7390, 520_609),
]


def write_filmtrust(place: Path, text: str = "1 5 3\n") -> None:
    """A folder, or an archive with the file in a sub-folder."""
    if place.suffix == ".zip":
        place.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("__MACOSX/inner/._ratings.txt", "junk")
            archive.writestr("inner/ratings.txt", text)
            archive.writestr("inner/old/ratings.txt", "9 9 9\n")
    else:
        place.mkdir(parents=True)
        (place / "ratings.txt").write_text(text)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("TACIT_DATA", str(folder))
    return folder


@pytest.mark.parametrize(("name", "least", "users", "items", "rows"), COUNTS)
def test_counts_are_those_of_the_papers(
    name: str, least: int, users: int, items: int, rows: int, raw_data: Path
) -> None:
    data = load(name, min_interactions=least)
    assert (data.n_users, data.n_items, data.rows_read) == (users, items, rows)
    assert data.duplicates == (3 if name == "filmtrust" else 0)
    assert len(data) == rows - data.duplicates
    assert data.name == name


def test_rows_keep_the_order_and_times_of_the_file(raw_data: Path) -> None:
    data = load("ml-100k")
    assert data.time is not None
    first = (data.user_ids[data.user[0]], data.item_ids[data.item[0]], data.time[0])
    assert first == ("196", "242", 881250949.0)
    last = (data.user_ids[data.user[-1]], data.item_ids[data.item[-1]], data.time[-1])
    assert last == ("12", "203", 879959583.0)


@pytest.mark.parametrize("kind", ["filmtrust", "filmtrust.zip"])
@pytest.mark.parametrize("root", ["own", "cache"])
def test_folders_and_archives_are_found(root: str, kind: str, own: Path, cache: Path) -> None:
    place = (own if root == "own" else cache) / kind
    write_filmtrust(place)
    assert find("filmtrust") == place
    assert fetch("filmtrust") == place
    assert load("filmtrust").item_ids.tolist() == ["5"]


def test_the_users_folder_comes_before_the_cache(own: Path, cache: Path) -> None:
    write_filmtrust(cache / "filmtrust", "1 7 3\n")
    write_filmtrust(own / "filmtrust.zip", "1 6 3\n")
    assert load("filmtrust").item_ids.tolist() == ["6"]
    write_filmtrust(own / "filmtrust", "1 5 3\n")
    assert load("filmtrust").item_ids.tolist() == ["5"]


def test_the_default_cache_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.delenv("TACIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_filmtrust(tmp_path / "xdg" / "tacit" / "filmtrust")
    write_filmtrust(tmp_path / "home" / ".cache" / "tacit" / "filmtrust")
    assert find("filmtrust") == tmp_path / "xdg" / "tacit" / "filmtrust"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find("filmtrust") == tmp_path / "home" / ".cache" / "tacit" / "filmtrust"


def test_a_missing_data_set_says_where_its_files_go(own: Path) -> None:
    with pytest.raises(UserError, match=r"set TACIT_DATA to a folder holding filmtrust/ratings\.txt, or use"):
        load("filmtrust")


def test_a_folder_without_a_file_is_named(own: Path) -> None:
    (own / "ml-100k").mkdir()
    (own / "ml-100k" / "u.data").write_text("1\t5\t3\t10\n")
    with pytest.raises(UserError, match=r"ml-100k does not hold u\.item; complete it or remove it"):
        load("ml-100k")


@pytest.mark.parametrize("damage", ["all", "inside"])
def test_a_broken_archive_is_named(damage: str, own: Path) -> None:
    place = own / "filmtrust.zip"
    write_filmtrust(place)
    data = place.read_bytes()
    place.write_bytes(b"junk" if damage == "all" else data.replace(b"1 5 3\n", b"1 6 3\n"))
    with pytest.raises(UserError, match=r"filmtrust\.zip is not a readable zip archive"):
        load("filmtrust")


def test_a_wrong_data_path_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"TACIT_DATA is '.*nowhere', which is not a folder"):
        load("filmtrust")


def test_names_and_descriptions(tmp_path: Path) -> None:
    assert names() == [
        "ml-100k",
        "ml-1m",
        "filmtrust",
        "lastfm-2k",
        "douban-book",
        "amazon-beauty",
        "anime-5k",
        "demo",
    ]
    pl.DataFrame({"user": [1, 1], "item": [2, 2]}).write_csv(tmp_path / "mine.csv")
    import_file(tmp_path / "mine.csv", "mine")
    assert names()[-1] == "mine"
    assert describe("mine") == "imported by you: 2 rows"
    for name in names():
        assert describe(name)
        assert "\n" not in describe(name)


@pytest.mark.parametrize("ask", [load, fetch, describe])
def test_an_unknown_name_is_met_with_the_nearest(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UserError, match="unknown data set 'ml100k'; did you mean 'ml-100k'"):
        ask("ml100k")


def test_the_demo_needs_nothing() -> None:
    assert load("demo", min_interactions=25).n_users < load("demo").n_users == 300
    with pytest.raises(UserError, match="nothing to fetch"):
        sources.fetch("demo")
