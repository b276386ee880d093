"""The secure sum over methods; that every method comes to the same state is in tests/methods/test_conformance.py."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tacit import testing
from tacit.config import config
from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.core.payload import Each, Payload, Rows, Shared
from tacit.core.trained import Trained
from tacit.errors import UserError
from tacit.methods import known
from tacit.methods.fedncf import FedNCF
from tacit.methods.pfedgraph import PFedGraph
from tacit.methods.references import EASE, Popularity
from tacit.methods.tally import Tally
from tacit.privacy.gaussian import gaussian_epsilon
from tacit.privacy.mask_graph import degree_and_threshold
from tacit.privacy.secure_fleet import SecureFleet, check_sum
from tacit.privacy.secure_sum import STAGES, honest
from tacit.privacy.shared_noise import SharedGaussian
from tacit.runs.folder import RunFolder
from tacit.runs.run import reopen, run, start
from toys import few_clients

SMALL = {"dim": 4, "epochs": 1, "optimizer": "sgd", "lr": 0.5, "table_lr": 50.0, "init": 0.3}
FEDMF = Trained(**SMALL)


def uploads(method, federation, kind=SecureFleet, server=None, ids=None, **change):
    """(the server, what reaches it in the first round, traffic)."""
    fleet, traffic = kind(method, federation, threads=1), Traffic()
    for name, value in change.items():
        setattr(fleet, name, value)
    server = method.init_server(federation) if server is None else server
    ids = torch.arange(federation.n_clients) if ids is None else ids
    return server, list(fleet.train(server, ids, 1, traffic)), traffic


def test_the_server_gets_the_weighted_mean_and_the_total_weight_and_nothing_else():
    federation = few_clients(12)
    server, (up,), traffic = uploads(FEDMF, federation)
    _, parts, _ = uploads(FEDMF, federation, SimulatedFleet)
    assert up.ids.tolist() == [-1]
    assert set(up.fields) == {"items", "weight"}
    weights = torch.cat([part["weight"] for part in parts]).double()
    tables = torch.cat([part["items"] for part in parts]).double()
    assert up["weight"].tolist() == pytest.approx([float(weights.sum())])
    expected = torch.einsum("c,cmd->md", weights, tables) / weights.sum()
    torch.testing.assert_close(up["items"][0], expected, atol=1e-12, rtol=0)
    assert (up["items"][0] - server["items"]).abs().max() > 1e-3
    assert traffic.clients == 12


@pytest.mark.parametrize("stage", STAGES)
def test_the_mean_is_that_of_the_clients_in_the_sum(stage):
    federation = few_clients(12)
    gone = [2, 5, 11]
    _, (up,), _ = uploads(FEDMF, federation, drops={stage: gone})
    left = torch.tensor([i for i in range(12) if i not in gone or stage in ("ConsistencyCheck", "Unmask")])
    server, parts, _ = uploads(FEDMF, federation, SimulatedFleet, ids=left)
    expected = FEDMF.aggregate(server, iter(parts), Moment(1, 0))
    torch.testing.assert_close(FEDMF.aggregate(server, iter([up]), Moment(1, 0)), expected, atol=1e-6, rtol=1e-6)


def test_several_leaves_and_sums_without_weights():
    for method in (FedNCF(**SMALL, layers=(8, 4)), Popularity(), Tally(ridge=(1.0,), blend=(0.3, 0.5))):
        testing.check_secure(method)


@dataclass(frozen=True)
class Anchored(Trained):
    """Sends tables over a base of its own and sums of another kind than it receives."""

    def whole(self, name, p, down, data):
        base = torch.linspace(0, 1, len(data.ids))[:, None, None] + down[name]
        return Rows(p[name], data.rows, data.real, base)


def test_a_table_over_a_base_of_its_own():
    testing.check_secure(Anchored(**SMALL))


def test_bytes_are_those_of_the_protocol_beside_what_the_method_sends():
    federation = few_clients(12)
    items = federation.n_items
    _, _, plain = uploads(FEDMF, federation, SimulatedFleet)
    _, _, traffic = uploads(FEDMF, federation)
    k, _ = degree_and_threshold(12, colluding=1, dropping=3)
    messages = 80 + (12 + 86 * k) + 12 + (12 + 20 * k) + (20 + 37 * k)
    assert traffic.bytes_up == 12 * (messages + 8 * (4 * items + 1))
    down = 28 + (28 + 72 * k) + (8 + 86 * k) + (4 + 4 * 12) + (8 + 20 * k)
    assert traffic.bytes_down == plain.bytes_down + 12 * down


def test_a_round_without_clients_or_without_uploads_needs_no_protocol():
    federation = few_clients(12)
    assert uploads(FEDMF, federation, ids=torch.arange(0))[1] == []
    _, got, traffic = uploads(known()["oracle"](), federation)
    assert all(not up.fields for up in got)
    assert traffic.bytes_up == 0
    assert traffic.clients == 12


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (PFedGraph(), r"pfedgraph does not work with a secure sum, because the server needs every client's own upload: "
                      r"it compares clients' tables .*; run it without --secure"),
        (known()["fedca"](), "fedca does not work with a secure sum, .* it compares clients' tables"),
        (known()["perfedrec"](), "perfedrec does not work with .* it groups clients by their user vectors"),
        (EASE(), "ease is centralised: one client holds all data"),
    ],
)  # fmt: skip
def test_a_refusal_says_which_and_why(method, sentence):
    with pytest.raises(UserError, match=sentence):
        check_sum(method)


def test_an_aggregation_of_ones_own_is_refused_until_it_says_that_a_sum_is_enough():
    @dataclass(frozen=True)
    class Own(Trained):
        def aggregate(self, server, uplinks, now):
            return super().aggregate(server, uplinks, now)

    @dataclass(frozen=True)
    class Heir(Own):
        pass

    @dataclass(frozen=True)
    class Summed(Own):
        individual = ""

    for method in (Own(), Heir()):
        with pytest.raises(UserError, match="does not say that a sum is enough"):
            check_sum(method)
    check_sum(Summed())
    check_sum(Trained())


def test_too_few_clients_too_many_values_and_wild_ones_are_refused():
    with pytest.raises(UserError, match="a secure sum of 2 clients hides nothing"):
        uploads(FEDMF, few_clients(12, groups=2))
    wide = Tally(windows=tuple(range(1, 9)), decays=(1.0,) * 8)
    with pytest.raises(UserError, match=r"a client of tally would send 1,[0-9,]+ values, .* --set inputs=100"):
        uploads(wide, few_clients(12))
    with pytest.raises(UserError, match=r"an upload of method has a value of .*, and a secure sum carries ±1,048,576"):
        uploads(replace(FEDMF, table_lr=1e12), few_clients(12))

    @dataclass(frozen=True)
    class Alike(Trained):
        def uplink(self, p, down, data):
            return Payload(data.ids, {"one": Shared(torch.ones(1)), "weight": Each(torch.ones(len(data.ids)))})

    with pytest.raises(UserError, match="'one' of method's upload is the same for all clients"):
        uploads(Alike(), few_clients(12))


def test_noise_is_added_by_the_clients_together():
    federation = few_clients(20)
    noise = SharedGaussian(clip=0.1, ratio=2.0, contributors=honest(20))
    server, (quiet,), _ = uploads(FEDMF, federation, protection=replace(noise, ratio=0.0))
    change = 20 * (quiet["items"][0] - server["items"])
    assert 0 < float(change.norm()) <= 20 * 0.1
    assert quiet["weight"].item() == 20, "sizes would tell on clients: all weigh the same"
    _, (loud,), _ = uploads(FEDMF, federation, protection=noise)
    added = 20 * (loud["items"] - quiet["items"]).numpy().ravel()
    assert honest(20) == 20 - 6 - 2  # without dropouts and colluding clients
    assert np.std(added) == pytest.approx(0.2 * (20 / 12) ** 0.5, rel=0.1)


def test_a_secure_run_is_the_plain_one(tmp_path):
    options = {"data": "demo", "rounds": 2, "threads": 1, "clients": 12, "settings": {"dim": 4}}
    plain = run("fedmf", out=tmp_path / "plain", **options)
    secure = run("fedmf", out=tmp_path / "secure", secure=True, **options)
    for metric, value in plain.test.items():  # a near-tie may turn
        assert secure.test[metric] == pytest.approx(value, abs=0.007, rel=0.005), metric
    assert secure.bytes_up > 2 * plain.bytes_up * 0.99
    with pytest.raises(UserError, match="pfedgraph does not work with a secure sum"):
        run("pfedgraph", out=tmp_path / "none", secure=True, **options)
    assert not (tmp_path / "none").exists()


def test_a_run_with_shared_noise_states_its_central_epsilon(tmp_path):
    options = {"data": "demo", "rounds": 3, "threads": 1, "clients": 12, "settings": {"dim": 4}, "secure": True}
    made = run("fedmf", out=tmp_path / "noise", dp="clip=0.5,noise=4", **options)
    assert (made.dp["contributors"], made.dp["ratio"], made.ldp) == (12 - 3 - 1, 4, None)
    assert made.epsilon == pytest.approx(gaussian_epsilon(4 / 3**0.5, 1e-5))
    assert made.dp["epsilon_round"] == pytest.approx(gaussian_epsilon(4, 1e-5))
    lines = RunFolder.open(tmp_path / "noise").rounds()
    assert [line["epsilon"] for line in lines] == pytest.approx([gaussian_epsilon(4 / n**0.5, 1e-5) for n in (1, 2, 3)])
    assert reopen(tmp_path / "noise").mechanism == SharedGaussian(0.5, 4.0, 8)
    asked = start(config(method="fedmf", dp="clip=0.5,epsilon=2", **options), tmp_path / "budget")
    assert 1.99 < asked.mechanism.epsilon(3) <= 2
    for wrong in ({"secure": False}, {"ldp": "clip=1,scale=1"}):
        with pytest.raises(UserError, match="needs --secure and excludes --ldp"):
            config(method="fedmf", dp="clip=0.5,noise=4", **options | wrong)
    for both in ("clip=1", "clip=1,noise=1,epsilon=1"):
        with pytest.raises(UserError, match="dp: write either noise="):
            config(method="fedmf", dp=both, **options)


def test_a_server_that_leaves_some_uploads_out_cannot_do_with_a_sum():
    with pytest.raises(UserError, match="unless aggregated is 1"):
        check_sum(Trained(aggregated=0.6))
    check_sum(Trained(aggregated=1.0))
