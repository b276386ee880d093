from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.data.cohort import Federation
from tacit.data.protocols import PROTOCOLS, SHARES
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from tacit.errors import UserError
from toys import few_clients, random_data

NEGATIVES = 4


def of_users(protocol="strict", **options):
    return Federation.of_users(split(random_data(**options), protocol))


def mixed():
    """Clients of one, two and three users side by side."""
    divided = split(random_data(items=60), "strict")
    owner = np.array([0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 7, 7, 7])
    return Federation(divided, Ragged.of(owner, np.arange(14), 8))


def samples(data):
    """(user, item, label) of each client's samples, in their order."""
    out = []
    for c, count in enumerate(data.samples.tolist()):
        users = data.users[c][data.slot[c, :count]]
        items = data.rows[c][data.row[c, :count]]
        out.append(list(zip(users.tolist(), items.tolist(), data.label[c, :count].tolist(), strict=True)))
    return out


def in_batch(data, batch, c):
    """The multiset of (user, item, label) that client c has in a batch, from either form."""
    out = Counter()
    if batch.count is not None:
        user = int(data.users[c, 0])
        assert not batch.count[c, 0, ~data.real[c]].any()
        assert not batch.positive[c, 0, batch.count[c, 0] == 0].any()
        for row in batch.count[c, 0].nonzero().flatten().tolist():
            item = int(data.rows[c, row])
            count, positive = int(batch.count[c, 0, row]), int(batch.positive[c, 0, row])
            out[user, item, 1.0] += positive
            out[user, item, 0.0] += count - positive
    else:
        for slot, row, label, there in zip(batch.slot[c], batch.row[c], batch.label[c], batch.mask[c], strict=True):
            if there:
                out[int(data.users[c, slot]), int(data.rows[c, row]), float(label)] += 1
    return +out


@pytest.fixture(params=["users", "groups", "mixed"])
def federation(request):
    if request.param == "groups":
        return few_clients(8, groups=3)
    return mixed() if request.param == "mixed" else of_users(items=60)


def test_samples_are_the_training_items_each_with_its_negatives(federation):
    train, barred = federation.split.train, federation.split.barred
    data = federation.cohort(torch.arange(federation.n_clients), 1, NEGATIVES)
    for client, mine in enumerate(samples(data)):
        expected = [(u, i) for u in federation.members[client].tolist() for i in train[u].tolist()]
        assert [(u, i) for u, i, _ in mine[:: 1 + NEGATIVES]] == expected
        assert len(mine) == len(expected) * (1 + NEGATIVES) == int(data.size[client]) * (1 + NEGATIVES)
        for place, (user, item, label) in enumerate(mine):
            owner = expected[place // (1 + NEGATIVES)][0]
            assert user == owner
            assert label == (place % (1 + NEGATIVES) == 0)
            assert label or item not in barred[user]
            assert 0 <= item < federation.n_items


def test_rows_are_the_touched_items_once_each(federation):
    data = federation.cohort(torch.arange(federation.n_clients), 1, NEGATIVES)
    for client, mine in enumerate(samples(data)):
        rows = data.rows[client][data.real[client]].tolist()
        assert rows == sorted({item for _, item, _ in mine})
        assert not data.real[client, len(rows) :].any()


@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_nothing_depends_on_the_other_clients_of_a_chunk(federation, chunk):
    everyone = torch.arange(federation.n_clients)
    whole = federation.cohort(everyone, 2, NEGATIVES)
    expected = samples(whole)
    steps = [list(whole.batches(0, epoch, 16)) for epoch in (0, 1)]
    shuffled = everyone[torch.randperm(len(everyone), generator=torch.Generator().manual_seed(0))]
    for ids in torch.split(shuffled, chunk):
        part = federation.cohort(ids, 2, NEGATIVES)
        assert samples(part) == [expected[client] for client in ids.tolist()]
        for epoch in (0, 1):
            for step, batch in enumerate(part.batches(0, epoch, 16)):
                for c, client in enumerate(ids.tolist()):
                    assert bool(batch.active[c]) == bool(steps[epoch][step].active[client])
                    assert in_batch(part, batch, c) == in_batch(whole, steps[epoch][step], client)


@pytest.mark.parametrize("size", [0, 1, 7, 64, 10_000])
def test_batches_partition_the_samples(federation, size):
    data = federation.cohort(torch.arange(federation.n_clients), 1, NEGATIVES)
    expected = [Counter(mine) for mine in samples(data)]
    found = [Counter() for _ in expected]
    batches = list(data.batches(0, 0, size))
    for step, batch in enumerate(batches):
        for c, count in enumerate(data.samples.tolist()):
            taken = in_batch(data, batch, c)
            left = count if size == 0 else min(max(count - step * size, 0), size)
            assert taken.total() == left
            assert int(batch.size[c]) == max(left, 1)
            assert bool(batch.active[c]) == (left > 0)
            found[c] += taken
    assert found == expected
    assert all(batch.active.any() for batch in batches)


@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize("size", [0, 7, 64])
def test_a_batch_knows_its_share_of_a_full_one(federation, size, ranked):
    data = federation.cohort(torch.arange(federation.n_clients), 1, NEGATIVES)
    total = data.samples // (1 + NEGATIVES) * NEGATIVES if ranked else data.samples
    for step, batch in enumerate(data.batches(0, 0, size, ranked=ranked)):
        for c, count in enumerate(total.tolist()):
            full = min(size or count, count)
            left = min(count - step * full, full)
            assert left <= 0 or float(batch.share[c]) == pytest.approx(left / full)


@pytest.mark.parametrize("size", [7, 64])
def test_runs_name_the_active_clients_and_each_has_one_past(federation, size):
    data = federation.cohort(torch.arange(federation.n_clients), 1, NEGATIVES)
    taken = torch.zeros(federation.n_clients)
    for batch in data.batches(0, 0, size):
        inside = torch.zeros(federation.n_clients, dtype=torch.bool)
        for run in batch.runs:
            assert not inside[run].any()
            inside[run] = True
            assert taken[run].unique().numel() == 1
        assert torch.equal(inside, batch.active)
        taken += batch.active


def test_every_epoch_and_phase_has_an_order_of_its_own_over_one_draw():
    federation = of_users()
    data = federation.cohort(torch.arange(federation.n_clients), 1, NEGATIVES)
    long = int(data.samples.argmax())
    first = [in_batch(data, next(data.batches(phase, epoch, 16)), long) for phase in (0, 1) for epoch in (0, 1)]
    for a in range(4):
        for b in range(a):
            assert first[a] != first[b]
    assert first[0] == in_batch(data, next(data.batches(0, 0, 16)), long)


def test_negatives_are_redrawn_every_round_and_for_every_seed():
    draws = []
    for seed in (0, 1):
        divided = split(random_data(), "strict", seed=0)
        federation = Federation.of_users(divided.__class__(**vars(divided) | {"seed": seed}))
        draws += [tuple(map(tuple, samples(federation.cohort(torch.arange(3), round, 4)))) for round in (1, 2)]
    assert len(set(draws)) == 4


def test_negatives_drawn_once_are_the_same_in_every_round():
    federation = of_users()
    first, second = (samples(federation.cohort(torch.arange(3), round, 4, redraw=False)) for round in (1, 2))
    assert first == second
    assert first != samples(federation.cohort(torch.arange(3), 1, 4))


def rank_counts(federation, user, rounds, negatives=50):
    """How often each item was drawn as a negative for a user."""
    counts = np.zeros(federation.n_items, dtype=np.int64)
    for round in range(1, rounds + 1):
        data = federation.cohort(torch.tensor([user]), round, negatives)
        counts += np.bincount([i for _, i, label in samples(data)[0] if not label], minlength=federation.n_items)
    return counts


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_negatives_are_uniform_over_all_that_is_not_barred(protocol):
    federation = of_users(protocol)
    for user in (0, 5):
        counts = rank_counts(federation, user, rounds=60)
        barred = federation.split.barred[user]
        allowed = np.setdiff1d(np.arange(federation.n_items), barred)
        assert not counts[barred].any()
        assert stats.chisquare(counts[allowed]).pvalue > 0.001


def test_only_a_leaky_protocol_spares_the_held_out_items():
    for protocol in PROTOCOLS:
        made = split(random_data(), protocol)
        federation = Federation.of_users(made)
        counts = rank_counts(federation, 3, rounds=40)
        held_out = np.concatenate([made.valid[3], made.test[3]])
        if protocol in ("strict", *SHARES):
            assert (counts[held_out] > 0).all()
        else:
            assert not counts[held_out].any()
        if protocol in SHARES:
            continue
        candidates = np.concatenate([made.negatives[part][np.array([3])][0] for part in ("valid", "test")])
        if protocol == "symmetric":  # target and rivals alike were never drawn
            assert not counts[candidates].any()
        else:
            assert (counts[candidates] > 0).mean() > 0.9


def test_all_rows_on_request_hold_the_same_samples():
    federation = of_users()
    ids = torch.tensor([4, 1, 13])
    compact, whole = (federation.cohort(ids, 3, NEGATIVES, every_row) for every_row in (False, True))
    assert samples(compact) == samples(whole)
    assert torch.equal(whole.rows, torch.arange(federation.n_items).expand(3, -1))
    assert whole.real.all()


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_a_cohort_knows_whether_its_rows_are_all_items(clients):
    federation = of_users()
    ids = torch.arange(clients)
    assert federation.people(ids).every_row
    assert federation.cohort(ids, 1, NEGATIVES, every_row=True).every_row
    assert not federation.cohort(ids, 1, NEGATIVES).every_row


def test_history_has_ones_where_users_touched_items(federation):
    data = federation.people(torch.arange(federation.n_clients))
    for phase, known in (("train", federation.split.train), ("test", federation.split.known("test"))):
        history = data.history(phase)
        for c, slot in np.argwhere(data.users.numpy() < 0):
            assert not history[c, slot].any()
        for c, slot in np.argwhere(data.users.numpy() >= 0):
            items = history[c, slot].nonzero().flatten().tolist()
            assert items == sorted(known[int(data.users[c, slot])].tolist())
            assert set(history[c, slot].unique().tolist()) <= {0.0, 1.0}


def test_drawn_marks_the_negatives_only(federation):
    data = federation.cohort(torch.arange(federation.n_clients), 1, NEGATIVES)
    for c, mine in enumerate(samples(data)):
        assert data.drawn[c, : len(mine)].tolist() == [1 - label for _, _, label in mine]
        assert not data.drawn[c, len(mine) :].any()


def test_groups_share_out_all_users_evenly():
    divided = split(random_data(users=21), "strict", seed=4)
    federation = Federation.of_groups(divided, 5)
    assert sorted(federation.members.values.tolist()) == list(range(23))
    assert set(federation.members.lengths.tolist()) == {4, 5}
    for user in range(23):
        assert user in federation.members[federation.client_of(user)]
    sizes = [sum(len(divided.train[u]) for u in federation.members[c]) for c in range(5)]
    assert federation.sizes.tolist() == sizes
    again = Federation.of_groups(split(random_data(users=21), "strict", seed=5), 5)
    assert (again.members.values != federation.members.values).any()


def test_too_many_samples_for_one_client_is_an_error_and_not_a_mixup():
    """The place of a sample is carried in 24 bits of a sorting key."""
    federation = of_users()
    with pytest.raises(UserError, match="more than"):
        federation.cohort(torch.tensor([0]), 1, negatives=2**24)


@pytest.mark.parametrize("size", [0, 7, 40])
def test_ranked_batches_hold_every_positive_against_each_of_its_negatives(federation, size):
    data = federation.cohort(torch.arange(federation.n_clients), 2, NEGATIVES)
    expected = [
        Counter(
            (user, item, rival)
            for n in range(0, len(mine), 5)
            for user, item, _ in [mine[n]]
            for _, rival, _ in mine[n + 1 : n + 5]
        )
        for mine in samples(data)
    ]
    found = [Counter() for _ in expected]
    for batch in data.batches(0, 1, size, ranked=True):
        for c in range(len(found)):
            there = batch.mask[c]
            assert batch.active[c] == there.any()
            assert batch.size[c] == max(int(there.sum()), 1)
            slot = torch.zeros_like(batch.row[c]) if batch.slot is None else batch.slot[c]
            users, items, rivals = data.users[c][slot], data.rows[c][batch.row[c]], data.rows[c][batch.rival[c]]
            found[c].update(zip(*(x[there].tolist() for x in (users, items, rivals)), strict=True))
    assert found == expected


def test_ranked_batches_do_not_depend_on_the_chunk():
    federation = of_users()
    together = list(federation.cohort(torch.arange(4), 1, NEGATIVES).batches(0, 0, 16, ranked=True))
    for c in range(4):
        data = federation.cohort(torch.tensor([c]), 1, NEGATIVES)
        for one, all_ in zip(data.batches(0, 0, 16, ranked=True), together, strict=False):
            there = all_.mask[c]
            assert int(there.sum()) == int(one.mask.sum())
            assert torch.equal(one.row[0][one.mask[0]], all_.row[c][there])
            assert torch.equal(one.rival[0][one.mask[0]], all_.rival[c][there])
