import math

import numpy as np
import pytest
import torch

from tacit.core.payload import Each, Payload, Shared
from tacit.privacy.accountant import central_epsilon
from tacit.privacy.gaussian import gaussian_epsilon
from tacit.privacy.shared_noise import SharedGaussian, for_budget


def test_a_share_is_a_part_of_the_variance():
    noise = SharedGaussian(clip=0.5, ratio=3.0, contributors=25, delta=1e-6)
    assert noise.share.scale == pytest.approx(3.0 * 0.5 / 5)
    assert (noise.share.kind, noise.share.clip, noise.share.delta) == ("gaussian", 0.5, 1e-6)


@pytest.mark.parametrize(("clients", "contributors"), [(50, 50), (50, 30)])
def test_shares_add_up_to_no_less_than_the_noise_asked_for(clients, contributors):
    ids = torch.arange(clients)
    up = Payload(ids, {"items": Each(torch.ones(clients, 2000)), "weight": Each(ids.float(), private=False)})
    noise = SharedGaussian(clip=1e-6, ratio=3e6, contributors=contributors)  # the clip leaves the noise alone
    sent = noise(up, Payload(ids, {"items": Shared(torch.zeros(2000))}), 0, 1)
    assert sent["weight"].tolist() == [1.0] * clients
    assert np.std(sent["items"].sum(0).numpy()) == pytest.approx(3.0 * math.sqrt(clients / contributors), rel=0.05)


@pytest.mark.parametrize("rounds", [1, 7])
def test_epsilon_is_that_of_the_sums(rounds):
    noise = SharedGaussian(0.5, 3.0, 25, 1e-5)
    assert noise.epsilon(rounds) == gaussian_epsilon(3.0 / math.sqrt(rounds), 1e-5)
    pytest.importorskip("dp_accounting")
    assert noise.epsilon(rounds) == pytest.approx(central_epsilon(3.0, rounds, 1e-5), rel=1e-3)
    assert noise.epsilon(0) == 0
    assert noise.share.epsilon(rounds) > 4 * noise.epsilon(rounds), "a share alone would protect far less"


def test_the_noise_for_a_budget():
    noise = for_budget(1.0, 2.0, rounds=9, contributors=10)
    assert 1.99 < noise.epsilon(9) <= 2.0
