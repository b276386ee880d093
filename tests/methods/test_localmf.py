import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.local import local_round
from tacit.core.method import Moment
from tacit.core.store import ClientStore
from tacit.methods.fedmf import FedMF
from tacit.methods.localmf import LocalMF
from toys import few_clients

SMALL = {"dim": 4, "init": 0.3, "lr": 0.5, "table_lr": 5.0, "epochs": 1}


def rounds(method, federation, count):
    fleet, server = SimulatedFleet(method, federation, threads=1), method.init_server(federation)
    for round in range(1, count + 1):
        uploads = fleet.train(server, torch.arange(federation.n_clients), round, Traffic())
        server = method.aggregate(server, uploads, Moment(round, 0))
    return fleet.store.leaves, server


def test_alone_nothing_is_sent_and_the_server_stays():
    federation = few_clients(8)
    method = LocalMF(**SMALL)
    traffic = Traffic()
    server = method.init_server(federation)
    list(SimulatedFleet(method, federation, threads=1).train(server, torch.arange(8), 1, traffic))
    assert traffic.bytes_up == 0
    _, after = rounds(method, federation, 2)
    assert torch.equal(after["items"], server["items"])


def test_alone_is_a_federation_of_one_client_that_is_averaged_with_nobody():
    """Two rounds alone are two rounds of FedMF whose table goes to the server and comes back unchanged."""
    federation = few_clients(8)
    leaves, _ = rounds(LocalMF(**SMALL), federation, 2)
    plain, one = FedMF(**SMALL), torch.tensor([3])
    server, store = plain.init_server(federation), ClientStore(plain, federation)
    for round in (1, 2):
        data = federation.cohort(one, round, 4)
        kept, up, _ = local_round(plain, store.read(data), plain.downlink(server, one), data)
        store.write(data, kept)
        server = plain.aggregate(server, iter([up]), Moment(round, 0))
    torch.testing.assert_close(leaves["local"][3], server["items"])
    torch.testing.assert_close(leaves["user"][3], store.leaves["user"][3])


def test_aggregated_from_the_first_round_it_is_fedmf():
    federation = few_clients(8)
    leaves, server = rounds(LocalMF(**SMALL, aggregate_from=1), federation, 3)
    expected_leaves, expected = rounds(FedMF(**SMALL), federation, 3)
    torch.testing.assert_close(server["items"], expected["items"])
    torch.testing.assert_close(leaves["user"], expected_leaves["user"])


def test_aggregation_starts_with_the_tables_of_the_round_asked_for():
    federation = few_clients(8)
    _, server = rounds(LocalMF(**SMALL, aggregate_from=3), federation, 3)
    leaves, _ = rounds(LocalMF(**SMALL), federation, 3)
    weights = torch.from_numpy(federation.sizes).float()
    expected = torch.tensordot(weights / weights.sum(), leaves["local"], dims=1)
    torch.testing.assert_close(server["items"], expected, atol=1e-5, rtol=1e-4)
