import gzip
import uuid
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from tacit.data.imported import import_file
from tacit.data.interactions import Interactions
from tacit.data.sources import fetch, load, names
from tacit.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, text: str | bytes, name: str = "r.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(data: Interactions) -> list[tuple[str, str]]:
    return [*zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True)]


def times(data: Interactions) -> list[float]:
    assert data.time is not None
    return data.time.tolist()


def test_a_file_becomes_a_data_set(folder: Path, cache: Path) -> None:
    text = "user,item,rating,time,title\nbob,007,3,20,Bond\nann,x,4,10, \nbob,007,5,30,Other\nann,007,1,5,Third\n"
    data = import_file(write(folder, text), "mine")
    assert rows(data) == [("bob", "007"), ("ann", "x"), ("ann", "007")]
    assert times(data) == [20.0, 10.0, 5.0]
    assert [data.title(i) for i in range(2)] == ["Bond", "x"]
    assert (data.rows_read, data.duplicates) == (4, 1)
    again = load("mine")
    assert again.fingerprint() == data.fingerprint()
    assert again.rows_read == 4
    assert names()[-1] == "mine"
    assert fetch("mine") == cache / "imported" / "mine.npz"
    assert [path.name for path in (cache / "imported").iterdir()] == ["mine.npz"]


def test_columns_are_named_by_option(folder: Path) -> None:
    path = write(folder, "who,what,when,name,time\n1,2,30,X,junk\n")
    data = import_file(path, "mine", user="who", item="what", time="when", title="name")
    assert (rows(data), times(data), data.title(0)) == ([("1", "2")], [30.0], "X")


def test_a_column_may_say_what_device_a_user_has(folder: Path) -> None:
    text = "user,item,group\nbob,1,\nann,1,large\nbob,2, small \ncid,1,\nbob,3,small\n"
    data = import_file(write(folder, text), "mine")
    assert data.groups is not None
    assert dict(zip(data.user_ids, data.groups, strict=True)) == {"ann": "large", "bob": "small", "cid": ""}
    plain = import_file(write(folder, text.replace("group", "other")), "plain")
    assert plain.groups is None
    assert plain.fingerprint() != data.fingerprint()
    named = import_file(write(folder, text.replace("group", "other")), "named", group="other")
    assert named.groups is not None
    assert named.groups.tolist() == data.groups.tolist()
    most = data.at_least(2)
    assert most.groups is not None
    assert most.groups.tolist() == ["small"]
    with pytest.raises(UserError, match="line 3: user 'bob' is in the group 'b' and was in 'a' before"):
        import_file(write(folder, "user,item,group\nbob,1,a\nbob,2,b\n"), "torn")


def test_timestamp_is_a_time_too_and_none_is_none(folder: Path) -> None:
    assert times(import_file(write(folder, "user,item,timestamp\n1,2,9\n"), "a")) == [9.0]
    data = import_file(write(folder, "user,item\n1,2\n"), "b")
    assert data.time is None
    assert data.titles is None


def test_an_import_replaces_the_earlier_one(folder: Path) -> None:
    import_file(write(folder, "user,item\n1,2\n"), "mine")
    with pytest.raises(UserError, match="there is already a data set 'mine'; --replace replaces it"):
        import_file(write(folder, "user,item\n1,3\n"), "mine")
    assert load("mine").item_ids.tolist() == ["2"]
    import_file(write(folder, "user,item\n1,3\n"), "mine", replace=True)
    assert load("mine").item_ids.tolist() == ["3"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.tsv", b"user\titem\n1\ta,b\n2\tc\n"),
        ("r.CSV", b'\xef\xbb\xbfuser, item\r\n1,"a,b"\r\n\r\n 2 ,c\r\n\r\n'),
        ("r.csv.gz", gzip.compress(b'user,item\n1,"a,b"\n2,c\n', mtime=0)),
        ("r.tsv.gz", gzip.compress(b"user\titem\n1\ta,b\n2\tc", mtime=0)),
        ("my.ratings.csv", b',user,item,note\n0,1,"a,b",\n1,2,c,\n'),
    ],
)
def test_spellings_of_the_same_table(name: str, text: bytes, folder: Path) -> None:
    assert rows(import_file(write(folder, text, name), "mine")) == [("1", "a,b"), ("2", "c")]


def test_a_lone_quotation_mark_is_part_of_its_field(folder: Path) -> None:
    path = write(folder, 'user,item,title\n1,2,7" single\n2,3,x\n')
    assert import_file(path, "mine").title(0) == '7" single'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (["10", "2.5", "-1e3"], [10.0, 2.5, -1000.0]),
        (["1970-01-02", "1970-01-01", "1970-01-03"], [86400.0, 0.0, 172800.0]),
        (["1970-01-01T00:01", "1970-01-01 00:00:01", "1970-01-01T00:00:01.25"], [60.0, 1.0, 1.25]),
        (["1970-01-01T00:00:05Z", "1970-01-01 01:00:05+01:00", "1970-01-02"], [5.0, 5.0, 86400.0]),
    ],
)
def test_times_are_numbers_or_dates(text: list[str], expected: list[float], folder: Path) -> None:
    lines = "".join(f"1,{i},{time}\n" for i, time in enumerate(text))
    assert times(import_file(write(folder, "user,item,time\n" + lines), "mine")) == expected


def test_parquet_ids_of_any_type(folder: Path) -> None:
    keys = [uuid.UUID(int=5), uuid.UUID(int=4)]
    table = pl.DataFrame(
        {
            "number": [10, 9],
            "gaps": [2.0, 1.0],
            "text": ["b", "a"],
            "kind": pl.Series(["b", "a"], dtype=pl.Categorical),
            "uuid": [key.bytes for key in keys],
        }
    )
    table.write_parquet(folder / "r.parquet")

    def ids(column: str) -> list[str]:
        return import_file(folder / "r.parquet", "mine", user=column, item=column, replace=True).user_ids.tolist()

    assert ids("number") == ["9", "10"]
    assert ids("gaps") == ["1", "2"]
    assert ids("text") == ids("kind") == ["a", "b"]
    assert ids("uuid") == sorted(key.hex for key in keys)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, 1], [3.0, 1.0]),
        ([date(1970, 1, 2), date(1970, 1, 1)], [86400.0, 0.0]),
        ([datetime(1970, 1, 1, 0, 1), datetime(1970, 1, 1)], [60.0, 0.0]),
        ([datetime(1970, 1, 1, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)], [60.0, 0.0]),
        ([datetime(1970, 1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))] * 2, [0.0, 0.0]),
        (["1970-01-02", "1970-01-01"], [86400.0, 0.0]),
    ],
)
def test_parquet_times(values: list[object], expected: list[float], folder: Path) -> None:
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": values}).write_parquet(folder / "r.parquet")
    assert times(import_file(folder / "r.parquet", "mine")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item\n1,2\n,3\n", "r.csv line 3: the user is empty"),
        ('user,item\n1,2\n1,3\n4," "\n', "r.csv line 4: the item is empty"),
        ("user,item,time\n1,2,3\n1,3,soon\n", "r.csv line 3: the time 'soon' is neither a number nor a date"),
        ("user,item,time\n1,2,3\n1,3,\n", "r.csv line 3: the time '' is neither"),
        ("user,item,time\n1,2,3\n1,3,nan\n", "r.csv line 3: the time 'nan' is neither"),
        (
            "user,item,time\n1,2,2020-01-01\n1,3,2020-13-01\n",
            "r.csv line 3: the time '2020-13-01' is neither",
        ),
        ("user,item,time\n1,2,2020-01-01\n1,3,2020-01-02\n1,4,7\n", "r.csv line 4: the time '7' is neither"),
        ("user,item,time\n1,2,3\n1,3\n", "r.csv line 3: 2 fields, but the header has 3"),
        ("user,item,time\n1,2,3\n1,3,4,5\n", "r.csv line 3: 4 fields, but the header has 3"),
        ('user,item,title\n1,2,"a\nb"\n\n,3,x\n', "r.csv line 5: the user is empty"),
        ('user,item,title\n1,2,"a\nb"\n1,3\n', "r.csv line 4: 2 fields, but the header has 3"),
        ('user,item,title\n1,2,"a\nb"\n1,3,"x\n', "r.csv line 4: unexpected end of data"),
        ('user,item,note\n1,2,"a,b"\n1,3\n', "r.csv line 3: 2 fields, but the header has 3"),
        ("", "r.csv is empty"),
        ("\n\n", "r.csv is empty"),
        ("user,item\n", "r.csv holds no rows"),
        ("user,item,user\n1,2,3\n", "r.csv has two columns of one name; its header is user,item,user"),
        ("users,item\n1,2\n", "unknown column of r.csv 'user'; did you mean 'users'? known: item, users"),
    ],
)
def test_what_is_wrong_and_where(text: str | bytes, message: str, folder: Path, cache: Path) -> None:
    with pytest.raises(UserError) as error:
        import_file(write(folder, text), "mine")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"user": [1, None], "item": [1, 2]}, "r.parquet row 2: the user is empty"),
        ({"user": [1.0, float("nan")], "item": [1, 2]}, "r.parquet row 2: the user is empty"),
        ({"user": [1, 2], "item": [[1], [2]]}, "r.parquet row 1: the item is a List(Int64)"),
        ({"user": [1, 2], "item": [1, 2], "time": [1.0, None]}, "r.parquet row 2: the time '' is neither"),
        (
            {"user": [1, 2], "item": [1, 2], "time": [True, False]},
            "r.parquet row 1: the time 'True' is neither",
        ),
        ({"user": [], "item": []}, "r.parquet holds no rows"),
        ({"user": [1]}, "unknown column of r.parquet 'item'"),
    ],
)
def test_what_is_wrong_in_parquet(table: dict[str, list[object]], message: str, folder: Path) -> None:
    pl.DataFrame(table).write_parquet(folder / "r.parquet")
    with pytest.raises(UserError) as error:
        import_file(folder / "r.parquet", "mine")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.parquet", b"PAR1junk", "is not a readable Parquet file"),
        ("r.csv.gz", b"user,item\n1,2\n", "is not a readable gzip file"),
        ("r.csv.gz", gzip.compress(b"user,item\n1,2\n", mtime=0)[:-9], "is not a readable gzip file"),
        ("r.parquet", b"", "r.parquet is empty"),
    ],
)
def test_files_that_are_not_what_they_say(name: str, content: bytes, message: str, folder: Path) -> None:
    with pytest.raises(UserError) as error:
        import_file(write(folder, content, name), "mine")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(folder: Path) -> None:
    for path in (folder / "r.csv", folder):
        with pytest.raises(UserError, match="there is no file"):
            import_file(path, "mine")


@pytest.mark.parametrize("name", ["demo", "ml-100k"])
def test_built_in_names_are_taken(name: str, folder: Path) -> None:
    with pytest.raises(UserError, match=f"'{name}' is a built-in data set"):
        import_file(write(folder, "user,item\n1,2\n"), name)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\\b", "../x", ".hidden", "a b", "x\n"])
def test_names_that_could_leave_the_folder_are_refused(name: str, folder: Path) -> None:
    with pytest.raises(UserError, match="cannot name a data set"):
        import_file(write(folder, "user,item\n1,2\n"), name)


def test_the_wrong_line_is_found_deep_in_a_large_file(folder: Path) -> None:
    table = pl.DataFrame({"user": np.arange(50_000) % 977, "item": np.arange(50_000), "time": 7})
    lines = table.write_csv().splitlines()
    lines[40_000] = "5,,7"
    with pytest.raises(UserError, match=r"r\.csv line 40,001: the item is empty"):
        import_file(write(folder, "\n".join(lines)), "mine")
