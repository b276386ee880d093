"""FedCA's equations against values computed on their own."""

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from scipy.optimize import minimize
from sklearn.decomposition import PCA

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.methods import fedca
from tacit.methods.fedca import FedCA, complement, principal, similarity
from tacit.methods.pfedgraph import gram
from toys import few_clients

SMALL = FedCA(dim=6, epochs=1, batch=32, init=0.3, directions=2)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bases(clients=5, count=2, dim=6):
    return torch.linalg.qr(drawn(clients, dim, count).double())[0].mT.float()


def test_directions_are_those_of_principal_components():
    table = drawn(2, 9, 6)
    times = torch.tensor([[1.0, 2, 0, 3, 1, 1, 0, 4, 1], [0, 1, 1, 1, 1, 0, 2, 2, 0]])
    found = principal(table, times, 3)
    for c in range(2):
        rows = table[c].repeat_interleave(times[c].long(), 0)
        expected = PCA(3).fit(rows.double().numpy()).components_
        np.testing.assert_allclose(np.abs((found[c].double().numpy() * expected).sum(1)), np.ones(3), atol=1e-5)


def test_rows_that_span_less_send_no_arbitrary_directions():
    table = drawn(1, 2, 6)
    found = principal(table, torch.ones(1, 2), 3)
    across = (table[0, 0] - table[0, 1]) / (table[0, 0] - table[0, 1]).norm()
    torch.testing.assert_close((found[0, 0] @ across).abs(), torch.tensor(1.0))
    assert not found[0, 1:].any()


@pytest.mark.parametrize("block", [2, 512])
def test_the_complement_is_one_of_principal_angles(block, monkeypatch):
    monkeypatch.setattr(fedca, "BLOCK", block)
    basis = bases()
    wide, narrow = complement(basis, "wide"), complement(basis, "code")
    for i, one in enumerate(basis.double().numpy()):
        for j, other in enumerate(basis.double().numpy()):
            angle = np.mean(subspace_angles(one.T, other.T))
            np.testing.assert_allclose(narrow[i, j], np.cos(angle), atol=1e-3 if i == j else 1e-6)
    torch.testing.assert_close(wide, 1 - narrow)


def test_similarity_falls_with_distance():
    tables, start = drawn(4, 5, 3), drawn(5, 3, seed=1)
    found = similarity(gram(tables, torch.arange(4), start))
    expected = 1 / (1 + torch.cdist(tables.flatten(1), tables.flatten(1)))
    torch.testing.assert_close(found.float(), expected, atol=1e-3, rtol=1e-4)


def test_the_graph_solves_its_quadratic_programme():
    tables, start, basis = drawn(5, 5, 6), drawn(5, 6, seed=1), bases()
    weight = torch.tensor([10.0, 40.0, 5.0, 20.0, 25.0])
    traits = {"ids": torch.arange(5), "weight": weight, "basis": basis}
    graph = SMALL.graph({"tables": tables, "start": start}, traits)
    wide = complement(basis, "wide").numpy()
    near = similarity(gram(tables, torch.arange(5), start)).numpy()
    for i in range(5):
        linear = -0.6 * wide[i] - 0.6 * near[i] - 2 * weight.double().numpy() / 100
        found = minimize(
            lambda w, q=linear: w @ w + q @ w,
            np.full(5, 0.2),
            method="SLSQP",
            bounds=[(0, None)] * 5,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        np.testing.assert_allclose(graph[i].numpy(), found.x, atol=1e-5)


def test_a_mixed_client_starts_from_nine_tenths_of_its_own():
    federation = few_clients(10)

    def after(own):
        method = FedCA(dim=6, epochs=1, batch=32, init=0.3, directions=2, share=1.0, own=own)
        fleet = SimulatedFleet(method, federation, threads=1)
        server = method.init_server(federation)
        return method.aggregate(server, fleet.train(server, torch.arange(10), 1, Traffic()), Moment(1, 0))["tables"]

    torch.testing.assert_close(after(0.9), 0.9 * after(1.0) + 0.1 * after(0.0))


def test_the_directions_are_those_of_the_rows_trained_on():
    federation = few_clients(10)
    method = FedCA(dim=6, epochs=0, batch=32, init=0.3, directions=2)
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    (up,) = fleet.train(server, torch.tensor([4]), 1, Traffic())
    data = federation.cohort(torch.tensor([4]), 1, 4)
    items = data.rows[0][data.row[0, : int(data.samples[0])]]
    expected = PCA(2).fit(server["start"][items].double().numpy()).components_
    np.testing.assert_allclose(np.abs((up["basis"][0].double().numpy() * expected).sum(1)), np.ones(2), atol=1e-4)
