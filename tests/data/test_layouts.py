"""Files as people have them: each imported with one command, and what was recognised is said and kept."""

import bz2
import gzip
import io
import lzma
import subprocess
import zipfile
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from tacit.cli.app import call
from tacit.data import imported
from tacit.data.folders import imported_file, skipped_file
from tacit.data.imported import import_file, load
from tacit.data.splits import split
from tacit.errors import UserError

CSV = "user,item,time\n1,a,10\n2,b,20\n"


def rows(data):
    return [*zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True)]


def take_in(tmp_path, content, file="r.csv", name="mine", **options):
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return import_file(path, name, replace=True, **options)


def drawn(n=4000, users=300, items=200, seed=0):
    """(user, item, rating, seconds) of n rows, as four columns."""
    draw = np.random.default_rng(seed)
    when = draw.integers(978_300_000, 1_046_000_000, n)
    return draw.integers(1, users + 1, n), draw.integers(1, items + 1, n), draw.integers(1, 6, n), when


@pytest.fixture
def command(monkeypatch, capsys):
    """A command that ends well, and what it printed."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["tacit", *map(str, words)])
        try:
            code = call()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        assert not code, said.err
        return said.out

    return run


# the four files that were refused


def test_ratings_dat_with_colons(tmp_path, command):
    user, item, rating, when = drawn()
    lines = (f"{u}::{i}::{r}::{t}\n" for u, i, r, t in zip(user, item, rating, when, strict=True))
    (tmp_path / "ratings.dat").write_text("".join(lines))
    said = command("data", "import", tmp_path / "ratings.dat", "--name", "mine")
    data = load("mine")
    assert (data.n_users, data.n_items, data.rows_read) == (len(set(user)), len(set(item)), 4000)
    assert data.time is not None
    assert set(data.time) <= set(when.astype(float))
    assert "'::' between fields, without a header: columns taken for user, item, rating, time" in said
    assert "'::' between fields" in command("data", "show", "mine")


def test_a_tab_file_without_a_header(tmp_path, command):
    user, item, rating, when = drawn(seed=1)
    lines = (f"{u}\t{i}\t{r}\t{t}\n" for u, i, r, t in zip(user, item, rating, when, strict=True))
    (tmp_path / "inter.dat").write_text("".join(lines))
    command("data", "import", tmp_path / "inter.dat", "--name", "mine", "--min-rating", 4)
    assert load("mine").rows_read == int((rating >= 4).sum())
    with pytest.raises(AssertionError, match="there is already a data set 'mine'"):
        command("data", "import", tmp_path / "inter.dat", "--name", "mine")


def test_a_quarter_without_a_customer(tmp_path, command):
    """An online shop: quoted descriptions, dates with the day or the month first, customers missing."""
    user, item, _, when = drawn(seed=2)
    lines = ["InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"]
    for n, (u, i, t) in enumerate(zip(user, item, when, strict=True)):
        date = datetime.fromtimestamp(int(t), UTC)
        customer = "" if n % 4 == 3 else f"{u + 12000}.0"
        written = f"{date.month}/{date.day}/{date.year} {date.hour}:{date.minute:02}"
        lines.append(f'{536365 + n},0{i},"MUG, ""no {i}""",6,{written},2.55,{customer},United Kingdom')
    path = tmp_path / "orders.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(
        AssertionError, match=r"orders.csv line 5: the user is empty \(1,000 such rows of 4,000\); --skip-"
    ):
        command("data", "import", path, "--name", "shop", "--title", "Description")
    said = command("data", "import", path, "--name", "shop", "--title", "Description", "--skip-bad")
    data = load("shop")
    assert data.rows_read == 3000
    assert data.n_users == len(set(user[np.arange(4000) % 4 != 3]))
    assert data.title(0) == f'MUG, "no {data.item_ids[0][1:]}"'
    assert all(i.startswith("0") for i in data.item_ids)
    assert not any("." in u for u in data.user_ids)
    kept = np.arange(4000) % 4 != 3
    first = np.flatnonzero(kept)[:5]
    assert data.time[:5].tolist() == (when[first] // 60 * 60).tolist()
    assert "user in 'CustomerID', item in 'StockCode', time in 'InvoiceDate'" in said
    assert "1,000 of 4,000 rows left out: the user is empty (1,000)" in said
    listed = pl.read_csv(skipped_file("shop"))
    assert listed.height == 1000
    assert listed.row(0) == ("line 5", "the user is empty")
    shown = command("data", "show", "shop")
    assert "with the month first" in shown
    assert str(skipped_file("shop")) in shown
    command("data", "remove", "shop")
    assert not imported_file("shop").exists()
    assert not skipped_file("shop").exists()


def test_ratings_without_a_header(tmp_path, command):
    user, item, rating, when = drawn(seed=3)
    lines = (f"A{u:05},B{i:07},{r}.0,{t}\n" for u, i, r, t in zip(user, item, rating, when, strict=True))
    (tmp_path / "ratings_Beauty.csv").write_text("".join(lines))
    command("data", "import", tmp_path / "ratings_Beauty.csv", "--name", "beauty", "--core", 5)
    data = load("beauty")
    assert np.bincount(data.user).min() >= 5
    assert np.bincount(data.item).min() >= 5
    assert data.user_ids[0].startswith("A0")


# layouts


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("user,item\n1,a\n2,b\n", "comma"),
        ("user;item\n1;a\n2;b\n", "semicolon"),
        ("user|item\n1|a\n2|b\n", "pipe"),
        ("user item\n1 a\n2 b\n", "space"),
        ("user\titem\n1\ta\n2\tb\n", "tab"),
        ("user::item\n1::a\n2::b\n", "'::'"),
        ("user;item;price\n1;a;2,5\n2;b;3,5\n", "semicolon"),
        ('user,item,note\n1,a,"x;y"\n2,b,"x;z"\n', "comma"),
        ("user,item\r\n1,a\r\n2,b\r\n", "comma"),
        ("user,item\r1,a\r2,b\r", "comma"),
        ("\n\nuser,item\n1,a\n\n2,b\n\n", "comma"),
        ('"user","item"\n"1","a"\n"2","b"', "comma"),
        ("1 a\n2 b", "space"),
    ],
)
def test_what_stands_between_fields(tmp_path, text, separator):
    data = take_in(tmp_path, text, "file.without.known.ending")
    assert rows(data) == [("1", "a"), ("2", "b")]
    assert any(f"text with {separator} between fields" in note for note in imported.done(load("mine")))


@pytest.mark.parametrize(
    ("given", "text"),
    [("#", "user#item\n1#a\n2#b\n"), ("tab", "user\titem\n1\ta\n2\tb\n"), ("\\t", "user\titem\n1\ta\n2\tb\n"),
     ("~~", "user~~item\n1~~a\n2~~b\n")],
)  # fmt: skip
def test_a_separator_may_be_given(tmp_path, given, text):
    assert rows(take_in(tmp_path, text, separator=given)) == [("1", "a"), ("2", "b")]


def test_columns_may_be_given(tmp_path):
    data = take_in(tmp_path, "x,1,5,a\ny,2,6,b\n", "r.dat", columns=("-", "user", "time", "item"))
    assert rows(data) == [("1", "a"), ("2", "b")]
    assert data.time.tolist() == [5, 6]
    data = take_in(tmp_path, "nr,stars\n1,5\n2,6\n", columns=("user", "item"))
    assert rows(data) == [("1", "5"), ("2", "6")]
    assert any("its header passed over" in note for note in imported.done(data))


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("1,2", "user, item"),
        ("1,2,4.5", "user, item, rating"),
        ("1,2,978300760", "user, item, time"),
        ("1,2,2020-01-01", "user, item, time"),
        ("1,2,5,978300760", "user, item, rating, time"),
        ("1,2,978300760,5", "user, item, time, rating"),
        ("u1,i2,5,2020-01-01 10:00:00", "user, item, rating, time"),
    ],
)
def test_columns_without_a_header_are_told_by_what_is_in_them(tmp_path, line, columns):
    data = take_in(tmp_path, f"{line}\n{line}\n")
    assert len(data) == 1
    assert any(f"columns taken for {columns}" in note for note in imported.done(data))


def test_columns_are_known_by_their_usual_names(tmp_path):
    data = take_in(tmp_path, "Customer ID,movieId,timestamp,Title\n7,9,5,Heat\n")
    assert (rows(data), data.time.tolist(), data.title(0)) == ([("7", "9")], [5.0], "Heat")
    assert "columns: user in 'Customer ID', item in 'movieId'" in " ".join(imported.done(data))


@pytest.mark.parametrize("pack", ["gz", "bz2", "xz", "zip", "zst"])
@pytest.mark.parametrize("ending", ["csv.{}", "{}", "bin"])
def test_compressed_files_whatever_they_are_called(tmp_path, pack, ending):
    if pack == "zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("inside/r.csv", CSV)
            archive.writestr("__MACOSX/._r.csv", "junk")
        content = out.getvalue()
    elif pack == "zst":
        content = subprocess.run(["zstd", "-q", "-c"], input=CSV.encode(), capture_output=True, check=True).stdout
    else:
        content = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[pack](CSV.encode())
    data = take_in(tmp_path, content, "r." + ending.format(pack))
    assert rows(data) == [("1", "a"), ("2", "b")]
    assert data.time.tolist() == [10, 20]


def test_parquet_and_arrow_whatever_they_are_called(tmp_path):
    table = pl.DataFrame({"user": ["01", "2"], "item": ["a", "b"]})
    for write in (table.write_parquet, table.write_ipc):
        out = io.BytesIO()
        write(out)
        assert rows(take_in(tmp_path, out.getvalue(), "table.bin")) == [("01", "a"), ("2", "b")]
        assert rows(take_in(tmp_path, gzip.compress(out.getvalue()), "table.gz")) == [("01", "a"), ("2", "b")]


# letters


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_letters_of_any_encoding(tmp_path, encoding):
    data = take_in(tmp_path, "user,item,title\nJosé,Æ1,Ödipus\nß,Æ1,\n".encode(encoding))
    assert sorted(data.user_ids.tolist()) == ["José", "ß"]
    assert data.title(0) == "Ödipus"
    said = " ".join(imported.done(data))
    assert ("read as Latin-1" in said) == (encoding == "latin-1")


def test_unicode_quoted_newlines_and_brackets_come_through(tmp_path):
    data = take_in(tmp_path, 'user,item,title\n"[red]","日本","two\nlines"\n"a,b","🎬","[/x]"\n')
    assert rows(data) == [("[red]", "日本"), ("a,b", "🎬")]
    assert sorted(data.titles.tolist()) == ["[/x]", "two\nlines"]
    assert load("mine").fingerprint() == data.fingerprint()


def test_leading_zeros_are_kept(tmp_path):
    data = take_in(tmp_path, "user,item\n007,00\n7,0\n")
    assert rows(data) == [("007", "00"), ("7", "0")]
    assert len({*data.user_ids.tolist()}) == 2


def test_numbers_are_in_the_order_of_numbers(tmp_path):
    assert take_in(tmp_path, "user,item\n10,b\n9,a\n2,c\n").user_ids.tolist() == ["2", "9", "10"]
    assert take_in(tmp_path, "user,item\n10,b\nx,a\n2,c\n").user_ids.tolist() == ["10", "2", "x"]


# times


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        (["31/12/1970 08:26", "01/01/1971 00:00"], [364 * 86400 + 8 * 3600 + 26 * 60, 365 * 86400], "day first"),
        (["12/31/70 8:26", "1/1/71 0:00"], [364 * 86400 + 8 * 3600 + 26 * 60, 365 * 86400], "month first"),
        (["12/31/1970 8:26 PM", "1/1/1971 12:00 AM"], [364 * 86400 + 20 * 3600 + 26 * 60, 365 * 86400], "month first"),
        (["01.02.1970", "02.02.1970"], [31 * 86400, 32 * 86400], "day first"),
        (["1970/01/02", "1970/01/03"], [86400, 2 * 86400], "%Y/%m/%d"),
        (["02 Jan 1970", "03 Jan 1970"], [86400, 2 * 86400], "%d %b %Y"),
        (["01 2, 1970", "01 3, 1970"], [86400, 2 * 86400], "%m %d, %Y"),
        (["1577836800000", "1577836801500"], [1577836800, 1577836801.5], "milliseconds"),
        (["1577836800000000", "1577836801500000"], [1577836800, 1577836801.5], "microseconds"),
        (["1577836800", "1577836801.5"], [1577836800, 1577836801.5], ""),
        (["1970-01-02 00:00:00", "1970-01-02T01:00:00+01:00"], [86400, 86400], ""),
    ],
)
def test_times_as_people_write_them(tmp_path, text, expected, said):
    body = "".join(f'1,{n},"{time}"\n' for n, time in enumerate(text))
    data = take_in(tmp_path, "user,item,time\n" + body)
    assert data.time.tolist() == expected
    assert said in " ".join(imported.done(data))


def test_a_format_of_times_may_be_given(tmp_path):
    body = "user,item,time\n1,2,01/02/1970\n1,3,02/02/1970\n"
    assert take_in(tmp_path, body, time_format="%d/%m/%Y").time.tolist() == [31 * 86400, 32 * 86400]
    assert take_in(tmp_path, body, time_format="%m/%d/%Y").time.tolist() == [86400, 32 * 86400]
    zoned = "user,item,time\n1,2,1970-01-01 01:00 +0100\n"
    assert take_in(tmp_path, zoned, time_format="%Y-%m-%d %H:%M %z").time.tolist() == [0]


# what is left out


def test_bad_rows_are_left_out_and_listed_with_their_lines(tmp_path):
    text = 'user,item,time\n1,a,5\n,b,6\n"2\n3",c,7\n4,d\n5,e,soon\n6,,8\n7,f,9\n'
    data = take_in(tmp_path, text, skip_bad=True)
    assert rows(data) == [("1", "a"), ("2\n3", "c"), ("7", "f")]
    assert pl.read_csv(skipped_file("mine")).rows() == [
        ("line 6", "2 fields, but the header has 3"),
        ("line 3", "the user is empty"),
        ("line 7", "the time 'soon' is neither a number nor a date such as 2026-01-31T12:00:00"),
        ("line 8", "the item is empty"),
    ]
    assert "4 of 7 rows left out" in " ".join(imported.done(data))
    take_in(tmp_path, CSV, skip_bad=True)
    assert not skipped_file("mine").exists()


def test_ratings_below_are_left_out(tmp_path):
    data = take_in(tmp_path, "user,item,stars\n1,a,5\n1,b,3\n2,c,4\n2,d,3.5\n", min_rating=4)
    assert rows(data) == [("1", "a"), ("2", "c")]
    assert "2 rows with a rating below 4 left out" in imported.done(data)
    assert rows(take_in(tmp_path, "user;item;rating\n1;a;3,5\n1;b;4,5\n", min_rating=4)) == [("1", "b")]


def test_a_core_is_what_holds_together(tmp_path):
    """A square of 3 by 3, and a tail that falls off link by link."""
    pairs = [(u, i) for u in "abc" for i in "xyz"] + [("d", "x"), ("d", "w"), ("e", "w"), ("e", "v"), ("f", "v")]
    text = "user,item\n" + "".join(f"{u},{i}\n" for u, i in pairs)
    for core in (2, 3):
        data = take_in(tmp_path, text, core=core)
        assert sorted(rows(data)) == sorted(pairs[:9])
        assert f"{core}-core: 3 users, 2 items and 5 interactions left out" in imported.done(data)
    assert len(take_in(tmp_path, text, core=1)) == 14


def test_what_was_done_stays_with_the_data_set(tmp_path):
    take_in(tmp_path, CSV)
    assert imported.done(load("mine"))[0] == "from r.csv"


def test_data_sets_of_earlier_versions_are_read(tmp_path):
    path = imported_file("old").with_suffix(".parquet")
    path.parent.mkdir(parents=True)
    table = {"user": ["bob", "ann", "bob"], "item": ["007", "x", "007"], "time": [20.0, 10.0, 30.0]}
    pl.DataFrame(table).write_parquet(path)
    data = load("old")
    assert rows(data) == [("bob", "007"), ("ann", "x")]
    assert data.rows_read == 3
    imported.remove("old")
    assert not path.exists()


def test_equal_times_are_said_and_what_strict_does_then(tmp_path, command):
    lines = "".join(f"{u},{u * 7 + n},{u}\n" for u in range(30) for n in range(8))
    (tmp_path / "r.csv").write_text("user,item,time\n" + lines)
    said = command("data", "import", tmp_path / "r.csv", "--name", "mine")
    assert "100% of neighbouring interactions share a time stamp" in said
    assert "takes them in a seeded random order" in said
    data = load("mine")
    assert split(data, "strict", 0).test.values.tolist() != split(data, "strict", 1).test.values.tolist()


def test_where_to_get_data_sets_is_said(command, monkeypatch):
    monkeypatch.delenv("TACIT_DATA", raising=False)
    said = command("data", "list")
    assert "filmtrust: get ratings.txt from https://" in said
    assert "ml-100k: tacit data fetch ml-100k" in said
    with pytest.raises(AssertionError, match="filmtrust is not on this machine and has no download; get it from https"):
        command("data", "show", "filmtrust")


def test_a_column_name_that_is_wanted_and_missing_names_the_nearest(tmp_path):
    with pytest.raises(UserError, match="'customr'; did you mean 'customer'"):
        take_in(tmp_path, "customer,item\n1,2\n", user="customr")
