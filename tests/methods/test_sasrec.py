import numpy as np
import pytest
import torch

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Moment
from tacit.data.cohort import Federation
from tacit.data.splits import split
from tacit.errors import UserError
from tacit.methods.sasrec import SASRec, padded
from tacit.runs.run import run
from toys import few_users

QUICK = SASRec(dim=8, layers=2, heads=2, window=6, dropout=0.0, lr=0.01, init=0.3)
M = 20


def weights(method=QUICK, seed=0):
    size = sum(int(np.prod(shape)) for shape in method.shapes(M).values())
    return method.parts(0.3 * torch.randn(size, generator=torch.Generator().manual_seed(seed)), M)


def test_a_place_sees_what_is_before_it_and_nothing_after():
    w = weights()
    items = torch.tensor([[3, 7, 1, 12, 5, 9]])
    before = QUICK.encoded(w, items)
    other = items.clone()
    other[0, 3] = 17
    after = QUICK.encoded(w, other)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().amax((0, 2)).min() > 1e-3


def test_padding_changes_nothing():
    w = weights()
    short, long = padded([np.array([3, 7])], 6, M), padded([np.array([3, 7]), np.arange(6)], 6, M)
    assert long[0].tolist() == [M, M, M, M, 3, 7]
    torch.testing.assert_close(QUICK.encoded(w, long)[0, -2:], QUICK.encoded(w, short)[0])
    loss = QUICK.loss(w, torch.tensor([[3, 7, 9]]))
    torch.testing.assert_close(QUICK.loss(w, torch.tensor([[M, M, 3, 7, 9]])), loss)


def test_only_the_last_items_of_a_long_history_count():
    assert padded([np.arange(9)], 4, M).tolist() == [[5, 6, 7, 8]]
    assert padded([np.zeros(0, dtype=np.int64)], 4, M).tolist() == [[M]]


def test_the_loss_is_that_of_a_softmax_over_all_items():
    w, items = weights(), torch.tensor([[3, 7, 1], [M, 4, 2]])
    hidden = QUICK.encoded(w, items[:, :-1])
    terms = [(0, 0, 7), (0, 1, 1), (1, 1, 2)]
    logits = [(hidden[n, t] @ w["items"][:M].T, target) for n, t, target in terms]
    expected = sum(x.logsumexp(0) - x[target] for x, target in logits) / 3
    torch.testing.assert_close(QUICK.loss(w, items), expected)


def test_attention_is_that_of_the_paper():
    """One head, one layer, written out place by place."""
    method = SASRec(dim=4, layers=1, heads=1, window=3, dropout=0.0)
    w = weights(method)
    items = torch.tensor([[2, 8, 5]])

    def normal(x, name):
        return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() * w[f"{name}.scale"] + w[f"{name}.shift"]

    x = [w["items"][i] * 2.0 + w["places"][t] for t, i in enumerate(items[0])]
    q, k, v = ([w["0.mix"][4 * part : 4 * part + 4] @ normal(row, "0.attend") for row in x] for part in range(3))
    out = []
    for t in range(3):
        share = torch.stack([q[t] @ k[s] / 2.0 for s in range(t + 1)]).softmax(0)
        row = x[t] + w["0.join"] @ sum(share[s] * v[s] for s in range(t + 1))
        wide = torch.nn.functional.gelu(w["0.wide"] @ normal(row, "0.feed") + w["0.wide.shift"])
        out.append(normal(row + w["0.narrow"] @ wide + w["0.narrow.shift"], "last"))
    torch.testing.assert_close(method.encoded(w, items)[0], torch.stack(out), atol=1e-5, rtol=1e-4)


def test_steps_are_those_of_adam():
    state = {"weights": torch.cat([x.ravel() for x in weights().values()]), "steps": torch.zeros(1)}
    state |= {name: torch.zeros_like(state["weights"]) for name in ("mean", "square")}
    theirs = torch.nn.Parameter(state["weights"].clone())
    optimiser = torch.optim.Adam([theirs], lr=QUICK.lr, betas=(0.9, 0.98))
    items = torch.tensor([[3, 7, 1, 12], [M, 4, 2, 6]])
    for _ in range(3):
        QUICK._step(state, items, M, torch.Generator())
        optimiser.zero_grad()
        QUICK.loss(QUICK.parts(theirs, M), items).backward()
        optimiser.step()
    torch.testing.assert_close(state["weights"], theirs.detach(), atol=1e-4, rtol=1e-3)


def test_dropout_is_drawn_from_the_runs_seed_and_is_off_when_ranking():
    method = SASRec(dim=8, heads=2, window=6, dropout=0.5, rounds=1)
    divided = split(few_users(20), "strict")
    federation = Federation.of_groups(divided, 1)

    def after():
        torch.manual_seed(int(torch.randint(1000, (1,))))
        fleet = SimulatedFleet(method, federation, threads=1)
        server = method.init_server(federation)
        return method.aggregate(server, fleet.train(server, torch.arange(1), 1, Traffic()), Moment(1, 0)), fleet

    (one, fleet), (other, _) = after(), after()
    assert torch.equal(one["weights"], other["weights"])
    assert torch.equal(fleet.scores_of(one, 3, "valid"), fleet.scores_of(one, 3, "valid"))
    w, items = weights(SASRec(dim=8, heads=2, window=6)), torch.tensor([[1, 2, 3, 4]])
    dropped = method.encoded(w, items, torch.Generator().manual_seed(1))
    assert not torch.allclose(dropped, method.encoded(w, items))


def test_a_user_is_scored_by_the_last_place_of_its_history():
    divided = split(few_users(20), "strict")
    federation = Federation.of_groups(divided, 1)
    server = QUICK.init_server(federation)
    w = QUICK.parts(server["weights"], divided.n_items)
    for history, method in (("train", QUICK), ("known", SASRec(**{**vars(QUICK), "history": "known"}))):
        fleet = SimulatedFleet(method, federation, threads=1)
        for part in ("valid", "test"):
            known = divided.valid[3] if part == "test" and history == "known" else divided.train[3][:0]
            items = torch.from_numpy(np.concatenate([divided.train[3], known])[-6:])[None]
            expected = QUICK.encoded(w, items)[0, -1] @ w["items"][:-1].T
            torch.testing.assert_close(fleet.scores_of(server, 3, part), expected, atol=1e-4, rtol=1e-4)


def test_the_planted_sequels_are_found(tmp_path):
    settings = {"dim": 32, "window": 20, "lr": 0.004}
    found = run("sasrec", data="demo", rounds=12, settings=settings, out=tmp_path / "sasrec")
    assert found.test["NDCG@10"] > run("ease", data="demo", out=tmp_path / "ease").test["NDCG@10"]


def test_heads_share_the_width():
    with pytest.raises(UserError, match="dim=10 is not a multiple of heads=4; try --set heads=1"):
        SASRec(dim=10, heads=4)
