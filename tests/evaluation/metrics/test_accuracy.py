import math

import pytest
import torch

from tacit.evaluation.metrics import Rankings, by_hits, measured


def found(hits, total):
    n = len(hits)
    return Rankings(hits, torch.tensor(total), torch.zeros(n, 0, dtype=torch.long), torch.zeros(5), 1)


def test_by_hand():
    """Hits at places 2 and 4 of 3 wanted: DCG = 1/log2(3) + 1/log2(5), ideal 1 + 1/log2(3) + 1/log2(4)."""
    hits = torch.zeros(1, 20, dtype=torch.bool)
    hits[0, [1, 3]] = True
    values = measured(by_hits(), found(hits, [3]))
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert values["NDCG@5"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert values["HR@5"] == 1
    assert values["MRR@10"] == 1 / 2
    assert values["Recall@5"] == pytest.approx(2 / 3)
    assert values["Precision@5"] == pytest.approx(2 / 5)


def test_f1_joins_the_means_of_precision_and_recall():
    hits = torch.zeros(2, 20, dtype=torch.bool)
    hits[0, 0] = True
    means = measured(by_hits(), found(hits, [1, 4]))
    precision, recall = (1 / 5 + 0) / 2, (1 + 0) / 2
    assert means["F1@5"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert measured(by_hits(), found(hits[1:], [4]))["F1@10"] == 0


def test_nobody_to_evaluate_gives_zeros():
    nobody = found(torch.zeros(0, 20, dtype=torch.bool), [])
    assert set(measured(by_hits(), nobody).values()) == {0.0}
