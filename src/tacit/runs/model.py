"""A trained method in use: lists for users, for newcomers and for everyone."""

import math
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.payload import State
from tacit.core.trained import Trained
from tacit.data.cohort import Federation
from tacit.data.frames import Kind, as_kind
from tacit.data.ragged import Ragged, union
from tacit.data.splits import Split
from tacit.errors import UserError
from tacit.runs.files import writing
from tacit.runs.run import Recommendation, Run, reopen

if TYPE_CHECKING:
    import polars as pl

FIT = 20  # rounds that a newcomer's device trains for itself, with nobody to add up what it would send
_SHOWN = {"item": str, "title": str, "score": float}


class Recommendations(list[Recommendation]):
    """A list for one person, the best first."""

    kind: Kind = "polars"

    def frame(self, kind: Kind | None = None) -> Any:
        """The list as a frame of columns item, title and score: of the kind the data came in, or the one asked for."""
        import polars as pl

        rows = [asdict(line) for line in self]
        return as_kind(pl.DataFrame(rows, schema=_SHOWN), kind or self.kind)


class Model:
    """A trained method, loaded once and from then on only read: any number of threads may ask it at the same time.

    ```
    model = tacit.train("tally", data)           # or tacit.load("folder"), of `tacit train` or of any finished run
    model.recommend(user="17", k=10)             # nothing that the user has; a list of Recommendation
    model.recommend(items=["a", "b"], k=10)      # for somebody new, from items by id or title, the oldest first
    model.recommend_items(items, k, exclude)     # the same
    model.recommend_all(k=10)                    # for everyone, a frame: user, rank, item, title, score
    model.save("folder")
    ```

    A closed form answers in milliseconds. For a newcomer, a method that trains does what a new device would: it takes
    what the server sends and trains its private part on the given items, for `FIT` rounds that change nobody else.
    """

    def __init__(self, run: Run, place: TemporaryDirectory[str] | None = None) -> None:
        """From a run with a checkpoint; `place` is a folder that lives as long as the model."""
        self.run = run
        self.method = run.method
        self.data = run.split.data
        self.server = run.load_best()
        self.kind: Kind = "pandas" if run.folder.run.get("frames") == "pandas" else "polars"
        self._place = place
        self._owned = union(run.split.train, run.split.valid, run.split.test)
        self._users = {name: index for index, name in enumerate(self.data.user_ids.tolist())}
        self._items = {name: index for index, name in enumerate(self.data.item_ids.tolist())}

    def __repr__(self) -> str:
        size = f"{len(self._users):,} users, {len(self._items):,} items"
        return f"Model({self.run.config.method!r} on {self.data.name!r}: {size})"

    @property
    def users(self) -> list[str]:
        """The ids of the users it was trained on."""
        return list(self._users)

    @property
    def items(self) -> list[str]:
        """The ids of the items it can recommend."""
        return list(self._items)

    def recommend(
        self,
        user: str | int | None = None,
        k: int = 10,
        *,
        items: Iterable[str | int] | None = None,
        exclude: Iterable[str | int] = (),
        held_out: bool = False,
    ) -> Recommendations:
        """The k best items that a user, or somebody new who has `items`, does not have yet.

        With `held_out` what an evaluation withheld from the user may be in the list, and is marked.
        """
        if (user is None) == (items is None):
            raise UserError("recommend needs either a user or, for somebody new, items")
        if items is not None:
            return self.recommend_items(items, k, exclude)
        row = self.user_index(user)
        split = self.run.split
        if not len(split.train[row]):
            raise UserError(f"{self.run.folder.path} knows nothing of user '{user}': it was forgotten")
        gone = split.known("test")[row] if held_out else self._owned[row]
        scores = self.run.fleet.scores_of(self.server, row, "test")
        return self._best(scores, k, [*gone.tolist(), *map(self.item_index, exclude)], set(split.test[row].tolist()))

    def recommend_items(
        self, items: Iterable[str | int], k: int = 10, exclude: Iterable[str | int] = ()
    ) -> Recommendations:
        """The k best items for somebody who is not in the data and has these, given by id or title, oldest first."""
        had = list(dict.fromkeys(map(self.item_index, [items] if isinstance(items, str) else items)))
        if not had:
            raise UserError("a list for somebody new needs at least one item to begin with")
        return self._best(self._scores_from(np.array(had)), k, [*had, *map(self.item_index, exclude)])

    def recommend_all(self, k: int = 10) -> Any:
        """The k best items of everyone, as a frame of columns user, rank, item, title and score."""
        return as_kind(self.lists(k), self.kind)

    def lists(self, k: int = 10) -> "pl.DataFrame":
        """The same, always a polars frame."""
        import polars as pl

        k = min(_checked(k), self.data.n_items)
        parts = []
        for users, scores in self.run.fleet.scores(self.server, "test"):
            known = torch.from_numpy(self.run.split.train.lengths[users.numpy()] > 0)  # the others were forgotten
            users, scores = users[known], scores[known]
            owned = self._owned.padded(users.numpy())
            scores = scores.clone()
            scores[np.nonzero(owned >= 0)[0], owned[owned >= 0]] = -math.inf
            value, item = scores.topk(k)
            there = value > -math.inf
            rank = torch.arange(1, k + 1).expand_as(value)
            columns = (users[:, None].expand_as(value), rank, item, value)
            parts.append(np.stack([x[there].double().numpy() for x in columns]))
        user, rank, item, score = np.concatenate([*parts, np.zeros((4, 0))], 1)
        order = np.lexsort((rank, user))
        user, item = user[order].astype(np.int64), item[order].astype(np.int64)
        titles = self.data.item_ids if self.data.titles is None else self.data.titles
        return pl.DataFrame(
            {
                "user": self.data.user_ids[user].astype(object),
                "rank": rank[order].astype(np.int64),
                "item": self.data.item_ids[item].astype(object),
                "title": titles[item].astype(object),
                "score": score[order],
            },
            schema={"user": str, "rank": int, **_SHOWN},
        )

    def title(self, item: str | int) -> str:
        """An item's title, or its id where the data have no titles."""
        return self.data.title(self.item_index(item))

    def owned(self, user: str | int) -> list[str]:
        """The ids of the items that a user has."""
        return [str(self.data.item_ids[i]) for i in self._owned[self.user_index(user)]]

    def recent(self, user: str | int, k: int = 5) -> list[str]:
        """Titles of the latest items that the model knows a user to have, the newest first."""
        row = self.user_index(user)
        known = [*self.run.split.train[row].tolist(), *self.run.split.valid[row].tolist()]
        return [self.data.title(i) for i in reversed(known[-k:])]

    def save(self, path: str | Path) -> Path:
        """Keep the model in a folder of its own; `tacit.load` and every command on runs take it."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} is not an empty folder; name another")
        with writing(path):
            shutil.copytree(
                self.run.folder.path, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock", "*.new")
            )
        return path

    def user_index(self, user: str | int | None) -> int:
        """Dense index of a user."""
        found = self._users.get(str(user))
        if found is None:
            raise UserError(
                f"no user '{user}' in {self.data.name}, which has {len(self._users):,}, such as "
                f"{', '.join(self.users[:3])}; a list for somebody new is made from items: --items ID,ID or items=[…]"
            )
        return found

    def item_index(self, item: str | int) -> int:
        """Dense index of an item, by its id or its title."""
        name = str(item).strip()
        if name in self._items:
            return self._items[name]
        found = self._titled.get(name.casefold(), [])
        if len(found) > 1:
            ids = ", ".join(str(self.data.item_ids[i]) for i in found[:5])
            raise UserError(
                f"{len(found)} items of {self.data.name} have the title '{name}'; name one by its id: {ids}"
            )
        if not found:
            some = [*self.items, *(self.data.titles.tolist() if self.data.titles is not None else ())]
            raise _unknown_item(self.data.name, name, some)
        return found[0]

    def items_in(self, text: str) -> list[str]:
        """The items of a list with commas between them; a title may have commas of its own."""
        parts, out = text.split(","), []
        while parts:
            tried = (",".join(parts[:n]).strip() for n in range(min(len(parts), 8), 0, -1))
            name = next((one for one in tried if one in self._items or one.casefold() in self._titled), parts[0])
            out.append(str(self.data.item_ids[self.item_index(name)]))
            parts = parts[name.count(",") + 1 :]
        return out

    @cached_property
    def _titled(self) -> dict[str, list[int]]:
        """Items by title, without regard to capitals."""
        out: dict[str, list[int]] = {}
        for index, title in enumerate(() if self.data.titles is None else self.data.titles.tolist()):
            out.setdefault(title.casefold(), []).append(index)
        return out

    def _best(self, scores: Tensor, k: int, gone: Sequence[int], hidden: Collection[int] = ()) -> Recommendations:
        scores = scores.clone()
        scores[torch.tensor(gone, dtype=torch.long)] = -math.inf
        value, item = scores.topk(min(_checked(k), int((scores > -math.inf).sum())))
        out = Recommendations(
            Recommendation(str(self.data.item_ids[i]), self.data.title(i), v, i in hidden)
            for i, v in zip(item.tolist(), value.tolist(), strict=True)
        )
        out.kind = self.kind
        return out

    def _scores_from(self, items: NDArray[np.int64]) -> Tensor:
        """(M,) scores of somebody new who has these items, oldest first."""
        if self.method.neighbours and self.method.pooled:
            raise UserError(
                f"{self.run.config.method} ranks over the graph of all users, which a newcomer is not in; train again "
                "with the newcomer, or use tally"
            )
        fleet = self.newcomer(items)
        if isinstance(self.method, Trained):
            for round in range(1, FIT + 1):
                for _ in fleet.train(self.for_newcomers, torch.zeros(1, dtype=torch.long), round, Traffic()):
                    pass
        return fleet.scores_of(self.for_newcomers, 0, "test")

    def newcomer(self, items: NDArray[np.int64]) -> SimulatedFleet:
        """A fleet of one client, who has these items and has not trained yet."""
        return SimulatedFleet(self.method, _alone(self.run.split, items), threads=1)

    @cached_property
    def for_newcomers(self) -> State:
        """What the server has for a client it has not seen: of what it keeps for each one, the mean or the start."""
        clients = self.run.fleet.federation.n_clients
        start = self.method.init_server(_alone(self.run.split, np.zeros(1, dtype=np.int64)))
        out = dict(self.server)
        for name, leaf in self.server.items():
            one = start.get(name)
            if one is not None and clients > 1 and leaf.shape[:1] == (clients,) and one.shape == (1, *leaf.shape[1:]):
                out[name] = leaf.mean(0, keepdim=True) if leaf.is_floating_point() else one
        return out


def _alone(split: Split, items: NDArray[np.int64]) -> Federation:
    """One client of one user, who has these items of a catalogue."""
    nobody = np.zeros(0, dtype=np.int64)
    data = replace(
        split.data,
        user=np.zeros(len(items), dtype=np.int64),
        item=items,
        time=None,
        user_ids=np.array(["newcomer"]),
        repeats=None,
        groups=None,
    )
    train, none = Ragged(np.array([0, len(items)]), items), Ragged(np.zeros(2, dtype=np.int64), nobody)
    return Federation.of_users(
        replace(split, data=data, train=train, valid=none, test=none, barred=train.sorted(), negatives={}, too_short=0)
    )


def _checked(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise UserError(f"k={k!r} is invalid: a list has a whole number of lines, at least 1")
    return int(k)


def _unknown_item(data: str, name: str, some: list[str]) -> UserError:
    near = get_close_matches(name, some[:5000], n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"its items are {', '.join(some[:3])}, …"
    return UserError(f"unknown item '{name}' in {data}; {hint}")


def load(path: str | Path) -> Model:
    """A model from its folder, or the best round of a run."""
    return Model(reopen(Path(path)))


def recommend(
    folder: str | Path | Model,
    user: str | int | None = None,
    k: int = 10,
    *,
    items: Iterable[str | int] | None = None,
    held_out: bool = False,
) -> Recommendations:
    """The k best items for a user, or from items for somebody new; for many questions, use one `tacit.load(folder)`."""
    _checked(k)
    model = folder if isinstance(folder, Model) else load(folder)
    return model.recommend(user, k, items=items, held_out=held_out)
