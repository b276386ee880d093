import pytest
import torch

from tacit.config import build
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.errors import UserError
from tacit.methods import find
from tacit.methods.regularisers import squares
from toys import few_clients

SMALL = {"dim": 4, "init": 0.3, "lr": 0.2, "table_lr": 20.0, "epochs": 1, "batch": 0, "optimizer": "sgd"}


def test_a_round_starts_from_both_updates():
    """Three rounds; every table is w_c + λ_c Δw_c + λ_g Δw_g before the last two, written out from uploads."""
    method, federation, ids = build(find("lgmix+fedmf"), SMALL), few_clients(12), torch.arange(12)
    server = method.init_server(federation)
    fleet = SimulatedFleet(method, federation, threads=1)
    start = server["items"].expand(12, -1, -1)
    for round in (1, 2, 3):
        sent = server["items"]
        trains_from = ranked_with(method, fleet, server, ids)
        torch.testing.assert_close(trains_from, start, atol=1e-5, rtol=1e-5)
        server = method.aggregate(server, fleet.train(server, ids, round, Traffic()), Moment(round, 0))
        left = fleet.store.leaves["lgmix_local"].clone()
        own, wide = squares(left), squares(sent)
        share = (own / (own + wide)).view(-1, 1, 1)
        start = start + share * (left - start) + (1 - share) * (server["items"] - sent)
    weights = torch.from_numpy(federation.sizes).float()
    expected = torch.tensordot(weights / weights.sum(), left, dims=1)
    torch.testing.assert_close(server["items"], expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(start, left)
    assert not torch.allclose(start, server["items"].expand_as(start))


def ranked_with(method, fleet, server, ids):
    data = fleet.federation.people(ids)
    return method.view(method.serve(fleet.store.read(data), method.downlink(server, ids), data, "test"))


def test_a_client_that_never_took_part_has_the_servers_table():
    method, federation = build(find("lgmix+fedmf"), SMALL), few_clients(12)
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    server = method.aggregate(server, fleet.train(server, torch.arange(6), 1, Traffic()), Moment(1, 0))
    table = ranked_with(method, fleet, server, torch.arange(12))
    torch.testing.assert_close(table[9], server["items"])
    assert not torch.allclose(table[2], server["items"])


def test_it_needs_one_table():
    for name in ("fedrap", "mf", "tally"):
        with pytest.raises(UserError, match="one item table"):
            find(f"lgmix+{name}")
