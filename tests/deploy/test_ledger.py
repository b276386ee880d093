"""What a node's users have spent is counted on the node, whatever a server says."""

import dataclasses
import logging
import math

import pytest
import torch

from deploy.direct import Direct, federation_of, job_of
from deploy.test_server import SETTINGS, asked, go, nodes
from tacit.config import config
from tacit.core.fleet import Traffic
from tacit.core.payload import Change
from tacit.deploy.forget import forget
from tacit.deploy.ledger import Ledger
from tacit.deploy.node import Node
from tacit.deploy.vault import Vault
from tacit.deploy.wire import VERSION, Packet, unpack
from tacit.errors import UserError
from tacit.privacy.mechanisms import Gaussian, Laplace, UnclippedGaussian
from toys import few_users

NOISE = Gaussian(4.0, 0.5)


def noisy(data, mechanism=NOISE, **options):
    return job_of(data, "fedmf", SETTINGS, ldp=mechanism.stated(), **options)


def train(node, fleet, round=1, ids=range(8)):
    """Ask a node of a fleet once more, as a server may."""
    down = fleet.method.downlink(fleet.method.init_server(fleet.federation), torch.tensor(list(ids)))
    head = {"job": fleet.job.id, "place": [0, 0], "keep": [0], "round": round}
    return unpack(node.answer(Packet("train", head, down.encode()).pack()))


def test_a_round_that_is_asked_for_again_is_counted_again_and_refused_above_the_bound(tmp_path, caplog):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, noisy(data))
    node = link.named["n0"]
    careful = Node(node.data, node.vault.path, threads=1, max_epsilon=NOISE.epsilon(5))
    with caplog.at_level(logging.INFO, "tacit.node"):
        kinds = [train(careful, fleet).kind for _ in range(12)]
    assert kinds == ["trained"] * 5 + ["sorry"] * 7
    assert careful.ledger.epsilon(node.work.users) == pytest.approx(NOISE.epsilon(5))
    assert f"ε = {NOISE.epsilon(5):.4g} at most over all runs" in caplog.text
    assert f"ledger.json, above --max-epsilon {NOISE.epsilon(5):g}; start the node with more" in caplog.text
    again = Node(node.data, node.vault.path, threads=1, max_epsilon=NOISE.epsilon(5))
    assert train(again, fleet).kind == "sorry", "a restart forgets nothing"
    assert train(Node(node.data, node.vault.path, threads=1), fleet).kind == "trained"
    assert careful.ledger.epsilon(node.work.users) == pytest.approx(NOISE.epsilon(6)), "counted without a bound, too"


def test_runs_add_up_and_their_order_does_not_matter(tmp_path):
    vault = Node(few_users(4), tmp_path, threads=1).vault
    ledger = Ledger(vault)
    other = Laplace(3.0, 0.25)
    for job, mechanism, users in (("a", NOISE, "xy"), ("b", NOISE, "x"), ("c", other, "y"), ("a", NOISE, "x")):
        ledger.charge(job, mechanism, users)
    assert ledger.epsilon("x") == pytest.approx(NOISE.epsilon(3))
    assert ledger.epsilon("y") == pytest.approx(NOISE.epsilon(1) + other.epsilon(1))
    assert ledger.epsilon("z") == 0
    assert Ledger(Vault(tmp_path)).epsilon("x") == ledger.epsilon("x")
    # the server names the δ of a job: a large one would make everything cheap
    lax = Ledger(Vault(tmp_path / "lax"))
    lax.charge("a", dataclasses.replace(NOISE, delta=0.9), "x")
    assert lax.epsilon("x") == pytest.approx(NOISE.epsilon(1))
    assert lax.epsilon("x") > dataclasses.replace(NOISE, delta=0.9).epsilon(1)
    bounded = Ledger(Vault(tmp_path), NOISE.epsilon(3))
    with pytest.raises(UserError, match=r"would bring a user to ε = .* by .*ledger.json, above --max-epsilon"):
        bounded.charge("d", NOISE, "x")
    with pytest.raises(UserError, match="would bring a user to ε = inf"):
        bounded.charge("d", UnclippedGaussian(1.0), "z")
    bounded.charge("d", NOISE, "z")
    (tmp_path / "ledger.json").write_text('{"a": 3}')
    with pytest.raises(UserError, match=r"ledger\.json is damaged, and with it what was spent"):
        ledger.charge("a", NOISE, "x")


def test_nothing_leaves_that_is_not_on_disk(tmp_path, monkeypatch):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, noisy(data))
    node = link.named["n0"]
    train(node, fleet)
    monkeypatch.setattr(node.vault, "write_json", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
    reply = train(node, fleet)
    assert (reply.kind, reply.body) == ("sorry", b"")


def test_a_node_with_a_bound_takes_no_part_without_noise(tmp_path, caplog):
    data = few_users(24)
    careful = Node(data, tmp_path, threads=1, max_epsilon=1.0)
    for job, answer in ((job_of(data, "fedmf", SETTINGS), "sorry"), (noisy(data), "here")):
        assert unpack(careful.answer(Packet("hello", {"version": VERSION}, job.dump()).pack())).kind == answer
    assert "the run adds no noise to uploads, and this node was started with --max-epsilon 1" in caplog.text


@pytest.mark.parametrize("together", [False, True])
def test_sizes_and_loss_stay_where_noise_is_to_hide_them(tmp_path, together):
    data = few_users(24)
    heads = {}
    for name, job in (
        ("plain", job_of(data, "fedmf", SETTINGS, together=together)),
        ("noisy", noisy(data, together=together)),
        ("unclipped", noisy(data, UnclippedGaussian(0.1), together=together)),
    ):
        fleet, link = federation_of(tmp_path / name, data, job)
        clients = torch.arange(fleet.federation.n_clients)
        list(fleet.train(fleet.method.init_server(fleet.federation), clients, 1, Traffic()))
        heads[name] = {unpack(reply).kind: unpack(reply).head for who, _, reply in link.seen if who == "n0"}
    for name in ("plain", "unclipped"):
        assert max(heads[name]["here"]["sizes"]) > 1
        assert heads[name]["trained"]["loss"] > 0 < heads[name]["trained"]["seconds"]
    assert set(heads["noisy"]["here"]["sizes"]) == {1}
    assert heads["noisy"]["trained"] == {"round": 1, "loss": None}
    assert (heads["noisy"]["here"]["dropped"], heads["noisy"]["here"]["duplicates"]) == (0, 0)


def test_all_users_of_a_node_that_is_a_client_spend(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, noisy(data, together=True))
    list(fleet.train(fleet.method.init_server(fleet.federation), torch.arange(3), 1, Traffic()))
    for node in link.named.values():
        assert {node.ledger.epsilon([user]) for user in node.work.users} == {NOISE.epsilon(1)}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kills", [0, 3])
def test_the_stated_epsilon_is_that_of_what_was_asked_for(tmp_path, kills):
    """A server that is killed in its second round, again and again, asks nodes for that round again."""
    ldp = "kind=gaussian,clip=0.5,epsilon=8"
    made = config(method="fedmf", data="nodes", rounds=3, settings=SETTINGS, ldp=ldp)
    what, link = dataclasses.replace(asked(tmp_path), config=made), Direct(nodes(tmp_path))

    def ask_and_die(messages, seconds):
        for i, reply in Direct.ask(link, messages, seconds):
            packet = unpack(reply)
            if i == 2 and packet.kind == "trained" and packet.head["round"] == 2:
                raise Killed
            yield i, reply

    for _ in range(kills):
        link.ask = ask_and_die
        with pytest.raises(Killed):
            go(tmp_path, link, what)
    link.ask = lambda messages, seconds: Direct.ask(link, messages, seconds)
    found = go(tmp_path, link, what)
    mechanism = Gaussian(found.ldp["scale"], found.ldp["clip"])
    spent = max(node.ledger.epsilon(node.work.users) for node in link.named.values())
    assert found.epsilon == pytest.approx(spent) == pytest.approx(mechanism.epsilon(3 + kills))
    assert (found.epsilon > 10) == (kills == 3)
    assert not math.isinf(spent)


def hello(node, job):
    return unpack(node.answer(Packet("hello", {"version": VERSION}, job.dump()).pack()))


@pytest.mark.parametrize("scale", [1e-9, math.nan, math.inf, -1.0, 1e-40, "1"])
@pytest.mark.parametrize("clip", [math.nan, 0.0, 1e-42, -1.0])
def test_a_server_cannot_ask_for_noise_that_is_no_noise(tmp_path, scale, clip):
    """With a bound that is no number touched rows were NaN, others not, and ε = 0 was counted."""
    data = few_users(4)
    careful = Node(data, tmp_path, "n", threads=1, max_epsilon=1.0)
    asked = job_of(data, "fedmf", SETTINGS, ldp={"kind": "gaussian", "scale": scale, "clip": clip})
    assert hello(careful, asked).kind == "sorry"


def test_with_a_bound_on_epsilon_no_size_is_told_to_a_run_that_bounds_none(tmp_path):
    data = few_users(4)
    job = noisy(data, UnclippedGaussian(1.0))
    assert hello(Node(data, tmp_path / "a", "n", threads=1, max_epsilon=1.0), job).kind == "sorry"
    assert hello(Node(data, tmp_path / "b", "n", threads=1), job).kind == "here"


def test_an_epsilon_that_is_no_number_is_above_every_bound(tmp_path, monkeypatch):
    ledger = Ledger(Node(few_users(4), tmp_path, threads=1).vault, 1.0)
    monkeypatch.setattr(Ledger, "_spent", lambda *_: math.nan)
    with pytest.raises(UserError, match="above --max-epsilon 1"):
        ledger.charge("a", NOISE, "x")


def test_forgotten_users_spend_nothing(tmp_path):
    data = few_users(24)
    fleet, link = federation_of(tmp_path, data, noisy(data))
    node = link.named["n0"]
    for user in node.work.users[:3]:
        forget(node.vault.path, user)
    careful = Node(node.data, node.vault.path, threads=1, max_epsilon=NOISE.epsilon(2))
    kinds = [train(careful, fleet, round).kind for round in (1, 2, 3)]
    assert kinds == ["trained", "trained", "sorry"]


def test_a_change_beyond_measure_is_not_rounded_above_its_bound():
    change = Change(torch.full((1, 4096), 0.51 * 2.0**60))
    size = float(change.value.double().norm())
    noise = Gaussian(1.0, 0.5001 * 2.0**-149 * size)
    noise.bound([change], 1)
    assert float(change.value.double().norm()) <= noise.clip
