import pytest

import tacit
from tacit.runs.model import load
from tacit.runs.why import why


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("why")
    options = {"data": "demo", "threads": 1}
    return {
        "tally": tacit.run("tally", out=place / "tally", **options).folder,
        "some": tacit.run("tally", out=place / "some", settings={"inputs": 90}, **options).folder,
        "ease": tacit.run("ease", out=place / "ease", **options).folder,
        "gfcf": tacit.run("gfcf", out=place / "gfcf", **options).folder,
        "fedmf": tacit.run("fedmf", out=place / "fedmf", rounds=3, **options).folder,
        "popularity": tacit.run("popularity", out=place / "popularity", **options).folder,
    }


@pytest.mark.parametrize("method", ["tally", "some", "ease", "gfcf"])
def test_exact_reasons_add_up_to_the_score(runs, method):
    model = load(runs[method])
    for user, had in (("17", ()), (None, model.items[3:9])):
        found = model.recommend(user, 5, items=None if user else had)
        told = why(model, [line.item for line in found], user, had, most=10_000)
        owned = set(had) or set(model.owned(user))
        assert {r.item for reasons in told.reasons for r in reasons} <= owned
        assert told.kind == "exact"
        everything = why_all(model, found, user, had)
        for line, total in zip(found, everything, strict=True):
            assert total == pytest.approx(line.score, abs=1e-4)
        assert all(
            r.share > 0 and r.item != line.item for line, rs in zip(found, told.reasons, strict=True) for r in rs
        )


def why_all(model, found, user, had):
    """The sum of all that items add, also of those that speak against it."""
    from tacit.runs.why import _added

    wanted = [model.item_index(line.item) for line in found]
    if user is not None:
        return _added(model, model.run.fleet, model.server, model.user_index(user), wanted)[1].sum(0).tolist()
    import numpy as np

    known = np.array([model.item_index(item) for item in had])
    return _added(model, model.newcomer(known), model.for_newcomers, 0, wanted)[1].sum(0).tolist()


def test_others_name_the_nearest_known_items(runs):
    model = load(runs["fedmf"])
    found = model.recommend("17", 4)
    told = why(model, [line.item for line in found], "17")
    owned = set(model.owned("17"))
    assert told.kind == "nearest"
    assert all(r.item in owned and 0 < r.share <= 1 for reasons in told.reasons for r in reasons)
    assert all(
        [r.share for r in reasons] == sorted((r.share for r in reasons), reverse=True) for reasons in told.reasons
    )


def test_what_has_no_table_gives_no_reasons(runs):
    assert why(load(runs["popularity"]), ["5"], "17").kind == "none"
