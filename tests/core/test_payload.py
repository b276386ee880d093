import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from tacit.core.payload import BadPayload, Cut, Each, Few, Payload, Rows, Shared, Sparse, decode, stacked


def touched(clients=2):
    """Tables of four rows, of which each client touched two; the first client's second row is padding."""
    base = torch.arange(12.0).view(4, 3)
    rows = torch.tensor([[2, 0], [1, 3]])[:clients]
    real = torch.tensor([[True, False], [True, True]])[:clients]
    return Rows(100 + torch.arange(clients * 6.0).view(clients, 2, 3), rows, real, base)


def cells(clients=2):
    """Three cells of the first client's (2, 3) matrix, one of them twice, and one of the second's."""
    n = 3 if clients == 1 else 4
    client, index = torch.tensor([0, 0, 0, 1])[:n], torch.tensor([5, 0, 5, 2])[:n]
    return Sparse(client, index, torch.tensor([1.0, 2.0, 10.0, 3.0])[:n], (2, 3), private=False)


def few(clients=2):
    """Two tables of different width, and a third one that nobody here gets."""
    values = tuple(torch.arange(3.0 * n).view(3, n) + 10 * n for n in (1, 2, 4))
    return Few(values, torch.tensor([1, 0])[:clients], 4)


def cut(clients=2):
    """Touched rows of tables of which the first client has one column, the second all three."""
    columns = torch.tensor([[1, 2], [0, 3]])[:clients]
    table = touched(clients)
    inside = (torch.arange(3) >= columns[:, :1]) & (torch.arange(3) < columns[:, 1:])
    return Cut(Rows(table.value * inside[:, None], table.rows, table.real, torch.zeros(4, 3)), columns)


def everything(clients=2):
    return Payload(
        torch.tensor([5, 9])[:clients],
        {
            "table": touched(clients),
            "vector": Each(torch.randn(clients, 3, generator=torch.Generator().manual_seed(0)), private=False),
            "secret": Each(torch.arange(clients).double()),
            "count": Each(torch.arange(clients * 2, dtype=torch.int16).view(clients, 2)),
            "all": Shared(torch.ones(7)),
            "cells": cells(clients),
            "few": few(clients),
            "cut": cut(clients),
        },
    )


def test_tables_are_written_to_their_places_and_nowhere_else():
    tables = torch.full((4, 4, 3), -1.0)
    touched().write_to(tables, torch.tensor([3, 1]))
    assert torch.equal(tables[[3, 1]], touched().dense())
    assert (tables[[0, 2]] == -1).all()


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
    few_values, cut_columns = 3 * 2 * 4 + 3 * 1 * 4, 4 * 1 * 4 + 4 * 3 * 4
    expected = 2 * (table + vector + secret + count + shared) + 4 * (4 + 4) + few_values + cut_columns
    assert up.nbytes() == expected


def test_one_clients_encoding_is_its_bytes_behind_a_header():
    up = everything(clients=1)
    blob = up.encode()
    header = int.from_bytes(blob[:8], "little")
    owners = 8 + 8 + 16  # how many cells, which value and which columns are whose: addresses, like the ids
    assert len(blob) - 8 - header - up.ids.nbytes - owners == up.nbytes()


def test_cells_written_out_and_summed():
    dense = cells().dense()
    assert dense.tolist() == [[[2.0, 0.0, 0.0], [0.0, 0.0, 11.0]], [[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]]
    total = torch.ones(2, 3, dtype=torch.float64)
    cells().add_to(total)
    assert torch.equal(total, 1 + dense.double().sum(0))


def test_cells_of_a_large_matrix_are_addressed_with_eight_bytes():
    huge = Sparse(torch.tensor([0]), torch.tensor([2**32 + 5]), torch.ones(1), (2**17, 2**16))
    up = Payload(torch.tensor([4]), {"x": huge})
    assert up.nbytes() == 8 + 4
    back = decode(up.encode()).fields["x"]
    assert back.index.tolist() == [2**32 + 5]
    assert back.shape == (2**17, 2**16)


def test_a_client_without_cells_is_no_obstacle():
    up = Payload(torch.arange(3), {"x": Sparse(torch.tensor([1]), torch.tensor([0]), torch.ones(1), (2,))})
    back = decode(up.encode()).fields["x"]
    assert back.client.tolist() == [1]
    empty = Sparse(torch.zeros(0).long(), torch.zeros(0).long(), torch.zeros(0), (2,))
    assert len(decode(Payload(torch.arange(3), {"x": empty}).encode()).fields["x"].value) == 0


def test_a_round_trip_keeps_content_kinds_and_bytes():
    up = everything()
    back = decode(up.encode())
    assert torch.equal(back.ids, up.ids)
    assert list(back.fields) == list(up.fields)
    for name, field in up.fields.items():
        assert back[name].dtype == up[name].dtype
        assert torch.equal(back[name], up[name])
        assert isinstance(back.fields[name], Shared) == isinstance(field, Shared)
        if not isinstance(field, Shared | Few):
            assert back.fields[name].private == field.private
    assert back.nbytes() == up.nbytes()
    assert "table" in back
    assert "nothing" not in back


def test_no_clients_are_no_obstacle_either():
    nothing = torch.zeros(0).long()
    back = decode(Payload(nothing, {"x": Sparse(nothing, nothing, torch.zeros(0), (2,))}).encode())
    assert back.nbytes() == 0


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
        if isinstance(field, Sparse):
            assert min(field.shape) > 0
            assert ((field.index >= 0) & (field.index < math.prod(field.shape))).all()
            assert ((field.client >= 0) & (field.client < len(back.ids))).all()
        else:
            assert isinstance(field, Shared) or len(field.dense()) == len(back.ids)


def rewritten(change):
    """A payload whose header was changed by hand."""
    blob = Payload(torch.tensor([1, 2]), {"x": Each(torch.ones(2, 3)), "y": cells()}).encode()
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
        lambda header: header["__metadata__"].update(kinds='{"x": "private"}'),
        lambda header: header["__metadata__"].update(kinds='{"x": {"kind": "private"}}'),
        lambda header: header["__metadata__"].update(kinds='{"z": {"kind": "each", "private": true}}'),
        lambda header: header["__metadata__"].update(
            kinds='{"y": {"kind": "sparse", "private": true, "shape": [2, 2]}}'
        ),
        lambda header: header["__metadata__"].update(
            kinds='{"y": {"kind": "sparse", "private": true, "shape": [-2, -3]}}'
        ),
        lambda header: header["__metadata__"].update(kinds='{"y": {"kind": "sparse", "private": true, "shape": "x"}}'),
        lambda header: header["cells.y"].update(dtype="F64"),
        lambda header: header["cells.y"].update(shape=[2, 1]),
        lambda header: header["index.y"].update(dtype="F32"),
        lambda header: header["index.y"].update(shape=[2, 2]),
        lambda header: header["field.y"].update(shape=[2, 2]),
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


def test_some_of_the_clients_have_their_own_values():
    whole = everything()
    for places in ([1], [0], [1, 0], []):
        part = whole.only(torch.tensor(places, dtype=torch.long))
        assert part.ids.tolist() == whole.ids[places].tolist()
        for name, field in part.fields.items():
            if isinstance(field, Shared):
                assert torch.equal(field.value, whole[name])
            elif isinstance(field, Sparse):
                for place, old in enumerate(places):
                    mine, theirs = field.client == place, whole.fields[name].client == old
                    assert torch.equal(field.index[mine], whole.fields[name].index[theirs])
                    assert torch.equal(field.value[mine], whole.fields[name].value[theirs])
            else:
                assert torch.equal(field.dense(), whole[name][places])
    own = Payload(torch.arange(2), {"t": Rows(touched().value, touched().rows, touched().real, torch.rand(2, 4, 3))})
    assert torch.equal(own.only(torch.tensor([1]))["t"], own["t"][[1]])


def test_stacked_parts_are_the_whole():
    whole = everything()
    back = stacked([whole.only(torch.tensor([0])), whole.only(torch.tensor([1]))])
    assert back.ids.tolist() == whole.ids.tolist()
    for name, field in whole.fields.items():
        assert torch.equal(back[name], whole[name])
        assert isinstance(field, Shared | Few) or back.fields[name].private == field.private


def test_clients_get_one_of_a_few_values_with_zeros_behind_it():
    field = few()
    assert field.dense().shape == (2, 3, 4)
    assert field.dense()[0].tolist() == [[20, 21, 0, 0], [22, 23, 0, 0], [24, 25, 0, 0]]
    assert field.dense()[1].tolist() == [[10, 0, 0, 0], [11, 0, 0, 0], [12, 0, 0, 0]]
    back = decode(Payload(torch.tensor([5, 9]), {"few": field}).encode()).fields["few"]
    assert [tuple(v.shape) for v in back.values] == [(3, 1), (3, 2), (3, 0)], "what nobody gets does not travel"
    assert torch.equal(back.dense(), field.dense())
    assert torch.equal(back.group, field.group)


def test_columns_of_other_groups_are_zero_and_do_not_travel():
    field = cut()
    dense = field.dense()
    assert dense[0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 101, 0], [0, 0, 0]]
    assert dense[1, 1].tolist() == [106, 107, 108]
    assert field.mask()[:, 0].tolist() == [[False, True, False], [True, True, True]]
    back = decode(Payload(torch.tensor([5, 9]), {"cut": field}).encode()).fields["cut"]
    assert torch.equal(back.dense(), dense)
    assert back.nbytes(2) == field.nbytes(2) == 4 * 4 + 12 * 4


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("columns.x", torch.tensor([[0, 4]])),
        ("columns.x", torch.tensor([[-1, 2]])),
        ("columns.x", torch.tensor([[2, 1]])),
        ("columns.x", torch.tensor([[0, 2]])),
        ("columns.x", torch.tensor([0, 3])),
        ("group.y", torch.tensor([1])),
        ("group.y", torch.tensor([-1])),
        ("group.y", torch.tensor([0, 0])),
        ("0.y", torch.ones(2, 6)),
    ],
)
def test_wrong_addresses_are_refused(name, wrong):
    kinds = {"x": {"kind": "cut", "private": True, "shape": [2, 3]}, "y": {"kind": "few", "values": 1, "width": 5}}
    right = {"ids": torch.tensor([4]), "columns.x": torch.tensor([[0, 3]]), "field.x": torch.ones(6)}
    right |= {"group.y": torch.tensor([0]), "0.y": torch.ones(2, 5)}
    text = {"kinds": json.dumps(kinds)}
    assert decode(save(right, metadata=text)).fields.keys() == {"x", "y"}
    with pytest.raises(BadPayload):
        decode(save(right | {name: wrong}, metadata=text))


def test_a_value_that_would_unfold_beyond_what_is_allowed_is_refused():
    kinds = {"x": {"kind": "cut", "private": True, "shape": [1, 10**12]}}
    small = {"ids": torch.tensor([4]), "columns.x": torch.tensor([[0, 1]]), "field.x": torch.ones(1)}
    with pytest.raises(BadPayload, match="more than may be unfolded"):
        decode(save(small, metadata={"kinds": json.dumps(kinds)}), most=1000)
