"""Life after training: a run takes in new interactions and forgets users, without a pass over everyone else.

Only methods that keep sums can (tally): they have `revise`. What changed is kept beside the new sums, and counts with
them at once, as the training sequences of the users that have new interactions; of a forgotten user only the id is
kept, so that the data set's copy of that user is left out whenever the run is opened again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.core.capabilities import Revisable
from tacit.data import kept
from tacit.data.cleaning import Wish
from tacit.data.imported import read_clean
from tacit.data.interactions import Interactions
from tacit.data.ragged import Ragged
from tacit.data.splits import Split
from tacit.errors import UserError
from tacit.runs.folder import RunFolder

if TYPE_CHECKING:
    from tacit.runs.run import Run

Ints = NDArray[np.int64]


@dataclass
class Life:
    """What happened to a run's users since it was trained."""

    forgotten: list[str] = field(default_factory=list)  # user ids
    sequences: dict[str, list[int]] = field(default_factory=dict)  # user id -> training items, oldest first

    @classmethod
    def of(cls, folder: RunFolder) -> "Life":
        """As the folder has it."""
        return cls(**folder.life)

    def apply(self, split: Split) -> Split:
        """The split as the run now sees it: forgotten users are empty, others have their new sequences."""
        if not self.forgotten and not self.sequences:
            return split
        data = split.data
        place = {user: index for index, user in enumerate(data.user_ids.tolist())}
        fresh = [user for user in self.sequences if user not in place]
        place |= {user: data.n_users + index for index, user in enumerate(fresh)}
        total = data.n_users + len(fresh)
        gone = np.zeros(total, dtype=bool)
        gone[[place[user] for user in self.forgotten if user in place]] = True
        changed = {place[user]: np.array(items, dtype=np.int64) for user, items in self.sequences.items()}
        train = _rebuilt(split.train, total, gone, changed)
        grown = replace(data, user_ids=np.concatenate([data.user_ids, np.array(fresh, dtype=np.str_)]))
        return replace(
            split,
            data=grown if fresh else data,
            train=train,
            valid=_rebuilt(split.valid, total, gone, {}),
            test=_rebuilt(split.test, total, gone, {}),
            barred=train.sorted(),
        )


def forget(run: "Run", user_id: str) -> None:
    """Remove one user from a run: from the sums, from the solution and from its folder."""
    with _revising(run) as (method, life):
        user = run.split.data.user_index(user_id)
        if str(user_id) in life.forgotten:
            _scrub(run.folder, user)
            raise UserError(f"user '{user_id}' is already forgotten by {run.folder.path}")
        server = method.revise(run.load_best(), run.split.orders(user), ())
        life.forgotten.append(str(user_id))
        life.sequences.pop(str(user_id), None)
        run.folder.revise(server, run.fleet.store.leaves, asdict(life))
        _scrub(run.folder, user)


def _scrub(folder: RunFolder, user: int) -> None:
    """Remove a forgotten user's interactions from the data that a folder keeps, if it keeps any, and their hits."""
    folder.drop_hits(user)
    data = folder.data
    if data is not None and user < data.n_users and (data.user == user).any():
        folder.keep(kept.without(data, user))


@dataclass(frozen=True)
class Update:
    """What an update took in."""

    users: int
    new_users: int
    interactions: int
    unknown_items: int  # rows whose item is not in the run's catalogue
    repeated: int  # rows of items the user already had
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was recognised in the file and left out of it


def update(
    run: "Run",
    path: Path,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    *,
    time_format: str | None = None,
    skip_bad: bool = False,
    separator: str | None = None,
    columns: Sequence[str] = (),
) -> Update:
    """Add the interactions of a file, read as `import_file` does, after what each user has; unknown users are new."""
    wish = Wish(user, item, time, time_format=time_format, skip_bad=skip_bad)
    found = read_clean(path, path.name, wish, separator, columns)
    new = found.interactions
    with _revising(run) as (method, life):
        catalogue = {name: index for index, name in enumerate(run.split.data.item_ids.tolist())}
        known_users = {name: index for index, name in enumerate(run.split.data.user_ids.tolist())}
        server = run.load_best()
        added = fresh = unknown_items = repeated = touched = 0
        for name, items in _by_user(new):
            if name in life.forgotten:
                raise UserError(f"user '{name}' of {path.name} is forgotten by {run.folder.path}; remove its rows")
            inside = [catalogue[i] for i in items if i in catalogue]
            unknown_items += len(items) - len(inside)
            old = run.split.train[known_users[name]] if name in known_users else np.zeros(0, dtype=np.int64)
            have = set(old.tolist())
            extra = [i for i in dict.fromkeys(inside) if i not in have]
            repeated += len(inside) - len(extra)
            if extra:
                sequence = np.concatenate([old, np.array(extra, dtype=np.int64)])
                row = known_users.get(name, -1)
                before = run.split.orders(row, old) if len(old) else ()
                server = method.revise(server, before, run.split.orders(row, sequence))
                life.sequences[name] = sequence.tolist()
                fresh += name not in known_users
                added += len(extra)
                touched += 1
        run.folder.revise(server, run.fleet.store.leaves, asdict(life))
    return Update(touched, fresh, added, unknown_items, repeated, tuple(found.notes))


def _by_user(data: Interactions) -> list[tuple[str, list[str]]]:
    """Item ids of each user, oldest first; the order of the file where there are no times."""
    order = np.lexsort((np.arange(len(data)) if data.time is None else data.time, data.user))
    rows = Ragged.of(data.user[order], data.item[order], data.n_users)
    return [(str(name), data.item_ids[rows[u]].tolist()) for u, name in enumerate(data.user_ids)]


def _rebuilt(rows: Ragged, total: int, gone: NDArray[np.bool_], changed: dict[int, Ints]) -> Ragged:
    """The rows with some emptied, some replaced, and new ones behind."""
    keep = ~gone[rows.rows] & ~np.isin(rows.rows, list(changed))
    owner = [rows.rows[keep], *(np.full(len(items), row) for row, items in changed.items())]
    return Ragged.of(np.concatenate(owner), np.concatenate([rows.values[keep], *changed.values()]), total)


@contextmanager
def _revising(run: "Run") -> Iterator[tuple[Revisable, Life]]:
    """The method and what happened so far, while nobody else writes."""
    if not isinstance(run.method, Revisable):
        raise UserError(
            f"{run.config.method} cannot add or forget a user exactly: it keeps no sums; "
            "use tally, or train again without the user"
        )
    if reason := run.method.fixed():
        raise UserError(f"{run.folder.path} cannot be revised: {reason}")
    with run.folder.writer():
        if run.folder.summary is None:
            raise UserError(f"{run.folder.path} is not finished; tacit resume {run.folder.path} first")
        if run.folder.revision != run.revision:
            raise UserError(f"{run.folder.path} has been revised since it was opened; try again")
        yield run.method, Life.of(run.folder)
