from dataclasses import dataclass

import pytest
import torch

from tacit import testing
from tacit.config import build
from tacit.core.payload import Each, Payload
from tacit.core.trained import Trained
from tacit.errors import UserError
from tacit.methods import PLUGS, find, known
from tacit.testing import Case

# One entry per method. A method without one fails below, so that nobody forgets it.
CASES = {
    # a user alone learns nothing of others' tastes from clusters of items: several users share a client here
    "cgfedrec": Case(
        quick={"dim": 8, "epochs": 1, "lr": 0.5, "table_lr": 20.0, "init": 0.3, "clusters": 4},
        planted={"lr": 1.0, "table_lr": 100.0, "init": 0.3},
        clients=10,
    ),
    "cofedrec": Case(
        quick={"dim": 8, "epochs": 1, "lr": 0.5, "table_lr": 20.0, "init": 0.3, "clusters": 4},
        planted={"lr": 1.0, "table_lr": 100.0, "init": 0.3},
        rounds=10,
        clients=10,
    ),
    "ease": Case(quick={"ridge": (20.0, 50.0, 100.0, 200.0)}, planted={}),
    "fedca": Case(
        quick={"dim": 8, "epochs": 2, "share": 0.5},
        planted={
            "optimizer": "sgd",
            "lr": 1.0,
            "table_lr": 1000.0,
            "epochs": 1,
            "init": 0.3,
            "share": 1.0,
            "own": 0.0,
            "similar": 0.1,
            "complementary": 0.0,
        },
    ),
    "fedcia": Case(
        quick={"dim": 8, "epochs": 1, "batch": 64},
        planted={"dim": 16, "epochs": 5, "batch": 256, "lr": 0.02},
        clients=10,
    ),
    "fedcia-gfcf": Case(quick={"directions": 4}, planted={}, clients=10),
    "fedmf": Case(quick={"dim": 8, "epochs": 2}, planted={"init": 0.3}, rounds=15),
    "fedncf": Case(
        quick={"dim": 8, "epochs": 1, "layers": (8, 4)},
        planted={
            "optimizer": "sgd",
            "lr": 2.0,
            "table_lr": 3000.0,
            "init": 0.5,
            "epochs": 1,
            "batch": 0,
            "layers": (32,),
        },
        rounds=40,
    ),
    "fedlightgcn": Case(quick={"dim": 8}, planted={"lr": 2.0, "table_lr": 2000.0}),
    "gfcf": Case(quick={"rank": (2, 4, 8, 16)}, planted={}),
    "gpfedrec": Case(
        quick={"dim": 8, "layers": (8, 4), "lr": 0.5, "user_lr": 1.0, "table_lr": 50.0, "init": 0.3},
        planted={
            "lr": 2.0,
            "user_lr": 8.0,
            "table_lr": 2000.0,
            "init": 0.5,
            "layers": (32,),
            "batch": 0,
            "guidance": 0.3,
        },
        rounds=20,
    ),
    "hetefedrec": Case(
        quick={"widths": (2, 4, 8), "layers": (4,), "distil_items": 20},
        planted={"lr": 1.0, "table_lr": 5.0, "init": 0.5, "fraction": 1.0, "layers": (32,), "batch": 0},
        rounds=60,
    ),
    "lightgcn": Case(quick={"dim": 8}, planted={}, rounds=20),
    "localmf": Case(quick={"dim": 8, "aggregate_from": 1}),
    "fedrap": Case(
        quick={"dim": 8, "lr": 0.5, "table_lr": 50.0, "init": 0.3, "epochs": 2, "independence": 0.01},
        planted={"lr": 1.0, "table_lr": 1000.0, "personal_lr": 1.0, "init": 0.3, "epochs": 1, "independence": 0.01},
        rounds=15,
    ),
    "mf": Case(quick={"dim": 8}, planted={"lr": 0.02}, rounds=15),
    "ncf": Case(quick={"dim": 8, "layers": (8, 4)}, planted={"lr": 0.02}, rounds=30),
    "oracle": Case(),
    # alone with its table a user fits it perfectly and its vector learns nothing: several users share a client here
    "pfedclr": Case(
        quick={"dim": 8, "epochs": 1},
        planted={"init": 0.1, "lr": 0.02, "epochs": 5, "fraction": 1.0},
        rounds=20,
        clients=10,
    ),
    "pfedgraph": Case(
        quick={"dim": 8, "epochs": 2, "share": 0.5},
        planted={
            "optimizer": "sgd",
            "lr": 1.0,
            "table_lr": 1000.0,
            "epochs": 1,
            "init": 0.3,
            "share": 1.0,
            "prior": 10.0,
        },
    ),
    "pfedrec": Case(
        quick={"dim": 8, "lr": 0.5, "table_lr": 50.0, "init": 0.3},
        planted={"lr": 1.0, "table_lr": 1000.0, "init": 0.3},
        rounds=15,
    ),
    "perfedrec": Case(quick={"dim": 8, "clusters": 3}, planted={"lr": 2.0, "table_lr": 2000.0}),
    "lgmix+fedmf": Case(
        quick={"dim": 8, "epochs": 2, "table_lr": 50.0, "init": 0.3},
        planted={"init": 0.3, "table_lr": 100.0},
        rounds=20,
        clients=10,
    ),
    # tastes are found without mixing: a table of its own keeps what a client learns from the others
    "plgc+fedmf": Case(
        quick={"dim": 8, "epochs": 2, "table_lr": 50.0, "init": 0.3, "plgc_every": 1},
        planted={"init": 0.3, "plgc_mixing": False},
        rounds=15,
    ),
    "plgc+fedncf": Case(
        quick={"dim": 8, "epochs": 1, "layers": (8, 4), "table_lr": 50.0, "init": 0.3},
        planted={"lr": 2.0, "init": 0.5, "batch": 0, "layers": (32,), "plgc_mixing": False},
        rounds=40,
    ),
    "plgc+fedrap": Case(
        quick={"dim": 8, "lr": 0.5, "table_lr": 50.0, "init": 0.3, "epochs": 2, "independence": 0.01},
        planted={
            "lr": 1.0,
            "table_lr": 1000.0,
            "personal_lr": 1.0,
            "init": 0.3,
            "epochs": 1,
            "independence": 0.01,
            "plgc_mixing": False,
        },
        rounds=15,
    ),
    "plgc+gpfedrec": Case(
        quick={"dim": 8, "layers": (8, 4), "lr": 0.5, "user_lr": 1.0, "table_lr": 50.0, "init": 0.3},
        planted={
            "lr": 2.0,
            "user_lr": 8.0,
            "table_lr": 2000.0,
            "init": 0.5,
            "layers": (32,),
            "batch": 0,
            "guidance": 0.3,
            "plgc_mixing": False,
        },
        rounds=20,
    ),
    "plgc+perfedrec": Case(
        quick={"dim": 8, "clusters": 3, "table_lr": 50.0, "init": 0.3},
        planted={"lr": 2.0, "table_lr": 2000.0, "plgc_mixing": False},
    ),
    "plgc+pfedrec": Case(
        quick={"dim": 8, "lr": 0.5, "table_lr": 50.0, "init": 0.3},
        planted={"lr": 1.0, "table_lr": 1000.0, "init": 0.3, "plgc_mixing": False},
        rounds=15,
    ),
    "popularity": Case(),
    "sasrec": Case(
        quick={"dim": 8, "window": 8, "dropout": 0.0}, planted={"dim": 32, "window": 20, "lr": 0.003}, rounds=8
    ),
    "tally": Case(quick={"ridge": (1.0, 2.0), "blend": (0.0, 0.3)}, planted={}),
    "tally-private": Case(quick={"dp_seed": 0, "inputs": 40, "rank": 2}, planted={"epsilon": 1000.0, "inputs": 1000}),
}

methods = pytest.mark.parametrize("name", CASES)


def made(name):
    return build(find(name), CASES[name].quick)


def test_every_method_has_a_case_and_every_case_a_method():
    plugged = {name for name in CASES if "+" in name}
    assert set(CASES) - plugged == set(known()), "add a line to CASES for a new method"
    assert {name.partition("+")[0] for name in plugged} == set(PLUGS.known()), "and one for a new plug-in"


@methods
def test_chunks_and_threads_do_not_show(name):
    testing.check_chunks(made(name), testing.clients(made(name)))


@methods
def test_the_server_may_see_only_sums(name):
    testing.check_secure(made(name))


@methods
def test_nothing_private_is_sent(name):
    testing.check_nothing_private_is_sent(made(name))


@methods
def test_payloads_pass_over_the_wire(name):
    testing.check_wire(made(name))


@methods
def test_bytes_are_exact(name):
    testing.check_bytes(made(name))


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@methods
def test_noise_covers_every_upload(name, kind):
    method = made(name)
    if method.pooled:
        pytest.skip("nobody uploads anything")
    if name in ("tally", "tally-private"):  # its cells are refused
        with pytest.raises(UserError, match="--set epsilon=8"):
            testing.check_protected(method, kind)
    else:
        testing.check_protected(method, kind)


@methods
def test_everyone_starts_by_themselves(name):
    testing.check_start(made(name))


@methods
def test_absent_clients_stay_as_they_are(name):
    testing.check_absent_clients(made(name))


@methods
def test_every_user_is_scored(name):
    testing.check_scores(made(name), testing.clients(made(name)))


@methods
def test_clients_of_many_users(name):
    if not CASES[name].many_users:
        pytest.skip("a client of many users makes no sense for it")
    testing.check_chunks(made(name), testing.mixed_clients())
    testing.check_scores(made(name), testing.mixed_clients())


@methods
def test_resumed_is_uninterrupted(name, tmp_path):
    testing.check_resume(name, CASES[name].quick, tmp_path)


@methods
def test_planted_tastes_are_found(name, tmp_path):
    case = CASES[name]
    if case.planted is None:
        pytest.skip("it does not learn tastes")
    testing.check_planted(name, case, tmp_path)


# The checks themselves, on methods that are wrong on purpose.


@dataclass(frozen=True)
class Leaking(Trained):
    """Sends the private vector under another name."""

    def uplink(self, p, down, data):
        up = super().uplink(p, down, data)
        return Payload(up.ids, {**up.fields, "extra": Each(p["user"][:, 0])})


@dataclass(frozen=True)
class Disguised(Trained):
    """Sends the private vector scrambled."""

    def uplink(self, p, down, data):
        up = super().uplink(p, down, data)
        return Payload(up.ids, {**up.fields, "extra": Each(p["user"].square().sum((1, 2)))})


@dataclass(frozen=True)
class Global(Trained):
    """Draws from torch's global generator."""

    def receive(self, clients, down, data):
        p = super().receive(clients, down, data)
        return p | {"user": p["user"] + 0.01 * torch.randn(p["user"].shape)}


@dataclass(frozen=True)
class Averaging(Trained):
    """Divides the loss by the size of the chunk."""

    def loss(self, p, batch):
        return super().loss(p, batch) / len(batch.size)


SMALL = {"dim": 4, "epochs": 1, "optimizer": "sgd", "lr": 0.5, "init": 0.3}


@pytest.mark.parametrize("wrong", [Leaking, Disguised])
def test_a_leak_is_caught(wrong):
    with pytest.raises(AssertionError, match=r"'extra' of the upload (is|carries)"):
        testing.check_nothing_private_is_sent(wrong(**SMALL))


@dataclass(frozen=True)
class Seeded(Trained):
    """Starts users from torch's generator, seeded anew."""

    def init_users(self, federation, users):
        torch.manual_seed(0)
        return {"user": torch.randn(len(users), self.dim)}


def test_a_start_that_depends_on_others_is_caught():
    with pytest.raises(AssertionError, match=r"'user' of number \d+ starts differently"):
        testing.check_start(Seeded(**SMALL))


@pytest.mark.parametrize("wrong", [Global, Averaging])
def test_what_depends_on_the_chunk_is_caught(wrong):
    with pytest.raises(AssertionError):
        testing.check_chunks(wrong(**SMALL), testing.clients(wrong(**SMALL), users=12))


@pytest.mark.parametrize("change", [{}, {"optimizer": "adam", "lr": 0.01, "batch": 32}])
def test_a_right_method_passes_all(change):
    testing.check_all(Trained(**SMALL | change))
