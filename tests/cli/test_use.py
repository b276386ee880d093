"""From one's own file to lists for everyone, as it is typed."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest


def bought(users=3000, items=400, each=15):
    """Many users of a few planted tastes, in order of time."""
    draw = np.random.default_rng(0)
    taste = draw.integers(0, 8, users)
    item = np.stack([draw.permutation(items // 4)[:each] + taste[u] * (items - items // 4) // 7 for u in range(users)])
    return pl.DataFrame(
        {
            "customer": np.repeat(np.arange(users) + 10_000, each),
            "sku": [f"S-{i:04}" for i in item.ravel()],
            "name": [f"Thing, no {i}" for i in item.ravel()],
            "at": np.tile(np.arange(each), users) + 1_600_000_000,
        }
    )


def test_nothing_owned_in_the_lists_of_3000_users(tacit, tmp_path):
    orders = bought()
    orders.write_csv("orders.csv")
    assert tacit("data", "import", "orders.csv", "--name", "shop", "--title", "name")[0] == 0
    code, out, err = tacit("train", "--data", "shop", "--set", "ridge=1", "--set", "blend=0.3", "--out", "model")
    assert code == 0, err
    assert "trained on all 45,000 interactions of 3,000 users → model" in out
    assert "chosen next" not in out
    assert tacit("recommend", "model", "--all", "--out", "lists.parquet")[0] == 0
    lists = pl.read_parquet("lists.parquet")
    assert lists.height == 30_000
    assert lists["user"].n_unique() == 3000
    owned = set(orders.select(pl.col("customer").cast(pl.String), "sku").iter_rows())
    assert not owned & set(lists.select("user", "item").iter_rows())
    assert lists.unique(["user", "item"]).height == lists.height

    five = ["S-0001", "S-0002", "Thing, no 3", "S-0004", "S-0005"]
    code, out, _ = tacit("recommend", "model", "--items", ",".join(five), "-k", "7", "--json")
    assert code == 0
    found = [line["item"] for line in json.loads(out)]
    assert len(set(found)) == 7
    assert not set(found) & {f"S-{n:04}" for n in range(1, 6)}
    assert all(int(item[2:]) < 100 for item in found)  # the taste that the five are of
    code, out, _ = tacit("recommend", "model", "--items", "S-0001", "--items", "S-0002")
    assert code == 0
    assert "for somebody new, who has Thing, no 1; Thing, no 2" in out
    assert tacit("recommend", "model", "--user", "10000", "--out", "one.csv")[0] == 0
    assert pl.read_csv("one.csv").columns == ["item", "title", "score"]


@pytest.fixture
def run(tacit):
    assert tacit("run", "popularity", "--data", "demo", "--no-sanity", "--out", "run")[0] == 0
    return "run"


def test_an_evaluation_offers_what_it_withheld_only_when_asked(tacit, run):
    shown = {}
    for option in ((), ("--held-out",)):
        found = [tacit("recommend", run, "--user", str(u), "-k", "200", *option)[1] for u in (1, 2)]
        shown[option] = sum("chosen next" in text for text in found)
    assert shown[()] == 0
    assert shown["--held-out",] == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "recommend needs one of --user ID, --items ID,ID (for somebody new) or --all"),
        (("--user", "1", "--items", "2"), "recommend needs one of"),
        (("--all",), "--all writes lists for everyone into a file"),
        (("--all", "--out", "lists.xlsx"), "--out lists.xlsx has an unknown ending; known: .csv, .parquet"),
        (("--all", "--out", "run/run.json/lists.csv"), "cannot write"),
        (("--items", "nothing"), "unknown item 'nothing' in demo"),
        (("--items", "1,nothing"), "unknown item 'nothing' in demo"),
        (("--user", "nobody"), "no user 'nobody' in demo"),
    ],
)
def test_what_recommend_refuses(tacit, run, words, part):
    code, _, err = tacit("recommend", run, *words)
    assert code == 2
    assert part in err
    assert err.count("\n") == 1


def test_a_training_that_was_stopped_is_resumed_by_command(tacit):
    assert tacit("train", "fedmf", "--data", "demo", "--rounds", "2", "--threads", "1", "--out", "model")[0] == 0
    code, out, _ = tacit("resume", "model")
    assert code == 0
    assert "trained on all" in out
    assert tacit("recommend", "model", "--user", "1")[2] == ""
    Path("model/summary.json").unlink()  # as Ctrl-C leaves it
    code, _, err = tacit("recommend", "model", "--user", "1")
    assert code == 0
    assert err == "model is not finished: these lists are of its best round so far; tacit resume model\n"
    code, _, err = tacit("run", "tally", "--data", "demo", "--protocol", "everything")
    assert code == 2
    assert "tacit train trains on everything" in err
