"""Clients stacked: the padded, masked block of data that a chunk of clients trains on for one round.

Shapes: C clients, U users of a client, P positives, N samples, L rows (items touched in this round), M items.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import rng
from tacit.data.ragged import Complement, Ragged
from tacit.data.splits import Split
from tacit.errors import UserError

Ints = NDArray[np.int64]
_INDEX_BITS = np.uint64(24)  # low bits of a sorting key that carry the sample's place
_INDEX_MASK = np.uint64((1 << 24) - 1)


@dataclass(frozen=True)
class Federation:
    """Who holds whose interactions. A client is one user's device, or a company with many users."""

    split: Split
    members: Ragged  # client -> its users

    @classmethod
    def of_users(cls, split: Split) -> "Federation":
        """One client per user."""
        return cls(split, Ragged(np.arange(split.n_users + 1), np.arange(split.n_users)))

    @classmethod
    def of_groups(cls, split: Split, groups: int) -> "Federation":
        """`groups` clients of nearly equal numbers of users, drawn at random."""
        users = rng.generator(split.seed, "groups").permutation(split.n_users)
        return cls(split, Ragged.of(np.arange(split.n_users) % groups, users, groups).sorted())

    @property
    def seed(self) -> int:
        """The seed of the whole run."""
        return self.split.seed

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.members)

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.split.n_users

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.split.n_items

    @cached_property
    def sizes(self) -> Ints:
        """(clients,) training interactions of each client, |D_u| in the papers."""
        return np.bincount(
            self.members.rows, weights=self.split.train.lengths[self.members.values], minlength=self.n_clients
        ).astype(np.int64)

    @cached_property
    def labels(self) -> NDArray[np.str_] | None:
        """(clients,) what the data say of each client's device, empty where nothing; None: of nobody's."""
        groups = self.split.data.groups
        if groups is None:
            return None
        named = groups[self.members.values]
        rows, named = self.members.rows[named != ""], named[named != ""]
        out = np.zeros(self.n_clients, dtype=groups.dtype)
        out[rows] = named
        if (out[rows] != named).any():
            raise UserError(f"users of one client of {self.split.data.name} are in different groups; give it one")
        return out

    @cached_property
    def _holder(self) -> Ints:
        """(n_users,) the client that holds each user; of users elsewhere, -1."""
        out = np.full(self.n_users, -1)
        out[self.members.values] = self.members.rows
        return out

    def client_of(self, user: int) -> int:
        """The client that holds a user."""
        return int(self._holder[user])

    def clients_of(self, users: Tensor) -> Tensor:
        """The clients that hold these users, ascending."""
        return torch.from_numpy(np.unique(self._holder[users.numpy()]))

    def people(self, ids: Tensor) -> "Cohort":
        """The clients' users and histories, without samples: what scoring needs."""
        users = self.members.padded(ids.numpy())
        rows, real = self._every_row(len(ids))
        nothing = torch.zeros(len(ids), 0, dtype=torch.long)
        return Cohort(
            federation=self,
            ids=ids,
            round=0,
            users=torch.from_numpy(users),
            rows=rows,
            real=real,
            slot=nothing,
            row=nothing,
            label=nothing.float(),
            samples=torch.zeros(len(ids), dtype=torch.long),
        )

    def cohort(self, ids: Tensor, round: int, negatives: int, every_row: bool = False, redraw: bool = True) -> "Cohort":
        """Draw the round's negatives for these clients and stack everything.

        With `every_row` the rows are all M items; otherwise only those that occur among a client's samples. Without
        `redraw` the negatives are the same in every round.
        """
        client = ids.numpy()
        users = self.members.padded(client)  # (C, U)
        slot, items = self.positives(users)  # (C, P), items padded with -1
        real = items >= 0
        C, P = items.shape
        if P * (1 + negatives) > _INDEX_MASK:
            raise UserError(
                f"a client has {P:,} positives with {negatives} negatives each, more than the {_INDEX_MASK:,} samples "
                "a client may have; use more clients or fewer negatives"
            )

        words = rng.bits(self.seed, "negatives", round if redraw else 0, client, P * negatives)  # (C, P · k)
        place = np.arange(C)[:, None] * users.shape[1] + slot  # of a positive's user among these clients' users
        owner = np.repeat(place[..., None], negatives, 2).reshape(C, -1)
        # of these users alone: a search among everybody's items would leave the cache at every step
        allowed = Complement(self.split.barred.only(np.maximum(users, 0).ravel()), self.n_items)
        drawn = allowed.item(owner, rng.below(words, allowed.count[owner])).reshape(C, P, negatives)
        sample = np.concatenate([items[..., None], drawn], 2).reshape(C, -1)  # (C, N): positive, its negatives, …
        real = np.repeat(real, 1 + negatives, 1)
        label = np.zeros((C, P, 1 + negatives), dtype=np.float32)
        label[..., 0] = 1
        if every_row:
            rows, real_row = self._every_row(C)
            row = torch.from_numpy(np.where(real, sample, 0))
        else:
            rows, real_row, row = (torch.from_numpy(x) for x in _compact(sample, real))
        return Cohort(
            federation=self,
            ids=ids,
            round=round,
            users=torch.from_numpy(users),
            rows=rows,
            real=real_row,
            slot=torch.from_numpy(np.repeat(slot, 1 + negatives, 1)),
            row=row,
            label=torch.from_numpy(label.reshape(C, -1) * real),
            samples=torch.from_numpy(real.sum(1)),
            negatives=negatives,
        )

    def _every_row(self, clients: int) -> tuple[Tensor, Tensor]:
        """All items as rows, one row of memory for all clients."""
        return torch.arange(self.n_items).expand(clients, -1), torch.ones(1, dtype=torch.bool).expand(
            clients, self.n_items
        )

    def positives(self, users: Ints) -> tuple[Ints, Ints]:
        """The training interactions of clients with these users (C, U), user by user.

        (C, P) slot of the user within its client, and (C, P) item, padded with -1.
        """
        train = self.split.train
        if users.shape[1] == 1:
            items = train.padded(users[:, 0])
            return np.zeros_like(items), items
        c, slot = np.nonzero(users >= 0)
        member = users[c, slot]
        repeat = train.lengths_of(member)
        picked = np.concatenate([train[u] for u in member]) if len(member) else np.zeros(0, dtype=np.int64)
        client = np.repeat(c, repeat)
        rows = np.arange(len(users))
        slots = Ragged.of(client, np.repeat(slot, repeat), len(users)).padded(rows, fill=0)
        return slots, Ragged.of(client, picked, len(users)).padded(rows)


def _compact(sample: Ints, real: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.bool_], Ints]:
    """Number each client's distinct items 0..L-1: (rows (C, L), which rows are real, row of each sample).

    Sorting by item costs what the samples cost, whatever the catalogue's size.
    """
    C, N = sample.shape
    far = np.int64(1 << 38)  # padding sorts behind every item
    key = (np.where(real, sample, far) << np.int64(_INDEX_BITS)) | np.arange(N)
    key.sort(1)
    item, place = key >> np.int64(_INDEX_BITS), key & np.int64(_INDEX_MASK)
    first = np.ones((C, N), dtype=bool)
    first[:, 1:] = item[:, 1:] != item[:, :-1]
    number = np.cumsum(first, 1) - 1
    first &= item < far
    length = first.sum(1)
    L = max(int(length.max(initial=0)), 1)
    real_row = np.arange(L) < length[:, None]
    rows = np.zeros((C, L), dtype=np.int64)
    rows[real_row] = item[first]
    row = np.empty((C, N), dtype=np.int64)
    np.put_along_axis(row, place, np.where(item < far, number, 0), 1)
    return rows, real_row, row


@dataclass(frozen=True)
class Batch:
    """One step's samples of every client, in one of two forms.

    A client of one user scores all its rows at once and weighs them by how often each is in the batch: no
    d-wide gather or scatter inside the loop. A client of many users would score U · L pairs for a few hundred
    samples, so it names its pairs instead.

    A ranked batch compares a positive's row with its rival, a negative's row, for a loss such as BPR. A client of one
    user then needs no `slot`.
    """

    size: Tensor  # (C,) samples of each client, at least 1
    active: Tensor  # (C,) clients that still have samples
    runs: list[slice]  # the same as runs of neighbouring clients that take the same steps
    count: Tensor | None = None  # (C, 1, L) times a row is in the batch
    positive: Tensor | None = None  # (C, 1, L) times as a positive
    slot: Tensor | None = None  # (C, B) user of each pair
    row: Tensor | None = None  # (C, B)
    label: Tensor | None = None  # (C, B)
    rival: Tensor | None = None  # (C, B) row that a positive's row is ranked against
    mask: Tensor | None = None  # (C, B)
    share: Tensor | float = 1.0  # (C,) of the size of a client's first batch, less than 1 in its last
    report: bool = True  # whether anyone reads the value of the loss

    @cached_property
    def occurring(self) -> tuple["Batch", Tensor]:
        """The same batch over only the rows that occur in it, at most B per client, and which rows these are (C, B).

        Padding names row 0 with a count of zero.
        """
        assert self.count is not None
        assert self.positive is not None
        C, _, L = self.count.shape
        client, row = self.count[:, 0].nonzero(as_tuple=True)  # client by client
        number = torch.bincount(client, minlength=C)
        B = max(int(number.max()), 1)
        place = torch.arange(len(client)) - (number.cumsum(0) - number)[client] + client * B
        rows = torch.zeros(C * B, dtype=torch.long)
        rows[place] = row
        count, positive = self.count.new_zeros(2, C, 1, B)
        row += client * L
        count.view(-1)[place] = self.count.reshape(-1)[row]
        positive.view(-1)[place] = self.positive.reshape(-1)[row]
        return replace(self, count=count, positive=positive), rows.view(C, B)


def _runs(steps: list[int]) -> list[slice]:
    """Runs of neighbours with equal numbers of steps."""
    cuts = [0, *(i for i in range(1, len(steps)) if steps[i] != steps[i - 1]), len(steps)]
    return [slice(a, b) for a, b in pairwise(cuts)]


@dataclass(frozen=True)
class Cohort:
    """The stacked data of C clients for one round."""

    federation: Federation
    ids: Tensor  # (C,) clients
    round: int
    users: Tensor  # (C, U) users, -1 where a client has fewer
    rows: Tensor  # (C, L) item of each row
    real: Tensor  # (C, L) False on padding rows
    slot: Tensor  # (C, N) which of its client's users a sample belongs to
    row: Tensor  # (C, N)
    label: Tensor  # (C, N)
    samples: Tensor  # (C,) real samples; they come first in the row
    negatives: int = 0  # drawn for each positive, and standing behind it in the row

    @property
    def every_row(self) -> bool:
        """Whether the rows are all items in their order."""
        # one client's compact rows are ascending, so as many as there are items are all of them
        return self.rows.shape[1] == self.federation.n_items and (len(self.ids) == 1 or self.rows.stride(0) == 0)

    @property
    def size(self) -> Tensor:
        """(C,) training interactions, |D_u|."""
        return torch.from_numpy(self.federation.sizes[self.ids.numpy()])

    @property
    def drawn(self) -> Tensor:
        """(C, N) one on every sample drawn as a negative."""
        return (torch.arange(self.row.shape[1]) < self.samples[:, None]).float() - self.label

    def with_users(self, users: Tensor) -> "Cohort":
        """The same clients seen with only these of their users (C, U'), to score a large client in blocks."""
        return replace(self, users=users)

    def history(self, part: str = "train") -> Tensor:
        """(C, U, M) ones where a user touched an item; `test` adds the validation items."""
        users = self.users.numpy()
        split = self.federation.split
        known = split.known("test") if part == "test" else split.train
        out = np.zeros((*users.shape, self.federation.n_items), dtype=np.float32)
        c, slot = np.nonzero(users >= 0)
        items = known.padded(users[c, slot])
        real = items >= 0
        each = np.broadcast_to(np.arange(len(c))[:, None], items.shape)[real]
        out[c[each], slot[each], items[real]] = 1
        return torch.from_numpy(out)

    def batches(self, phase: int, epoch: int, size: int, report: bool = True, ranked: bool = False) -> Iterator[Batch]:
        """One epoch in a fresh random order; `size` 0 takes everything in one step.

        With `ranked` an epoch is every positive against each of its negatives, and `size` counts such pairs.
        """
        total = self.samples // (1 + self.negatives) * self.negatives if ranked else self.samples  # (C,)
        longest = int(total.max())
        size = size or max(longest, 1)
        steps = -(-total // size)  # (C,)
        most = int(steps.max())
        order = self._shuffled(phase, epoch, total, ranked) if most > 1 else None
        each: list[int] = steps.tolist()
        runs = _runs(each)
        alone = self.users.shape[1] == 1
        counts = self._counts(order, size, most) if alone and not ranked else None
        left = (total - torch.arange(most)[:, None] * size).clamp_(min=0, max=size)  # (steps, C)
        actives, counted = (left > 0).unbind(), left.clamp(min=1).float().unbind()
        for step in range(most):
            active, count = actives[step], counted[step]
            given: dict[str, Any] = {"share": count / counted[0], "report": report}
            on = runs if step == 0 else [run for run in runs if each[run.start] > step]
            if counts is not None:
                yield Batch(count, active, on, counts[0][step], counts[1][step], **given)
                continue
            window = slice(step * size, min((step + 1) * size, longest))
            if ranked:
                yield Batch(count, active, on, **given, **self._ranked(order, window, left[step], alone))
                continue
            slot, row, label = (
                x[:, window] if order is None else x.gather(1, order[:, window])
                for x in (self.slot, self.row, self.label)
            )
            mask = torch.arange(slot.shape[1]) < left[step][:, None]
            yield Batch(count, active, on, slot=slot, row=row, label=label, mask=mask, **given)

    def _ranked(self, order: Tensor | None, window: slice, left: Tensor, alone: bool) -> dict[str, Any]:
        """The pairs of a window: pair n is positive n // k against the negative n % k of its k."""
        pair = torch.arange(window.start, window.stop).expand(len(left), -1) if order is None else order[:, window]
        first = pair // self.negatives * (1 + self.negatives)  # place of the positive among the samples
        return {
            "slot": None if alone else self.slot.gather(1, first),
            "row": self.row.gather(1, first),
            "rival": self.row.gather(1, first + 1 + pair % self.negatives),
            "mask": torch.arange(pair.shape[1]) < left[:, None],
        }

    def _shuffled(self, phase: int, epoch: int, total: Tensor, ranked: bool) -> Tensor:
        """(C, N) a random order of each client's real samples or pairs; padding stays behind them."""
        N = self.row.shape[1]
        if ranked:
            N = N // (1 + self.negatives) * self.negatives
        key = rng.bits(self.federation.seed, f"shuffle/{phase}/{epoch}", self.round, self.ids, N)
        key |= _INDEX_MASK  # the hash decides, the low bits carry the place
        key ^= _INDEX_MASK ^ np.arange(N, dtype=np.uint64)
        # arithmetic, not indexing by a mask: NumPy lets other threads run during the former only
        key |= (np.arange(N) >= total.numpy()[:, None]) * np.uint64(0xFFFFFFFFFF000000)
        key.sort(1)
        return torch.from_numpy((key & _INDEX_MASK).astype(np.int64))

    def _counts(self, order: Tensor | None, size: int, steps: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """For each step (C, 1, L) how often each row is in each batch, and how often as a positive."""
        C, N = self.row.shape
        L = self.rows.shape[1]
        cell = torch.arange(C)[:, None] * L + self.row
        if order is not None:
            batch = torch.empty_like(order).scatter_(1, order, (torch.arange(N) // size).expand(C, N))
            cell += batch.clamp_(max=steps - 1) * (C * L)
        cell, real = cell.view(-1), (torch.arange(N) < self.samples[:, None]).float().view(-1)
        count = torch.zeros(steps * C * L).scatter_add_(0, cell, real)
        positive = torch.zeros(steps * C * L).scatter_add_(0, cell, self.label.reshape(-1))
        return count.view(steps, C, 1, L).unbind(), positive.view(steps, C, 1, L).unbind()
