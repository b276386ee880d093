import pytest
import torch

from tacit.core.aggregate import plain_sum, weighted_mean
from tacit.core.payload import Each, Payload, Rows, Shared, decode

CLIENTS, ITEMS, WIDTH = 7, 5, 3


def uploads(sizes):
    """The same uploads of seven clients, cut into chunks of the given sizes."""
    draw = torch.Generator().manual_seed(0)
    base = torch.randn(ITEMS, WIDTH, generator=draw)
    value = torch.randn(CLIENTS, 2, WIDTH, generator=draw)
    rows = torch.stack([torch.randperm(ITEMS, generator=draw)[:2] for _ in range(CLIENTS)])
    real = torch.ones(CLIENTS, 2, dtype=torch.bool)
    real[[1, 4], 1] = False
    vector = torch.randn(CLIENTS, WIDTH, generator=draw)
    weight = torch.tensor([1.0, 2.0, 3.0, 10.0, 1.0, 0.0, 4.0])
    out = []
    for part in torch.split(torch.arange(CLIENTS), sizes):
        fields = {
            "items": Rows(value[part], rows[part], real[part], base),
            "vector": Each(vector[part]),
            "weight": Each(weight[part], private=False),
        }
        out.append(Payload(part, fields))
    return out


def by_hand():
    (whole,) = uploads([CLIENTS])
    weight = whole["weight"]
    share = weight / weight.sum()
    return {
        "items": torch.stack([share[c] * whole["items"][c] for c in range(CLIENTS)]).sum(0),
        "vector": torch.stack([share[c] * whole["vector"][c] for c in range(CLIENTS)]).sum(0),
    }


@pytest.mark.parametrize("sizes", [[7], [1] * 7, [3, 4], [5, 1, 1]])
@pytest.mark.parametrize("wire", [False, True])
def test_the_mean_is_weighted_by_size_in_any_chunks_and_over_the_wire(sizes, wire):
    chunks = [decode(up.encode()) for up in uploads(sizes)] if wire else uploads(sizes)
    mean = weighted_mean(iter(chunks), "items", "vector")
    for name, expected in by_hand().items():
        torch.testing.assert_close(mean[name], expected, atol=1e-6, rtol=1e-6)
        assert mean[name].dtype == torch.float32


def test_any_field_can_be_the_weight():
    chunks = [Payload(torch.tensor([0, 1]), {"x": Each(torch.tensor([1.0, 5.0])), "n": Each(torch.tensor([3.0, 1.0]))})]
    assert weighted_mean(chunks, "x", weight="n")["x"].item() == 2.0


def test_without_weight_there_is_no_mean():
    chunks = [Payload(torch.tensor([0]), {"x": Each(torch.ones(1, 2)), "weight": Each(torch.zeros(1))})]
    assert weighted_mean(chunks, "x") == {}
    assert weighted_mean([], "x") == {}


def test_a_shared_field_has_no_mean():
    chunks = [Payload(torch.tensor([0]), {"x": Shared(torch.ones(2)), "weight": Each(torch.ones(1))})]
    with pytest.raises(TypeError, match="have alike"):
        weighted_mean(chunks, "x")


@pytest.mark.parametrize("sizes", [[7], [1] * 7, [3, 4]])
def test_plain_sums_add_up_every_client(sizes):
    (whole,) = uploads([CLIENTS])
    sums = plain_sum(uploads(sizes), "items", "vector")
    torch.testing.assert_close(sums["items"], whole["items"].double().sum(0))
    torch.testing.assert_close(sums["vector"], whole["vector"].double().sum(0))


def test_small_changes_survive_many_large_ones():
    """Sums run in double precision: 2²⁵ + 1 − 2²⁵ is 1, where float32 would say 0."""
    values = [2.0**25, 1.0, -(2.0**25)]
    chunks = [Payload(torch.tensor([c]), {"x": Each(torch.tensor([[v]]))}) for c, v in enumerate(values)]
    assert plain_sum(chunks, "x")["x"].item() == 1.0
    weighted = [
        Payload(torch.tensor([c]), {"x": Each(torch.tensor([[v]])), "weight": Each(torch.ones(1))})
        for c, v in enumerate(values)
    ]
    assert weighted_mean(weighted, "x")["x"].item() == pytest.approx(1 / 3)


def test_uploads_are_not_changed():
    chunks = uploads([3, 4])
    before = [{n: up[n].clone() for n in up.fields} for up in chunks]
    weighted_mean(chunks, "items", "vector")
    plain_sum(chunks, "items", "vector")
    for up, kept in zip(chunks, before, strict=True):
        assert all(torch.equal(up[n], kept[n]) for n in kept)
