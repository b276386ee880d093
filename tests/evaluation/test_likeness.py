import pytest
import torch

from tacit.evaluation.likeness import coordinates, relations, retained


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)


def test_the_same_table_everywhere():
    tables = draw(7, 3).expand(4, -1, -1)
    assert coordinates(tables) == pytest.approx(1)
    assert relations(tables) == pytest.approx(1)
    assert retained(tables) == pytest.approx(1)


def test_other_rotations_of_one_table_relate_alike_and_lie_elsewhere():
    table = draw(40, 3)
    turned = torch.stack([table @ torch.linalg.qr(draw(9, 3, 3)[i])[0] for i in range(9)])
    assert relations(turned) == pytest.approx(1)
    assert abs(coordinates(turned)) < 0.3
    assert retained(turned) < 0.7


def test_all_three_written_out():
    tables = draw(3, 5, 2)
    cosine = torch.nn.functional.cosine_similarity
    pairs = [(0, 1), (0, 2), (1, 2)]
    same = [cosine(tables[a, i], tables[b, i], dim=0) for a, b in pairs for i in range(5)]
    assert coordinates(tables) == pytest.approx(float(sum(same) / len(same)))
    items = [(i, j) for i in range(5) for j in range(i)]
    near = torch.stack([torch.stack([cosine(t[i], t[j], dim=0) for i, j in items]) for t in tables])
    correlation = torch.corrcoef(near)
    assert relations(tables) == pytest.approx(float(sum(correlation[a, b] for a, b in pairs) / 3))
    summed = sum((tables[:, i].mean(0) - tables[:, j].mean(0)).abs().sum() for i, j in items)
    local = sum((tables[c, i] - tables[c, j]).abs().sum() for c in range(3) for i, j in items) / 3
    assert retained(tables) == pytest.approx(float(summed / local))


def test_opposite_tables_cancel():
    """Eq. 4's worst case."""
    table = draw(6, 2)
    assert retained(torch.stack([table, -table])) == pytest.approx(0)
    assert coordinates(torch.stack([table, -table])) == pytest.approx(-1)
