import json
import math

import pytest
import torch
from benchmarks.fuzz import MUTATIONS, fuzz, messages
from safetensors.torch import save

from tacit.core.payload import BadPayload, Each, Payload, decode

CELLS = {"kind": "sparse", "private": True, "shape": [2, 3]}


def cells(count=4, **others):
    """A message of this many clients with a cell each."""
    ones = {"ids": torch.arange(count), "cells.x": torch.ones(count).long(), "index.x": torch.zeros(count).int()}
    return ones | {"field.x": torch.ones(count)} | others


def written(tensors, **kinds):
    return save(tensors, metadata={"kinds": json.dumps(kinds)})


def test_the_right_cells_are_accepted():
    assert decode(written(cells(), x=CELLS)).fields["x"].one_shape == (2, 3)


@pytest.mark.parametrize("number", [2**62, 2**61, -(2**62), -1, 5, 2**63 - 1])
def test_counts_that_wrap_to_their_sum_are_refused(number):
    for wrong in (torch.full((4,), number), torch.tensor([number, 4 - number, 0, 0])):
        with pytest.raises(BadPayload, match="do not add up"):
            decode(written(cells(**{"cells.x": wrong}), x=CELLS))
    nothing = {"ids": torch.arange(4), "index.x": torch.zeros(0).int(), "field.x": torch.zeros(0)}
    with pytest.raises(BadPayload, match="do not add up"):
        decode(written(nothing | {"cells.x": torch.full((4,), 2**62)}, x=CELLS))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.complex64, torch.uint64])
def test_types_that_no_field_has_are_refused(dtype):
    for name in ("field.x", "ids"):
        value = {"ids": torch.arange(2), "field.x": torch.ones(2)} | {name: torch.ones(2).to(dtype)}
        with pytest.raises(BadPayload, match="which no field has"):
            decode(written(value, x={"kind": "each", "private": True}))


@pytest.mark.parametrize("shape", [[2**40, 2**40], [0, 2**40], [2**30], [1, 0, 2**35], [2**62], [1] * 9, [], "x", 3])
@pytest.mark.parametrize("clients", [0, 1])
def test_a_shape_is_bounded_even_where_nothing_is_in_it(shape, clients):
    told = {"kind": "cut", "private": True, "shape": shape}
    columns = torch.zeros(clients, 2).long()
    blob = written({"ids": torch.arange(clients), "columns.x": columns, "field.x": torch.zeros(0)}, x=told)
    with pytest.raises(BadPayload):
        decode(blob, most=1 << 20)


def test_what_all_fields_unfold_to_counts_together():
    told = {"kind": "cut", "private": True, "shape": [100, 100]}
    tensors = {"ids": torch.arange(1)}
    for name in "abc":
        tensors |= {f"columns.{name}": torch.zeros(1, 2).long(), f"field.{name}": torch.zeros(0)}
    blob = written(tensors, a=told, b=told, c=told)
    assert decode(blob, most=120_000)["c"].shape == (1, 100, 100)
    with pytest.raises(BadPayload, match="more than may be unfolded"):
        decode(blob, most=119_999)


def test_a_few_values_are_not_padded_to_any_width():
    told = {"kind": "few", "values": 1, "width": 2**39}
    with pytest.raises(BadPayload, match="more than may be unfolded"):
        decode(written({"ids": torch.arange(1), "0.x": torch.ones(3, 1), "group.x": torch.zeros(1).long()}, x=told))


def test_more_bytes_than_allowed_are_not_looked_at():
    blob = Payload(torch.arange(2), {"x": Each(torch.ones(2, 300))}).encode()
    assert len(decode(blob, len(blob)).ids) == 2
    with pytest.raises(BadPayload, match="bytes are more than"):
        decode(blob, len(blob) - 1)


EACH = '{"x": {"kind": "each", "private": true}}'


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ("[" * 100_000, "recursion"),
        ('{"x":' * 100_000, "recursion"),
        ('{"x": {}, "x": {"kind": "each", "private": true}}', "a name twice"),
        ('{"x": {"kind": "each", "private": false, "private": true}}', "a name twice"),
        ('{"x": {"kind": "each", "private": 1}}', "neither true nor false"),
        ('{"x": {"kind": "each"}}', "private"),
        ('{"x": {"kind": ["each"], "private": true}}', "unhashable"),
        ('{"x": {"kind": "Each", "private": true}}', "'x' is Each, not shared or each"),
        ('{"x": {"kind": "sparse", "private": true, "shape": [NaN]}}', "NaN is not a number"),
        ('{"x": {"kind": "sparse", "private": true, "shape": [1e3]}}', "not a number of things"),
        ('{"x": {"kind": "sparse", "private": true, "shape": [true]}}', "not a number of things"),
        ('{"x": {"kind": "sparse", "private": true, "shape": [' + "9" * 5000 + "]}}", "digits"),
        ("{}", "beside its fields"),
        ("3", "not a table of names"),
    ],
)
def test_a_header_says_everything_once_and_plainly(kinds, why):
    tensors = {"ids": torch.arange(2), "field.x": torch.ones(2)}
    assert decode(save(tensors, metadata={"kinds": EACH})).kinds() == {"x": "each"}
    with pytest.raises(BadPayload, match=why) as caught:
        decode(save(tensors, metadata={"kinds": kinds}))
    assert len(str(caught.value)) < 400


def test_other_kinds_than_expected_are_refused_before_they_are_unfolded():
    """The cells do not add up, which nobody gets to see."""
    blob = written(cells(**{"cells.x": torch.full((4,), 2**62)}), x=CELLS)
    for expected, why in (
        ({"x": "each"}, "'x' is sparse, not each"),
        ({"y": "sparse"}, "its fields are x, not y"),
        ({}, "its fields are x, not none"),
        ({"x": "sparse"}, "do not add up"),
    ):
        with pytest.raises(BadPayload, match=why):
            decode(blob, expected=expected)


def test_every_message_that_is_not_touched_is_accepted():
    for made in messages():
        back = decode(made.encode(), expected=made.kinds())
        assert math.isclose(back.nbytes(), made.nbytes())


def test_mutations_of_real_messages_are_refused_or_harmless():
    """`python -m benchmarks.fuzz` does more of the same."""
    found = fuzz(2000, seed=1)
    assert sum(found.values()) == 2000
    for mutate in MUTATIONS:
        assert found[f"{mutate.__name__} refused"] > 20, "a mutation that does nothing tests nothing"
