"""A frame in, a frame out: what Python programs have becomes the same data whatever it is."""

import json
import sys
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import coo_array, csr_array, csr_matrix

import tacit
from tacit.data.frames import Data
from tacit.errors import UserError

COLUMNS = {
    "customer": ["b7", "a1", "b7", "a1", "c3"],
    "sku": ["007", "x", "x", "007", "y"],
    "at": [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 1, 4, 2, 5)],
    "name": ["Bond", "Ex", "Ex", "Bond", None],
    "junk": [[1], [2], [3], [4], [5]],
}
NAMES = {"user": "customer", "item": "sku", "time": "at", "title": "name"}


def rows(data):
    data = data.interactions
    return [*zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True)]


def test_frames_of_both_kinds_and_files_are_the_same_data(tmp_path):
    polars = pl.DataFrame(COLUMNS)
    polars.drop("junk").write_csv(tmp_path / "orders.csv")
    polars.write_parquet(tmp_path / "orders.parquet")
    made = [
        Data.of(source, **NAMES)
        for source in (
            polars, polars.lazy(), pd.DataFrame(COLUMNS), COLUMNS,
            tmp_path / "orders.csv", str(tmp_path / "orders.parquet"),
        )
    ]  # fmt: skip
    assert len({data.interactions.fingerprint() for data in made}) == 1
    assert rows(made[0]) == list(zip(COLUMNS["customer"], COLUMNS["sku"], strict=True))
    assert all(data.interactions.titles.tolist() == ["Bond", "Ex", "y"] for data in made)
    assert [data.kind for data in made] == ["polars", "polars", "pandas", "polars", "polars", "polars"]
    assert made[-1].name == "orders"
    assert made[0].interactions.time[0] == datetime(2026, 1, 3, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([10, 9]),
        pd.Series([10, 9], dtype="Int64"),
        pd.Series([10.0, 9.0]),
        pd.Series(["10", "9"]),
        pd.Series(["10", "9"], dtype="category"),
        pd.Series(["10", "9"], dtype="string"),
        pd.Series([10, "9"], dtype=object),
    ],
)
def test_pandas_ids_of_any_type(column):
    assert Data.of(pd.DataFrame({"user": column, "item": ["a", "b"]})).interactions.user_ids.tolist() == ["9", "10"]


@pytest.mark.parametrize(
    "times",
    [
        pd.to_datetime(["1970-01-02", "1970-01-03"]),
        pd.to_datetime(["1970-01-02", "1970-01-03"]).tz_localize("UTC"),
        pd.to_datetime(["1970-01-02 01:00", "1970-01-03 01:00"]).tz_localize("Europe/Berlin"),
        ["1970-01-02", "1970-01-03"],
        ["1970-01-02T00:00:00Z", "1970-01-03T00:00:00Z"],
        [86400, 172800],
    ],
)
def test_pandas_times(times):
    data = Data.of(pd.DataFrame({"user": [1, 2], "item": [1, 2], "time": times}))
    assert data.interactions.time.tolist() == [86400, 172800]


def test_missing_ids_in_pandas_are_counted_and_can_be_left_out():
    frame = pd.DataFrame({"user": [1.0, np.nan, 3.0], "item": ["a", "b", None]})
    with pytest.raises(
        UserError, match=r"the frame row 2: the user is empty \(2 such rows of 3\); skip_bad leaves such"
    ):
        Data.of(frame)
    data = Data.of(frame, skip_bad=True)
    assert rows(data) == [("1", "a")]
    assert data.skipped == (("row 2", "the user is empty"), ("row 3", "the item is empty"))
    assert "2 of 3 rows left out: the user is empty (1), the item is empty (1)" in data.notes


@pytest.mark.parametrize("kind", [csr_matrix, csr_array, coo_array])
def test_a_sparse_matrix_is_users_by_items(kind):
    matrix = kind(np.array([[0, 5, 0], [3, 0, 4]]))
    assert rows(Data.of(matrix)) == [("0", "1"), ("1", "0"), ("1", "2")]
    assert rows(Data.of(matrix, min_rating=4)) == [("0", "1"), ("1", "2")]


@pytest.mark.parametrize("source", [7, np.zeros((2, 2)), [("a", "b")], None])
def test_what_is_no_frame_is_refused(source):
    with pytest.raises(UserError, match=r"Data\.of takes a pandas or polars frame, a SciPy sparse matrix"):
        Data.of(source)


def test_options_are_arguments_in_what_python_is_told(tmp_path):
    with pytest.raises(
        UserError, match=r"unknown column of the frame 'user'; known: who; name it with user, or all of"
    ):
        Data.of(pl.DataFrame({"who": [1]}))
    with pytest.raises(UserError, match="there is no file"):
        Data.of(tmp_path / "none.csv")
    frame = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "user"])
    with pytest.raises(UserError, match="the frame has two columns of one name"):
        Data.of(frame)


def orders(kind):
    """Two tastes of ten items each, thirty customers."""
    draw = np.random.default_rng(0)
    lines = []
    for customer in range(30):
        for place, sku in enumerate(draw.permutation(10)[:6]):
            lines.append((f"c{customer}", f"{'AB'[customer % 2]}-{sku}", place, f"thing {'AB'[customer % 2]}{sku}"))
    return kind(dict(zip(("customer", "sku", "at", "name"), map(list, zip(*lines, strict=True)), strict=True)))


@pytest.mark.parametrize(("kind", "frame"), [(pd.DataFrame, pd.DataFrame), (pl.DataFrame, pl.DataFrame)])
def test_a_frame_in_a_frame_out(kind, frame, tmp_path):
    data = Data.of(orders(kind), **NAMES)
    summary = tacit.run("popularity", data=data, threads=1, out=tmp_path / "run")
    assert isinstance(tacit.recommend(summary.folder, "c3").frame(), frame)
    model = tacit.train("tally", data, threads=1)
    found = model.recommend("c4", 3).frame()
    assert isinstance(found, frame)
    assert list(found.columns) == ["item", "title", "score"]
    assert all(item.startswith("A-") for item in found["item"])
    assert isinstance(model.recommend_all(2), frame)
    assert len(model.recommend_all(2)) == 60
    assert isinstance(model.recommend(items=["A-1"]).frame("polars"), pl.DataFrame)
    model.save(tmp_path / "model")
    assert isinstance(tacit.load(tmp_path / "model").recommend("c4").frame(), frame)
    rows = tacit.compare("popularity", data=data, threads=1, out=str(tmp_path / "compared"))
    assert isinstance(rows.frame(), frame)
    assert list(rows.frame()["method"]) == ["popularity", "oracle"]
    assert rows.frame()["HR@10"][0] == rows[0].mean("HR@10")
    again = tacit.compare("popularity", data=data, threads=1, out=str(tmp_path / "compared"))
    assert again[0].runs == rows[0].runs


def test_other_data_are_not_taken_for_those_of_finished_runs(tmp_path):
    data = Data.of(orders(pl.DataFrame), **NAMES)
    tacit.compare("popularity", data=data, threads=1, out=tmp_path)
    fewer = Data.of(orders(pl.DataFrame).head(170), **NAMES)
    with pytest.raises(UserError, match="holds a run on other data; name another --out"):
        tacit.compare("popularity", data=fewer, threads=1, out=tmp_path)


def test_a_run_on_a_frame_is_resumed_from_its_folder(tmp_path):
    data = Data.of(orders(pl.DataFrame), **NAMES, name="shop")

    def stop(progress, plan):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacit.run("fedmf", data=data, rounds=2, threads=1, out=tmp_path / "run", watch=stop)
    summary = tacit.resume(tmp_path / "run")
    assert (summary.rounds, summary.data) == (2, "shop")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["fingerprint"] == data.interactions.fingerprint()


def test_pandas_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    data = Data.of(orders(pl.DataFrame), **NAMES)
    model = tacit.train("popularity", data, threads=1)
    assert isinstance(model.recommend_all(1), pl.DataFrame)
    with pytest.raises(UserError, match="pandas is not installed"):
        model.recommend("c1").frame("pandas")


def test_data_and_models_show_themselves_in_a_line():
    data = Data.of({"user": ["a", "a", "b", "b"], "item": ["x", "y", "x", "z"]}, name="shop")
    assert repr(data) == "Data('shop': 2 users, 3 items, 4 interactions)"
    assert repr(tacit.train("popularity", data)) == "Model('popularity' on 'shop': 2 users, 3 items)"
