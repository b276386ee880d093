import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.core.payload import BadPayload, Each, Payload, Rows, Shared, decode


def touched(clients=2):
    """Tables of four rows, of which each client touched two; the first client's second row is padding."""
    base = torch.arange(12.0).view(4, 3)
    rows = torch.tensor([[2, 0], [1, 3]])[:clients]
    real = torch.tensor([[True, False], [True, True]])[:clients]
    return Rows(100 + torch.arange(clients * 6.0).view(clients, 2, 3), rows, real, base)


def everything(clients=2):
    return Payload(
        torch.tensor([5, 9])[:clients],
        {
            "table": touched(clients),
            "vector": Each(torch.randn(clients, 3, generator=torch.Generator().manual_seed(0)), private=False),
            "secret": Each(torch.arange(clients).double()),
            "count": Each(torch.arange(clients * 2, dtype=torch.int16).view(clients, 2)),
            "all": Shared(torch.ones(7)),
        },
    )


def test_touched_rows_written_out():
    dense = touched().dense()
    expected = torch.arange(12.0).view(4, 3).repeat(2, 1, 1)
    expected[0, 2] = torch.tensor([100.0, 101.0, 102.0])
    expected[1, 1] = torch.tensor([106.0, 107.0, 108.0])
    expected[1, 3] = torch.tensor([109.0, 110.0, 111.0])
    assert torch.equal(dense, expected)


def test_the_change_is_against_the_base_and_nothing_on_padding():
    field = touched()
    change = field.change()
    assert not change[0, 1].any()
    assert torch.equal(change[1, 0], field.value[1, 0] - field.base[1])


def test_bytes_are_those_of_the_dense_tensors_of_every_client():
    up = everything()
    table, vector, secret, count, shared = 4 * 3 * 4, 3 * 4, 8, 2 * 2, 7 * 4
    assert up.nbytes() == 2 * (table + vector + secret + count + shared)


def test_one_clients_encoding_is_its_bytes_behind_a_header():
    up = everything(clients=1)
    blob = up.encode()
    header = int.from_bytes(blob[:8], "little")
    assert len(blob) - 8 - header - up.ids.nbytes == up.nbytes()


def test_a_round_trip_keeps_content_kinds_and_bytes():
    up = everything()
    back = decode(up.encode())
    assert torch.equal(back.ids, up.ids)
    assert list(back.fields) == list(up.fields)
    for name, field in up.fields.items():
        assert back[name].dtype == up[name].dtype
        assert torch.equal(back[name], up[name])
        assert isinstance(back.fields[name], Shared) == isinstance(field, Shared)
        if not isinstance(field, Shared):
            assert back.fields[name].private == field.private
    assert back.nbytes() == up.nbytes()
    assert "table" in back
    assert "nothing" not in back


def test_an_empty_payload_is_one_too():
    back = decode(Payload(torch.tensor([1, 2]), {}).encode())
    assert back.ids.tolist() == [1, 2]
    assert back.nbytes() == 0


def test_views_and_repeated_tensors_are_encoded():
    value = torch.arange(6.0).view(2, 3)
    up = Payload(torch.arange(2), {"a": Each(value), "b": Each(value), "c": Each(value.T[:2]), "d": Shared(value)})
    back = decode(up.encode())
    for name in up.fields:
        assert torch.equal(back[name], up[name])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(blob):
    with pytest.raises(BadPayload):
        decode(blob)


@given(st.data())
def test_a_damaged_payload_is_refused_or_well_formed(data):
    blob = bytearray(everything().encode())
    place = data.draw(st.integers(0, 8 + int.from_bytes(blob[:8], "little") - 1))
    blob[place] = data.draw(st.integers(0, 255))
    try:
        back = decode(bytes(blob))
    except BadPayload:
        return
    for field in back.fields.values():
        assert isinstance(field, Shared) or len(field.value) == len(back.ids)


def rewritten(change):
    """A payload whose header was changed by hand."""
    blob = Payload(torch.tensor([1, 2]), {"x": Each(torch.ones(2, 3))}).encode()
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + blob[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("__metadata__"),
        lambda header: header["__metadata__"].update(kinds="[]"),
        lambda header: header["__metadata__"].update(kinds='{"x": "public"}'),
        lambda header: header["__metadata__"].update(kinds='{"x": "private", "y": "private"}'),
        lambda header: header["field.x"].update(shape=[3, 2]),
        lambda header: header["field.x"].update(shape=[6]),
        lambda header: header["ids"].update(shape=[1, 2]),
        lambda header: header["ids"].update(dtype="F64"),
    ],
)
def test_fields_that_do_not_fit_the_clients_are_refused(change):
    with pytest.raises(BadPayload, match="not a payload"):
        decode(rewritten(change))


def test_the_untouched_header_is_accepted():
    assert decode(rewritten(lambda header: None))["x"].shape == (2, 3)
