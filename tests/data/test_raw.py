import re
from pathlib import Path

import pytest

from tacit.data.raw import DATA_SETS
from tacit.data.sources import load
from tacit.errors import UserError

GOOD = {
    "ml-100k": {"u.data": "1\t5\t3\t10\n2\t6\t4\t20\n", "u.item": "5|A (1990)|x\n6|B|y\n"},
    "ml-1m": {"ratings.dat": "1::5::3::10\n2::6::4::20\n", "movies.dat": "5::A::x\n6::B::y\n"},
    "filmtrust": {"ratings.txt": "1 5 3.5\n2 6 4\n"},
    "lastfm-2k": {
        "user_artists.dat": "userID\tartistID\tweight\r\n1\t5\t100\r\n2\t6\t7\r\n",
        "artists.dat": "id\tname\turl\tpictureURL\n5\tA\tx\ty\n6\tB\tx\ty\n",
    },
    "douban-book": {"ratings.dat": "1\t5\t3\n2\t6\t4"},
    "amazon-beauty": {"Beauty.txt": "1 5 6\n2 6\n"},
    "anime-5k": {
        "anime_history.dat": "User_ID\tAnime_ID\tFeedback\n1\t5\t1\n2\t6\t1\n",
        "anime_info.dat": "anime_ids\tname\tgenre\n5\tA\tx\n6\tB\tx\n",
    },
}
BAD = [
    ("ml-100k", "u.data", 3, "1\t5\t3"),
    ("ml-100k", "u.data", 3, "1\t5\t3\t10\t7"),
    ("ml-100k", "u.data", 3, "1\tfive\t3\t10"),
    ("ml-100k", "u.data", 3, "\n3\t5\t3\t10"),
    ("ml-100k", "u.data", 3, "1_0\t5\t\t10"),
    ("ml-100k", "u.item", 3, "seven|C"),
    ("ml-100k", "u.item", 3, "7"),
    ("ml-1m", "ratings.dat", 3, "1:5:3:10"),
    ("ml-1m", "movies.dat", 3, "7:C"),
    ("filmtrust", "ratings.txt", 3, "1 5"),
    ("lastfm-2k", "user_artists.dat", 4, "1\t5\r\n2\t7\t7"),
    ("lastfm-2k", "artists.dat", 4, "7"),
    ("lastfm-2k", "artists.dat", 4, b"7\t\xff\tx\ty"),
    ("douban-book", "ratings.dat", 3, "\n1\tx\t3"),
    ("amazon-beauty", "Beauty.txt", 3, "3"),
    ("amazon-beauty", "Beauty.txt", 3, "3 4 x"),
    ("anime-5k", "anime_history.dat", 4, "1\t5\t"),
    ("anime-5k", "anime_info.dat", 4, "x\tC"),
]


def write(folder: Path, name: str, appended: dict[str, bytes] | None = None) -> None:
    (folder / name).mkdir(parents=True)
    for file, text in GOOD[name].items():
        end = (appended or {}).get(file)
        body = text.encode() if end is None else text.encode().rstrip(b"\n") + b"\n" + end
        (folder / name / file).write_bytes(body)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_format_is_read(name: str, folder: Path) -> None:
    write(folder, name)
    data = load(name)
    pairs = [("1", "5"), ("1", "6"), ("2", "6")] if name == "amazon-beauty" else [("1", "5"), ("2", "6")]
    assert [*zip(data.user_ids[data.user], data.item_ids[data.item], strict=True)] == pairs
    times = {"ml-100k": [10, 20], "ml-1m": [10, 20], "amazon-beauty": [0, 1, 0]}.get(name)
    assert (None if data.time is None else data.time.tolist()) == times
    has_titles = any(file in ("u.item", "movies.dat", "artists.dat", "anime_info.dat") for file in GOOD[name])
    assert (data.titles is not None) == has_titles


@pytest.mark.parametrize(("name", "file", "line", "bad"), BAD)
def test_a_malformed_line_is_named(name: str, file: str, line: int, bad: str | bytes, folder: Path) -> None:
    write(folder, name, {file: bad if isinstance(bad, bytes) else bad.encode()})
    with pytest.raises(UserError, match=rf"^{re.escape(file)} line {line} is '.*'; expected ") as error:
        load(name)
    assert "\n" not in str(error.value)


def test_an_empty_file_is_named(folder: Path) -> None:
    write(folder, "filmtrust")
    (folder / "filmtrust" / "ratings.txt").write_text("\n")
    with pytest.raises(UserError, match=r"ratings\.txt is empty"):
        load("filmtrust")


def test_blank_lines_at_the_end_do_no_harm(folder: Path) -> None:
    write(folder, "filmtrust", {"ratings.txt": b"\n\r\n"})
    assert len(load("filmtrust")) == 2


def test_titles_of_the_real_files(raw_data: Path) -> None:
    def title(name: str, item: str) -> str:
        data = load(name)
        return data.title(data.item_ids.tolist().index(item))

    assert title("ml-100k", "543") == "Misérables, Les (1995)"
    assert title("ml-100k", "1128") == "Heidi Fleiss: Hollywood Madam (1995)"  # ends with a space in the file
    assert title("ml-1m", "73") == "Misérables, Les (1995)"
    assert title("lastfm-2k", "51") == "Duran Duran"
    assert title("anime-5k", "82") == "Fullmetal Alchemist: Brotherhood"
    assert "Tiger & Bunny" in load("anime-5k").titles.tolist()  # &amp; in the file
