import pytest
import torch
from benchmarks.fuzz import messages

from tacit.core.aggregate import weighted_mean
from tacit.core.fields import KINDS, Each, Field, Rows, Shared
from tacit.core.payload import Payload, decode
from tacit.errors import UserError

FIELDS = dict(messages()[-1].fields)
OWN = sorted(name for name, field in FIELDS.items() if field.own)


def written_out(field):
    """(3, …) every client's value."""
    tables = torch.full((3, *field.one_shape), 7.0)
    field.write_to(tables, torch.arange(3))
    return tables


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_knows_the_form_of_a_clients_value(name):
    field = FIELDS[name]
    value = field.dense()
    assert field.one_shape == tuple(value.shape[not field.alike :])
    assert field.wire_dtype == value.dtype
    assert field.private == (name not in ("all", "weight", "few"))
    blob = Payload(torch.arange(3), {name: field}).encode()
    header = 8 + int.from_bytes(blob[:8], "little")
    assert len(blob) - header - 3 * 8 <= field.most_bytes(3)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_writes_its_clients_values_to_their_places(name):
    field = FIELDS[name]
    expected = field.spread(3)
    tables = torch.full((5, *field.one_shape), 7.0)
    field.write_to(tables, torch.tensor([4, 0, 2]))
    torch.testing.assert_close(tables[[4, 0, 2]], expected)
    assert (tables[[1, 3]] == 7).all()
    if len(field.one_shape) == 2:
        rows = torch.tensor([[1, 0], [0, 0], [1, 1]])
        picked = torch.stack([expected[c, rows[c]] for c in range(3)])
        torch.testing.assert_close(field.spread(3, rows), picked)


@pytest.mark.parametrize("name", OWN)
def test_sums_and_means_are_those_of_the_values_written_out(name):
    field, whole = FIELDS[name], written_out(FIELDS[name]).double()
    total = torch.ones(field.one_shape, dtype=torch.float64)
    field.add_to(total)
    torch.testing.assert_close(total, 1 + whole.sum(0), atol=1e-6, rtol=1e-6)
    weight = torch.tensor([3.0, 1.0, 2.0])
    up = Payload(torch.arange(3), {"x": field, "weight": Each(weight, private=False)})
    if name == "cells":
        with pytest.raises(TypeError, match="no dense value"):
            weighted_mean([up], "x")
        return
    expected = torch.tensordot(weight.double() / 6, whole, dims=1).float()
    torch.testing.assert_close(weighted_mean([up], "x")["x"], expected)


@pytest.mark.parametrize("name", OWN)
def test_norms_are_of_the_change_against_what_was_sent(name):
    field, whole = FIELDS[name], written_out(FIELDS[name]).double()
    torch.testing.assert_close(field.norms(None, 3), whole.reshape(3, -1).norm(dim=1), atol=1e-6, rtol=1e-6)
    if name != "cells":
        moved = (whole - 0.5).reshape(3, -1).norm(dim=1)
        torch.testing.assert_close(field.norms(Shared(torch.full(field.one_shape, 0.5)), 3), moved)


@pytest.mark.parametrize("name", OWN)
def test_one_client_in_a_secure_sum(name):
    field, whole = FIELDS[name], written_out(FIELDS[name]).double()
    for client in range(3):
        one = field.only(torch.tensor([client]), 3).of_one()
        torch.testing.assert_close(one, whole[client], atol=1e-6, rtol=1e-6)
        back = field.of_sum(one.flatten())
        assert back.private == field.private
        torch.testing.assert_close(written_out_one(back), whole[client], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", FIELDS)
def test_no_clients_are_no_obstacle(name):
    nobody = FIELDS[name].only(torch.zeros(0).long(), 3)
    assert len(nobody.norms(None, 0)) == int(nobody.alike)
    assert decode(Payload(torch.zeros(0).long(), {"x": nobody}).encode()).kinds() == {"x": nobody.kind}


def written_out_one(field):
    table = torch.zeros(1, *field.one_shape, dtype=torch.float64)
    field.write_to(table, torch.arange(1))
    return table[0]


@pytest.mark.parametrize("name", OWN)
def test_a_change_and_its_base_are_the_whole(name):
    field = FIELDS[name]
    if name == "cells":
        assert "sparse" in field.uncovered()
        return
    assert field.uncovered() == ""
    base = field.base if isinstance(field, Rows) else torch.full(field.one_shape, 0.5)
    for sent in (None, Shared(base), Shared(torch.zeros(9)), Each(base.expand(3, *base.shape))):
        change = field.against(sent)
        torch.testing.assert_close(change.onto(torch.zeros(3, *field.one_shape)), field.dense())
    assert field.noisy(field.dense() + 1).nbytes(3) == field.nbytes(3)


def test_a_newcomer_gets_what_a_client_gets_on_average():
    each = Each(torch.tensor([[1.0, 3.0], [3.0, 6.0]]), private=False).typical()
    assert (each.value.tolist(), each.private, each.value.dtype) == ([[2.0, 4.5]], False, torch.float32)
    assert FIELDS["all"].typical() is FIELDS["all"]
    few = FIELDS["few"].typical()
    assert (few.group.tolist(), few.width) == ([0], 4)
    with pytest.raises(UserError, match="has to wait for the next run"):
        FIELDS["cells"].typical()


def test_a_kind_from_elsewhere_is_read_as_well():
    class Halves(Field):
        kind = "halves"

        def __init__(self, value):
            self.value = value

        def _form(self):
            return self.value.shape[1:], torch.float16

        def nbytes(self, clients):
            return self.most_bytes(clients)

        def dense(self):
            return self.value

        def only(self, places, clients):
            return Halves(self.value[places])

        def encoded(self, clients):
            return {}, {"field": self.value.half()}

        @classmethod
        def decoded(cls, told, wire):
            return cls(wire.take("field", torch.float16).float())

    try:
        up = Payload(torch.arange(2), {"x": Halves(torch.ones(2, 3))})
        back = decode(up.encode(), expected=up.kinds())
        assert isinstance(back.fields["x"], Halves)
        assert torch.equal(back["x"], up["x"])
    finally:
        del KINDS["halves"]
