"""What every method must hold to, whatever it computes. Each check takes a method and raises where it does not.

A method of your own passes through the same checks, in a test or at the prompt:

    from tacit.testing import check_all, check_resume
    check_all(MyMethod(epochs=1))
    check_resume("my_module:MyMethod", {"epochs": 1}, tmp_path)
"""

import contextlib
import dataclasses
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tacit.core.fleet import Protection, SimulatedFleet, Traffic
from tacit.core.leaves import named
from tacit.core.local import local_round
from tacit.core.method import Method, Moment
from tacit.core.payload import Cut, Few, Payload, Shared, Sparse, State, decode
from tacit.core.store import ClientStore
from tacit.core.trained import Trained, singly, used
from tacit.core.trial import check_method
from tacit.data.cohort import Federation
from tacit.data.demo import demo
from tacit.data.interactions import Interactions, from_columns
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from tacit.errors import UserError
from tacit.privacy import mechanisms
from tacit.privacy.secure_fleet import SecureFleet
from tacit.runs.folder import RunFolder
from tacit.runs.run import Summary, resume, run

CLOSE = 1e-5
MEASURED = ("seconds", "cpu_seconds", "peak_memory_mb", "folder")  # what may differ between equal runs


@dataclass(frozen=True)
class Case:
    """How to try a method quickly."""

    quick: dict[str, Any] = field(default_factory=dict)  # settings that make a round cheap
    planted: dict[str, Any] | None = None  # settings that find planted tastes; None: it does not learn tastes
    rounds: int = 20  # for `planted`
    clients: int = 0  # for `planted`; 0: one for each user
    many_users: bool = True  # whether a client of many users makes sense


@cache
def few_users(count: int) -> Interactions:
    """The first users of the demo."""
    data = demo()
    kept = data.user < count
    assert data.time is not None
    return from_columns("few", data.user[kept], data.item[kept], data.time[kept])


def clients(method: Method, users: int = 70) -> Federation:
    """A client per user; a few clients for a centralised method, which would have a single one."""
    divided = split(few_users(users), "strict")
    return Federation.of_groups(divided, 5) if method.pooled else Federation.of_users(divided)


def mixed_clients() -> Federation:
    """Clients of one, two and many users side by side."""
    divided = split(few_users(30), "strict")
    owner = np.concatenate([np.arange(6), np.repeat([6, 7, 8], 2), np.repeat([9, 10], 9)])
    return Federation(divided, Ragged.of(owner, np.arange(30), 11))


def trained(
    method: Method,
    federation: Federation,
    chunk: int = 64,
    threads: int = 1,
    rounds: int = 2,
    kind: type[SimulatedFleet] = SimulatedFleet,
    protection: Protection | None = None,
) -> tuple[State, State]:
    """(server, all clients' leaves) after a few rounds."""
    fleet = kind(method, federation, chunk=chunk, threads=threads, protection=protection)
    server = method.init_server(federation)
    for round in range(1, rounds + 1):
        torch.manual_seed(1000 * chunk + round)  # a draw from the global generator would show
        traffic = Traffic()
        ids = torch.arange(federation.n_clients if method.asks(round) else 0)
        now = Moment(round, 0)
        server = method.aggregate(server, used(method, fleet.train(server, ids, round, traffic), now), now)
        assert traffic.clients == len(ids), "an aggregation must wait for all uploads"
    return server, fleet.store.leaves


def one_round(method: Method, federation: Federation, ids: torch.Tensor) -> tuple[dict[str, Any], Payload, Payload]:
    """(kept, downlink, uplink) of these clients in their first round."""
    data = method.data(federation, ids, 1)
    down = method.downlink(method.init_server(federation), ids)
    kept, up, _ = local_round(method, ClientStore(method, federation).read(data), down, data)
    return kept, down, up


def check_chunks(method: Method, federation: Federation, protection: Protection | None = None) -> None:
    """Neither the chunks nor the threads show in the server's state or the clients'."""
    expected = trained(method, federation, protection=protection)
    for chunk, threads in ((1, 1), (7, 1), (7, 2), (64, 2)):
        found = trained(method, federation, chunk, threads, protection=protection)
        for one, other in zip(expected, found, strict=True):
            assert set(one) == set(other)
            for name, value in one.items():
                torch.testing.assert_close(other[name], value, atol=CLOSE, rtol=CLOSE)


def check_start(method: Method) -> None:
    """Where a client or a user starts does not depend on who starts with it."""
    federation = clients(method, users=12)
    for owners, start in ((federation.n_clients, method.init_clients), (federation.n_users, method.init_users)):
        together = start(federation, torch.arange(owners))
        for one in (0, owners - 1):
            for name, value in start(federation, torch.tensor([one])).items():
                same = torch.equal(value[0], together[name][one])
                assert same, f"'{name}' of number {one} starts differently among others: draw it with tacit.rng"


def check_secure(method: Method) -> None:
    """A server that sees only sums comes to the same state, or the method says what it needs single uploads for."""
    federation = clients(method, users=12)
    if singly(method) or method.pooled:
        said = ""
        try:
            trained(method, federation, kind=SecureFleet)
        except UserError as refused:
            said = str(refused)
        assert method.name in said, "a secure sum must be refused, by name, where single uploads are needed"
        return
    plain, secure = (trained(method, federation, kind=kind)[0] for kind in (SimulatedFleet, SecureFleet))
    assert set(plain) == set(secure)
    for name, value in plain.items():
        torch.testing.assert_close(secure[name], value, atol=CLOSE, rtol=CLOSE)


def check_nothing_private_is_sent(method: Method) -> None:
    """Private leaves are not in the upload, neither by name nor by value nor in disguise."""
    federation = clients(method, users=12)
    ids = torch.arange(federation.n_clients)
    kept, _, up = one_round(method, federation, ids)
    stored = ClientStore(method, federation).leaves
    again = {n for n in stored if n == "trained" or n.startswith("own_")}  # what is shared, once more
    private = set(named(method.leaves(), "private")) - again
    assert set(stored) <= private | again | set(named(method.leaves(), "kept")), "a leaf is stored and not declared"
    assert not private & set(up.fields), "a private leaf is a field of the upload"
    for leaf in private:
        for name, sent in up.fields.items():
            value = sent.dense()
            for c in range(len(ids)):
                mine, theirs = kept[leaf][c].flatten(), (value if isinstance(sent, Shared) else value[c]).flatten()
                same = mine.shape == theirs.shape and mine.any() and torch.allclose(mine.float(), theirs.float())
                assert not same, f"'{name}' of the upload is the private leaf '{leaf}'"

    # without training an upload must not depend on private leaves at all
    still = _without_training(method)
    data = method.data(federation, ids, 1)
    down = still.downlink(still.init_server(federation), ids)
    own = ClientStore(still, federation).read(data)
    noise = torch.Generator().manual_seed(0)
    other = {n: x + torch.randn(x.shape, generator=noise).to(x.dtype) if n in private else x for n, x in own.items()}
    before, after = (local_round(still, leaves, down, data)[1] for leaves in (own, other))
    for name in before.fields:
        assert torch.equal(before[name], after[name]), f"'{name}' of the upload carries a private leaf in disguise"


def _without_training(method: Method) -> Method:
    made: Any = type("Still", (type(method),), {"phases": lambda self, round: []})
    still: Method = made(**{f.name: getattr(method, f.name) for f in dataclasses.fields(method)})
    return still


def check_wire(method: Method) -> None:
    """A payload comes back from its bytes, and the server cannot tell the difference."""
    federation = clients(method, users=12)
    _, down, up = one_round(method, federation, torch.arange(federation.n_clients))
    for sent in (down, up):
        back = decode(sent.encode())
        assert torch.equal(back.ids, sent.ids)
        assert set(back.fields) == set(sent.fields)
        for name in sent.fields:
            assert back[name].dtype == sent[name].dtype
            assert torch.equal(back[name], sent[name])
    server = method.init_server(federation)
    direct, over_wire = (method.aggregate(dict(server), iter([x]), Moment(1, 0)) for x in (up, decode(up.encode())))
    assert set(direct) == set(over_wire)
    assert set(direct) >= set(server), "an aggregation must give the whole server state"
    for name, value in direct.items():
        torch.testing.assert_close(over_wire[name], value, atol=CLOSE, rtol=CLOSE)


def check_bytes(method: Method) -> None:
    """Bytes are those of the dense tensors of every client, and what one client's encoding holds.

    Of a field sent as single cells they are those of the cells. How many cells are whose is an address, like the ids,
    and so is which of a few values or which columns are whose.
    """
    federation = clients(method, users=12)
    for ids in (torch.arange(federation.n_clients), torch.tensor([1])):
        _, down, up = one_round(method, federation, ids)
        for sent in (down, up):
            total = 0
            for sending in sent.fields.values():
                if isinstance(sending, Sparse):
                    total += len(sending.value) * (4 + 4)
                    continue
                if isinstance(sending, Few):
                    total += sum(sending.values[g].numel() * sending.values[g].element_size() for g in sending.group)
                    continue
                if isinstance(sending, Cut):
                    one = sending.dense()
                    for client, (first, behind) in enumerate(sending.columns.tolist()):
                        total += one[client][..., first:behind].numel() * one.element_size()
                        assert not one[client][..., :first].any()
                        assert not one[client][..., behind:].any()
                    continue
                dense = sending.dense()
                times = len(ids) if isinstance(sending, Shared) else 1
                total += times * dense.numel() * dense.element_size()
            assert sent.nbytes() == total
            if len(ids) == 1:
                blob = sent.encode()
                header = 8 + int.from_bytes(blob[:8], "little")
                owners = 8 * sum(isinstance(sending, Sparse | Few) for sending in sent.fields.values())
                owners += 16 * sum(isinstance(sending, Cut) for sending in sent.fields.values())
                assert len(blob) - header - sent.ids.nbytes - owners == sent.nbytes()


def check_protected(method: Method, kind: Literal["laplace", "gaussian"]) -> None:
    """Under a clipped mechanism nothing goes out that the bound does not cover, and noise does not show chunks."""
    federation = clients(method, users=12)
    _, down, up = one_round(method, federation, torch.arange(federation.n_clients))
    sent = mechanisms.named(kind, 1e-12, clip=0.5)(up, down, federation.seed, 1)
    assert set(sent.fields) == set(up.fields)
    assert sent.nbytes() == up.nbytes()
    total, power = torch.zeros(len(up.ids), dtype=torch.float64), 1 if kind == "laplace" else 2
    for name in up.fields:
        if name == "weight":
            assert (sent[name] == 1).all(), "the weight tells how much a client holds"
            continue
        base = down[name].double() if name in down and down[name].shape[-1:] == up[name].shape[-1:] else 0.0
        total += (sent[name].double() - base).reshape(len(up.ids), -1).abs().pow(power).sum(1)
    assert (total.pow(1 / power) <= 0.5 + CLOSE).all(), "an upload passes the bound"
    check_chunks(method, clients(method, users=20), mechanisms.named(kind, 0.01, clip=0.5))


def check_absent_clients(method: Method) -> None:
    """A client that is not in a round keeps its leaves."""
    federation = clients(method, users=12)
    fleet = SimulatedFleet(method, federation, threads=1)
    before = {n: x.clone() for n, x in fleet.store.leaves.items()}
    present = torch.tensor([1, 3])
    list(fleet.train(method.init_server(federation), present, 1, Traffic()))
    for name, leaf in fleet.store.leaves.items():
        owners = (
            present
            if name not in (leaves := method.leaves()) or not leaves[name].per_user
            else torch.from_numpy(np.concatenate([federation.members[c] for c in present.tolist()]))
        )
        absent = torch.ones(len(leaf), dtype=torch.bool)
        absent[owners] = False
        assert torch.equal(leaf[absent], before[name][absent]), f"'{name}' of an absent client moved"


def check_scores(method: Method, federation: Federation) -> None:
    """Every user is scored once, with numbers; scoring changes nothing and agrees with scoring pairs."""
    fleet = SimulatedFleet(method, federation, threads=1)
    server = method.init_server(federation)
    uploads = fleet.train(server, torch.arange(federation.n_clients), 1, Traffic())
    server = method.aggregate(server, uploads, Moment(1, 0))
    before = {n: x.clone() for n, x in fleet.store.leaves.items()}
    for part in ("valid", "test"):
        blocks = list(fleet.scores(server, part))
        users, scores = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        assert sorted(users.tolist()) == list(range(federation.n_users))
        assert scores.shape == (federation.n_users, federation.n_items)
        assert torch.isfinite(scores).all()
        torch.testing.assert_close(fleet.scores_of(server, int(users[3]), part), scores[3], atol=CLOSE, rtol=CLOSE)
    assert all(torch.equal(before[n], x) for n, x in fleet.store.leaves.items()), "scoring changed a private leaf"
    if isinstance(method, Trained):
        data = federation.people(torch.arange(federation.n_clients))
        p = method.serve(fleet.store.read(data), method.downlink(server, data.ids), data, "valid")
        table = method.view(p)
        draw = torch.Generator().manual_seed(0)
        shape = (federation.n_clients, 20)
        slot = torch.randint(data.users.shape[1], shape, generator=draw)
        row = torch.randint(federation.n_items, shape, generator=draw)
        each = torch.arange(federation.n_clients)[:, None]
        with torch.no_grad():
            pairs, everything = method.pairs(p, table, slot, row), method.score(p, table)
        torch.testing.assert_close(pairs, everything[each, slot, row], atol=CLOSE, rtol=CLOSE)


def check_resume(name: str, settings: dict[str, Any], folder: Path) -> None:
    """A run that was interrupted and resumed ends as one that was not."""
    options: dict[str, Any] = {"data": "demo", "rounds": 4, "threads": 1, "checkpoint_every": 2, "settings": settings}

    def stop(progress: Any, plan: Any) -> None:
        if progress.round == min(3, plan.rounds):  # it may not have a checkpoint: then it is run again
            raise KeyboardInterrupt

    expected = run(name, out=folder / "through", **options)
    with contextlib.suppress(KeyboardInterrupt):
        run(name, out=folder / "stopped", watch=stop, **options)
    assert RunFolder.open(folder / "stopped").summary is None
    assert comparable(resume(folder / "stopped")) == comparable(expected)
    for which in ("last", "best"):
        for one, other in zip(*(RunFolder.open(folder / f).load(which) for f in ("through", "stopped")), strict=True):
            assert set(one) == set(other)
            assert all(torch.equal(one[n], other[n]) for n in one), f"the {which} checkpoint differs"


def comparable(summary: Summary) -> dict[str, Any]:
    """Everything of a summary that the clock has no part in."""
    return {k: v for k, v in dataclasses.asdict(summary).items() if k not in MEASURED}


def check_planted(name: str, case: Case, folder: Path) -> None:
    """Tastes planted in the demo are found: twice as often among the first ten as by popularity."""
    options: dict[str, Any] = {"data": "demo", "threads": 1, "checkpoint_every": 1000}
    settings: dict[str, Any] = {"rounds": case.rounds, "clients": case.clients, "settings": case.planted}
    found = run(name, out=folder / "planted", evaluate_every=5, **settings, **options)
    popular = run("popularity", out=folder / "popular", **options)
    assert found.test["HR@10"] > 2 * popular.test["HR@10"]


def check_all(method: Method, case: Case | None = None) -> None:
    """Every check that needs no run folder."""
    case = case or Case()
    check_method(method)
    federation = clients(method)
    check_start(method)
    check_chunks(method, federation)
    check_secure(method)
    check_nothing_private_is_sent(method)
    check_wire(method)
    check_bytes(method)
    check_absent_clients(method)
    check_scores(method, federation)
    if case.many_users:
        check_chunks(method, mixed_clients())
        check_scores(method, mixed_clients())
