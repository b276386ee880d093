"""What people try to import and cannot: one sentence each, an exit code, no traceback, and nothing lost."""

import bz2
import gzip
import io
import lzma
import resource
import sqlite3
import sys
import zipfile

import polars as pl
import pytest

from tacit.cli.app import call
from tacit.data.imported import import_file, load

GOOD = b"user,item,time\n1,2,3\n2,3,4\n"


def zipped(*files, damage=None):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    data = out.getvalue()
    return damage(data) if damage else data


def locked(data):
    """Say of every member that it needs a password."""
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + place
        data = data[:at] + b"\x01\x00" + data[at + 2 :]
    return data


def parquet(**columns):
    out = io.BytesIO()
    pl.DataFrame(columns).write_parquet(out)
    return out.getvalue()


def arrow():
    out = io.BytesIO()
    pl.DataFrame({"user": [1], "item": [2]}).write_ipc(out)
    return out.getvalue()


def sqlite(tmp_path, *statements):
    path = tmp_path / "made.db"
    with sqlite3.connect(path) as base:
        for statement in statements:
            base.execute(statement)
    base.close()
    return path.read_bytes()


def zst(text):
    out = io.BytesIO()
    pl.DataFrame({"a": [text]}).write_csv(out, compression="zstd")
    return out.getvalue()


# what it is: (file name, content, options, part of the sentence)
FILES = {
    "an empty file": ("r.csv", b"", "", "r.csv is empty"),
    "newlines alone": ("r.csv", b"\n\r\n\n", "", "r.csv is empty"),
    "a byte order mark alone": ("r.csv", b"\xef\xbb\xbf", "", "r.csv is empty"),
    "a header alone": ("r.csv", b"user,item\n", "", "r.csv holds no rows"),
    "no user": ("r.csv", b"user,item\n1,2\n,3\n", "", "line 3: the user is empty; --skip-bad"),
    "no users in many rows": ("r.csv", b"user,item\n,2\n1,2\n,3\n", "", "line 2: the user is empty (2 such rows of 3)"),
    "no item": ("r.csv", b"user,item\n1,2\n1,\n", "", "line 3: the item is empty"),
    "a blank item": ("r.csv", b'user,item\n1,2\n4," "\n', "", "line 3: the item is empty"),
    "a user that is NULL": ("r.csv", b"user,item\n1,2\nNULL,3\n", "", "line 3: the user is empty"),
    "a user that is nan": ("r.csv", b"user,item\n1,2\nnan,3\n", "", "line 3: the user is empty"),
    "a time that is a word": ("r.csv", b"user,item,time\n1,2,3\n1,3,soon\n", "", "line 3: the time 'soon' is neither"),
    "no time": ("r.csv", b"user,item,time\n1,2,3\n1,3,\n", "", "line 3: the time '' is neither"),
    "a time that is not a number": ("r.csv", b"user,item,time\n1,2,3\n1,3,nan\n", "", "line 3: the time 'nan' is"),
    "an endless time": ("r.csv", b"user,item,time\n1,2,3\n1,3,inf\n", "", "line 3: the time 'inf' is neither"),
    "a thirteenth month": ("r.csv", b"user,item,time\n1,2,2020-01-01\n1,3,2020-13-01\n", "", "the time '2020-13-01'"),
    "a 31st of June": ("r.csv", b"user,item,time\n1,2,30/06/2020\n1,3,31/06/2020\n", "", "the time '31/06/2020'"),
    "dates and numbers": ("r.csv", b"user,item,time\n1,2,2020-01-01\n1,3,2020-01-02\n1,4,7\n", "", "the time '7' is"),
    "dates in an order that does not show": (
        "r.csv", b"user,item,time\n1,2,01/02/2020\n1,3,03/04/2020\n", "", "may have the day or the month first",
    ),
    "a format that is not that of the times": (
        "r.csv", b"user,item,time\n1,2,2020-01-01\n", "--time-format %d/%m/%Y", "the time '2020-01-01' does not",
    ),
    "a format that is none": ("r.csv", GOOD, "--time-format %Q%E%!", "the time '3' does not match --time-format"),
    "too few fields": ("r.csv", b"user,item,time\n1,2,3\n1,3\n", "", "line 3: 2 fields, but the header has 3; --skip"),
    "one field": ("r.csv", b"user,item,time\n1,2,3\n1\n", "", "line 3: 1 field, but the header has 3"),
    "too many fields": ("r.csv", b"user,item\n1,2\n1,3,4\n", "", "line 3: 3 fields, but the header has 2"),
    "too few fields without a header": ("r.dat", b"1::2::3::978300760\n1::2\n", "", "line 2: 2 fields, but the others"),
    "a quotation mark that is not closed": ("r.csv", b'user,item\n1,2\n1,"3\n', "", "line 3: unexpected end of data"),
    "a line after a quoted newline": ("r.csv", b'user,item,title\n1,2,"a\nb"\n\n,3,x\n', "", "line 5: the user is"),
    "two columns of one name": ("r.csv", b"user,item,user\n1,2,3\n", "", "r.csv has two columns of one name"),
    "a column that is not there": ("r.csv", GOOD, "--user customer", "unknown column of r.csv 'customer'"),
    "a title that is not there": ("r.csv", GOOD, "--title name", "unknown column of r.csv 'name'"),
    "a time that is not there": ("r.csv", GOOD, "--time when", "unknown column of r.csv 'when'"),
    "nobody": ("r.csv", b"who,item\n1,2\n", "", "column of r.csv 'user'; known: item, who; name it with --user"),
    "nothing": ("r.csv", b"user,what\n1,2\n", "", "column of r.csv 'item'; known: user, what; name it with --item"),
    "text without a header": ("r.csv", b"ann,oak\nbob,elm\n", "", "or all of them with --columns if the first line"),
    "a single column": ("r.csv", b"hello\nworld\n", "", "r.csv: no separator was found in 'hello'"),
    "another separator than that given": ("r.csv", GOOD, "--separator ;", "unknown column of r.csv 'user'"),
    "a separator that is nothing": ("r.csv", GOOD, "--separator=", "--separator is empty"),
    "more columns than there are": ("r.csv", GOOD, "--columns user,item,a,b", "has 3 columns, and --columns names 4"),
    "a column named twice": ("r.csv", GOOD, "--columns user,item,user", "--columns names 'user' twice"),
    "columns without items": ("r.csv", b"1,2\n", "--columns user,what", "unknown column of r.csv 'item'"),
    "six columns without a header": ("r.dat", b"1,2,3,4,5,6\n1,2,3,4,5,6\n", "", "its 6 columns are not clear"),
    "a third column of words": ("r.dat", b"1,2,good\n1,3,bad\n", "", "its 3 columns are not clear; name them"),
    "ratings that are not there": ("r.csv", GOOD, "--min-rating 4", "has no column of ratings for --min-rating"),
    "a rating that is a word": ("r.csv", b"user,item,rating\n1,2,5\n1,3,ok\n", "--min-rating 4", "the rating is not a"),
    "ratings that are all low": ("r.csv", b"user,item,rating\n1,2,1\n", "--min-rating 4", "a rating of 4 or more"),
    "a core that is empty": ("r.csv", GOOD, "--core 5", "nothing of mine is left of its 5-core"),
    "a core below nothing": ("r.csv", GOOD, "--core=-1", "--core -1 is invalid"),
    "bad rows alone": ("r.csv", b"user,item\n,2\n,3\n", "--skip-bad", "no row of r.csv is left"),
    "a user in two groups": ("r.csv", b"user,item,group\nbob,1,a\nbob,2,b\n", "", "user 'bob' is in the group 'b'"),
    "zero bytes": ("r.csv", b"user,item\n1,\0\n", "", "r.csv is not a text file"),
    "UTF-16 cut short": ("r.csv", "user,item\n1,2\n".encode("utf-16")[:-1], "", "begins as UTF-16 and is cut short"),
    "a PDF": ("r.csv", b"%PDF-1.7\n1,2", "", "r.csv is a PDF; save the table in it as CSV"),
    "a picture": ("r.csv", b"\x89PNG\r\n\x1a\n", "", "r.csv is a picture"),
    "an Excel workbook": ("r.xlsx", zipped(("[Content_Types].xml", b"<a/>"), ("b", b"")), "", "an Excel workbook or"),
    "an old Excel workbook": ("r.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "", "r.xls is an Excel workbook"),
    "JSON": ("r.json", b'{"user": 1, "item": 2}\n', "", "r.json looks like JSON"),
    "a web page": ("r.csv", b"<!doctype html><p>a, b</p>\n", "", "r.csv looks like a web page"),
    "gzip cut short": ("r.csv.gz", gzip.compress(GOOD)[:-9], "", "r.csv.gz is not a readable gzip file"),
    "gzip that is none": ("r.csv.gz", GOOD, "", "r.csv.gz is not a readable gzip file"),
    "bzip2 cut short": ("r.csv.bz2", bz2.compress(GOOD)[:-9], "", "r.csv.bz2 is not a readable bzip2 file"),
    "xz cut short": ("r.csv.xz", lzma.compress(GOOD)[:-9], "", "r.csv.xz is not a readable xz file"),
    "zstd that is damaged": ("r.csv.zst", zst("user,item")[:6] + b"junk", "", "r.csv.zst is not a readable zstd file"),
    "a zip of two files": ("r.zip", zipped(("a.csv", GOOD), ("b.csv", GOOD)), "", "r.zip holds 2 files (a.csv, b.csv)"),
    "a zip of nothing": ("r.zip", zipped(), "", "r.zip holds 0 files (none)"),
    "a zip that is damaged": ("r.zip", zipped(("a.csv", GOOD), damage=lambda d: d[:-9]), "", "not a readable zip file"),
    "a zip with a password": ("r.zip", zipped(("a.csv", GOOD), damage=locked), "", "r.zip is not a readable zip file"),
    "Parquet that is none": ("r.parquet", b"PAR1junk", "", "r.parquet is not a readable Parquet file"),
    "an empty Parquet file": ("r.parquet", b"", "", "r.parquet is empty"),
    "Parquet without items": ("r.parquet", parquet(user=[1]), "", "unknown column of r.parquet 'item'"),
    "Parquet without rows": ("r.parquet", parquet(user=[], item=[]), "", "r.parquet holds no rows"),
    "Parquet without a user": ("r.parquet", parquet(user=[1, None], item=[1, 2]), "", "row 2: the user is empty"),
    "Parquet of lists": ("r.parquet", parquet(user=[1], item=[[1]]), "", "row 1: the item is a List(Int64)"),
    "Parquet of yes and no": ("r.parquet", parquet(user=[1], item=[1], time=[True]), "", "the time 'True' is neither"),
    "Arrow cut short": ("r.feather", arrow()[:40], "", "r.feather is not a readable Arrow file"),
    "SQLite that is damaged": ("r.db", b"SQLite format 3\0" + b"x" * 200, "", "r.db is not a readable SQLite file"),
}  # fmt: skip


def tacit(monkeypatch, capsys, *words):
    """A command as it is typed: exit code, standard output, and the sentence on standard error."""
    monkeypatch.setattr(sys, "argv", ["tacit", *map(str, words)])
    try:
        code = call()
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


def refused(monkeypatch, capsys, part, *words):
    code, printed, sentence = tacit(monkeypatch, capsys, *words)
    assert code == 2
    assert printed == ""
    assert sentence.startswith("tacit: ")
    assert sentence.count("\n") == 1, sentence
    assert part in sentence
    assert "Traceback" not in sentence


@pytest.fixture
def before(tmp_path):
    """A data set that is there already."""
    (tmp_path / "before.csv").write_bytes(GOOD)
    return import_file(tmp_path / "before.csv", "mine").fingerprint()


@pytest.mark.parametrize("what", FILES)
def test_one_sentence_and_nothing_lost(what, tmp_path, monkeypatch, capsys, before):
    name, content, options, part = FILES[what]
    path = tmp_path / name
    path.write_bytes(content)
    refused(monkeypatch, capsys, part, "data", "import", path, "--name", "mine", "--replace", *options.split())
    assert load("mine").fingerprint() == before
    assert path.read_bytes() == content
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.skipped.csv"))


def test_there_are_sixty_kinds_and_more():
    assert len(FILES) >= 60


def test_databases_of_no_table_and_of_several(tmp_path, monkeypatch, capsys):
    for statements, part in (
        (("create table a (user)", "drop table a"), "r.db has the tables none; call the one"),
        (("create table a (user, item)", "create table b (user, item)"), "r.db has the tables a, b; call the one"),
    ):
        (tmp_path / "r.db").write_bytes(sqlite(tmp_path, *statements))
        refused(monkeypatch, capsys, part, "data", "import", tmp_path / "r.db", "--name", "mine")
        (tmp_path / "made.db").unlink()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mine", "there is already a data set 'mine'; --replace"),
        ("demo", "'demo' is a built-in data set"),
        ("a/b", "'a/b' cannot name a data set"),
        ("..", "'..' cannot name a data set"),
        ("", "'' cannot name a data set"),
    ],
)
def test_names_that_are_taken_or_none(name, part, tmp_path, monkeypatch, capsys, before):
    refused(monkeypatch, capsys, part, "data", "import", tmp_path / "before.csv", f"--name={name}")


def test_places_that_hold_no_file(tmp_path, monkeypatch, capsys):
    for path, part in (
        (tmp_path, "it is a folder; name the file in it"),
        (tmp_path / "none.csv", "there is no file"),
        ("/proc/self/mem", "/proc/self/mem cannot be read"),
    ):
        refused(monkeypatch, capsys, part, "data", "import", path, "--name", "mine")


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "r.csv").write_bytes(GOOD)
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "r.csv" / "below"))
    refused(monkeypatch, capsys, "set TACIT_CACHE to a folder", "data", "import", tmp_path / "r.csv", "--name", "mine")


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, capsys, before):
    (tmp_path / "r.csv").write_text("user,item\n" + "".join(f"{n},{n}\n" for n in range(50_000)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        words = ("data", "import", tmp_path / "r.csv", "--name", "mine", "--replace")
        refused(monkeypatch, capsys, "cannot write", *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load("mine").fingerprint() == before
    assert not list(tmp_path.rglob("*.part"))


def test_what_cannot_be_removed(monkeypatch, capsys):
    refused(monkeypatch, capsys, "unknown imported data set 'mine'", "data", "remove", "mine")
    refused(monkeypatch, capsys, "only what was imported can be removed", "data", "remove", "ml-100k")
