import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from tacit.methods import tally_small as module
from tacit.methods.tally_small import MAGIC, Whole, cut, decode, load

M = 60


def whole(seed=0, rows=2 * M, share=0.7, own=None):
    rng = np.random.default_rng(seed)
    matrix = (rng.normal(size=(rows, M)) ** 3).astype(np.float32)
    return Whole(matrix, rng.uniform(0, 50, rows), np.resize(np.arange(M) if own is None else own, rows), share)


def parts():
    return {"B": whole(), "E": whole(1, M, 0.3)}


def made(size=1e6, given=None, inputs=None, blend=0.3):
    return decode(cut(given or parts(), size, (1, 3), (1.0, 0.5), blend, inputs))


def standardised(x):
    return (x - x.mean()) / x.std(ddof=1)


def test_scores_are_those_of_the_matrices_written_out():
    """With room for every entry, what is lost is the rounding to 127 steps a row."""
    model, given, items = made(), parts(), [7, 3, 50, 21]
    h = given["B"].matrix[21] + given["B"].matrix[M + 21] + 0.5 * given["B"].matrix[M + 50]
    h = h + 0.25 * given["B"].matrix[M + 3]
    x = given["E"].matrix[items].sum(0)
    rest = np.setdiff1d(np.arange(M), items)
    expected = (0.7 * standardised(h) + 0.3 * standardised(x))[rest]
    found = model.scores(items)[rest]
    assert np.corrcoef(found, expected)[0, 1] > 0.999
    h, x = (model.parts[n].dense() for n in ("B", "E"))
    exact = 0.7 * standardised(h[21] + h[M + 21] + 0.5 * h[M + 50] + 0.25 * h[M + 3])
    np.testing.assert_allclose(model.scores(items), exact + 0.3 * standardised(x[items].sum(0)), atol=1e-4)


def test_no_entry_is_off_by_more_than_half_a_step():
    model, given = made(4000), parts()
    for name, part in model.parts.items():
        rest = given[name].matrix.astype(np.float64) - part.base
        rest -= rest.mean(1, keepdims=True)
        off = part.dense() - part.base - rest
        off[np.arange(len(off)), given[name].own] = 0  # its own score is never looked at
        assert (np.abs(off).max(1) <= 0.5 * part.step + 1e-4).all()
        assert (np.abs(off).max(1) > 0.2 * part.step).mean() > 0.9


def test_what_is_kept_is_at_most_127_steps_and_the_own_item_is_left_out():
    for name, part in made().parts.items():
        row = np.repeat(np.arange(len(part.step)), np.diff(part.start))
        assert np.abs(part.value.astype(int)).max() <= 127
        assert (part.value != 0).all()
        assert not (part.column == parts()[name].own[row]).any()


@pytest.mark.parametrize("size", [3000, 6000, 12000])
def test_a_model_is_no_larger_than_asked_for_and_uses_the_room(size):
    blob = cut(parts(), size, (1, 3), (1.0, 0.5), 0.3)
    assert 0.8 * size < len(blob) <= size


def test_a_size_told_from_too_few_rows_is_corrected(monkeypatch):
    monkeypatch.setattr(module, "TRIED", 2)
    given = parts()
    for one in given.values():
        quiet = np.arange(len(one.used)) % (len(one.used) // 2) == len(one.used) // 4
        one.matrix[quiet] *= 0.01  # the rows that are looked at
    assert len(cut(given, 6000, (1, 3), (1.0, 0.5), 0.3)) <= 6000


def test_rows_in_use_are_finer_and_an_idle_part_is_left_out():
    given = parts()
    model = made(4000)
    used = given["B"].used
    assert np.corrcoef(np.log(model.parts["B"].step), np.log(used + 0.1 * used.mean()))[0, 1] < -0.9
    assert set(made(given={"B": whole(share=1.0), "E": whole(1, M, 0.0)}, blend=0.0).parts) == {"B"}


def test_items_that_are_no_inputs_have_no_rows():
    inputs = np.array([2, 5, 11, 40])
    given = {"B": whole(rows=8, own=inputs), "E": whole(1, 4, 0.3, own=inputs)}
    model = made(given=given, inputs=inputs)
    B, E = model.parts["B"].dense(), model.parts["E"].dense()
    h = B[3] + B[7] + 0.25 * B[6]  # of 11, 9, 40: the last, and the last three at 1, 0.5 (no row) and 0.25
    expected = 0.7 * standardised(h) + 0.3 * standardised(E[2] + E[3])
    np.testing.assert_allclose(model.scores([11, 9, 40]), expected, atol=1e-4)
    assert np.isfinite(model.scores([9])).all()
    assert np.isfinite(model.scores([])).all()


def test_most_of_the_items_are_what_the_others_leave():
    part, many = made().parts["E"], np.delete(np.arange(M), [3, 9])
    np.testing.assert_allclose(part.scores(many), part.dense()[many].sum(0), atol=1e-4)


def test_what_came_at_once_counts_in_both_orders():
    model = made(blend=0.0, given={"B": whole()})
    h = model.parts["B"].dense()
    mean = (h[4] + h[5] + h[M + 4] + h[M + 5]) / 2 + (h[M + 5] + h[M + 4]) / 4 + h[M + 7] / 4
    np.testing.assert_allclose(model.scores([7, 4, 5], [7, 5, 4]), standardised(mean), atol=1e-4)


def test_a_list_is_the_best_of_what_the_user_does_not_have():
    model, items = made(), [7, 3, 50, 21]
    scores = model.scores(items)
    scores[items] = -np.inf
    assert model.rank(items, 10).tolist() == np.argsort(-scores)[:10].tolist()
    assert len(model.rank(items, 500)) == M


def test_a_file_is_what_the_docstring_says(tmp_path):
    """Read as a browser would: header, one zlib stream, arrays one behind the other."""
    model = made(5000)
    model.save(tmp_path / "model.tally")
    blob = (tmp_path / "model.tally").read_bytes()
    assert blob == model.encode() == load(tmp_path / "model.tally").encode()
    assert [p.name for p in tmp_path.iterdir()] == ["model.tally"]
    (length,) = struct.unpack("<I", blob[8:12])
    head = json.loads(blob[12 : 12 + length])
    assert blob[:8] == MAGIC == b"tally\0\0\1"
    assert (head["items"], head["inputs"], head["gap"], head["windows"], head["decays"]) == (M, 0, 2, [1, 3], [1, 0.5])
    body = zlib.decompress(blob[12 + length :])
    at, arrays = 0, []
    for part in head["parts"]:
        for kind, count in (("f", M), ("f", part["rows"]), ("I", part["rows"])):
            arrays.append(struct.unpack_from(f"<{count}{kind}", body, at))
            at += 4 * count
    for place, part in enumerate(head["parts"]):
        base, step, counts = arrays[3 * place : 3 * place + 3]
        n = part["entries"]
        low, high, value = body[at : at + n], body[at + n : at + 2 * n], body[at + 2 * n : at + 3 * n]
        at += 3 * n
        entry = 0
        for row in range(part["rows"]):
            written, column = list(base), 0
            for _ in range(counts[row]):
                column += low[entry] + 256 * high[entry]
                written[column] += step[row] * (value[entry] - 256 * (value[entry] > 127))
                entry += 1
            np.testing.assert_allclose(written, model.parts[part["name"]].dense()[row], atol=1e-5)
    assert at == len(body)


def test_other_bytes_are_refused():
    blob = cut(parts(), 5000, (1, 3), (1.0, 0.5), 0.3)
    head = blob[12 : 12 + int.from_bytes(blob[8:12], "little")]
    for wrong in (b"", b"PK\3\4" + blob, blob[:-40], blob.replace(head, head.replace(b'"rows": 60', b'"rows": 61'))):
        with pytest.raises(ValueError, match="small model"):
            decode(wrong)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("blend", float("nan")),
        ("blend", 1.5),
        ("blend", None),
        ("tilt", float("inf")),
        ("tilt", 10**400),
        ("items", 10**12),
        ("items", None),
        ("items", 1e400),
        ("inputs", 1.5),
        ("windows", [1]),
        ("windows", [1, 3, 5]),
        ("windows", [1, -3]),
        ("decays", [1.0, 2.0]),
        ("parts", []),
        ("parts", None),
        ("parts", [{"name": "Z", "rows": 0, "entries": 0}]),
    ],
)
def test_a_head_that_does_not_fit_is_refused(key, value):
    blob = cut(parts(), 5000, (1, 3), (1.0, 0.5), 0.3)
    long = int.from_bytes(blob[8:12], "little")
    head = json.dumps(json.loads(blob[12 : 12 + long]) | {key: value}).encode()
    with pytest.raises(ValueError, match="small model"):
        decode(MAGIC + len(head).to_bytes(4, "little") + head + blob[12 + long :])


def test_a_stream_without_its_end_is_refused():
    with pytest.raises(ValueError, match="small model"):
        decode(cut(parts(), 5000, (1, 3), (1.0, 0.5), 0.3)[:-5])


def test_numpy_is_all_it_takes(tmp_path):
    """The module runs where tacit and torch are not installed."""
    made().save(tmp_path / "model.tally")
    (tmp_path / "small.py").write_text(Path(module.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    script = (
        "import sys, pathlib, small; m = small.load(pathlib.Path('model.tally'));"
        "print(m.rank([1, 2, 3]).tolist(), sorted({'torch', 'scipy', 'tacit'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, env={"PYTHONPATH": ""}
    )
    assert done.stdout.strip() == f"{made().rank([1, 2, 3]).tolist()} []"
