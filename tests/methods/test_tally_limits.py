import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.payload import Payload, Sparse
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.methods.tally import Tally
from toys import few_clients, random_data


def uploads(method, count=10, groups=0, federation=None):
    federation = federation or few_clients(count, groups=groups)
    ids = torch.arange(federation.n_clients)
    server = method.init_server(federation)
    (up,) = SimulatedFleet(method, federation, threads=1, chunk=100).train(server, ids, 1, Traffic())
    return up, torch.from_numpy(federation.sizes[up.ids.numpy()]), federation.n_items


def refusal(method, up, sizes, n_items, users=1):
    return method.impossible(up, method.downlink({}, up.ids), sizes, users, n_items)


def edited(up, name, make):
    f = up.fields[name]
    client, index, value = make(f.client, f.index, f.value.clone())
    return Payload(up.ids, {**up.fields, name: Sparse(client, index, value, f.shape)})


@pytest.mark.parametrize(
    "method",
    [
        Tally(),
        Tally(windows=(20, 1), decays=(0.9, 1.0)),
        Tally(windows=(5,), decays=(0.9,)),
        Tally(blend=(0.0,)),
        Tally(blend=(1.0,)),
        Tally(weights="gfcf"),
        Tally(clip=1.0),
        Tally(inputs=20),
    ],
)
@pytest.mark.parametrize("groups", [0, 3])
def test_what_honest_clients_send_is_possible(method, groups):
    assert refusal(method, *uploads(method, 10, groups), users=10 if groups else 1) == ""


@pytest.mark.parametrize("name", ["A", "C", "G"])
@pytest.mark.parametrize(
    "make",
    [
        lambda c, i, v: (c, i, v * 1.1),
        lambda c, i, v: (c, i, -v),
        lambda c, i, v: (c[1:], i[1:], v[1:]),
        lambda c, i, v: (c, (i + 1) % 100, v),
        lambda c, i, v: (torch.cat([c, c[:1]]), torch.cat([i, i[:1] + 1]), torch.cat([v, v[:1]])),
    ],
)
def test_cells_that_are_not_those_of_a_history_are_known(name, make):
    up, sizes, n_items = uploads(Tally())
    assert refusal(Tally(), edited(up, name, make), sizes, n_items)


def test_a_history_is_no_longer_than_announced():
    up, sizes, n_items = uploads(Tally())
    assert "not those of a history" in refusal(Tally(), up, sizes - (torch.arange(len(sizes)) == 0).long(), n_items)


def test_users_of_a_node_add_no_more_than_they_can():
    method = Tally(windows=(1, 20), decays=(1.0, 0.9))  # 1 + .9 + … + .9¹⁹ is 8.8
    up, sizes, n_items = uploads(method, 10, 2)
    for name, most in (("G", 6), ("C", 6), ("A", 6 * 9)):
        high = edited(up, name, lambda c, i, v, most=most: (c, i, v.clamp(min=most)))
        assert f"'{name}' has a cell" in refusal(method, high, sizes, n_items, users=5)
    assert "adds up to more" in refusal(method, up, sizes // 10, n_items, users=5)


@pytest.mark.parametrize("seed", range(5))
def test_what_came_at_once_is_read_off_the_cells(seed):
    federation = Federation.of_users(split(random_data(20, items=30, ties=True, seed=seed), "strict"))
    assert any(len(federation.split.orders(u)) == 2 for u in range(20))
    up, sizes, n_items = uploads(Tally(), federation=federation)
    assert refusal(Tally(), up, sizes, n_items) == ""
    assert refusal(Tally(), edited(up, "A", lambda c, i, v: (c, i, v * 1.1)), sizes, n_items)
    late = edited(up, "A", lambda c, i, v: (c[1:], i[1:], v[1:]))
    assert "not what its clients' histories" in refusal(Tally(), late, sizes, n_items)
