"""A method tried on a few made-up people before its first round: what is wrong with it is said in one sentence."""

import dataclasses
import inspect
import traceback
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import TypeVar, get_origin

import numpy as np
import torch
from torch import Tensor

from tacit.core.aggregate import folded
from tacit.core.leaves import named
from tacit.core.local import local_round
from tacit.core.method import Method, Moment
from tacit.core.payload import Payload, State
from tacit.core.store import ClientStore
from tacit.core.trained import Trained
from tacit.data.cohort import Cohort, Federation
from tacit.data.interactions import Interactions
from tacit.data.ragged import Ragged
from tacit.data.splits import split
from tacit.errors import UserError

ALONE = 3  # clients of one user
ITEMS = 199  # more than a round touches, so that whole tables and touched rows are not of one shape
T = TypeVar("T")


def check_settings(cls: type[Method]) -> None:
    """Every setting is a field: what is not would silently keep the value of the class below."""
    fields = {f.name for f in dataclasses.fields(cls)}
    for k in cls.__mro__[: cls.__mro__.index(Method)]:
        types = inspect.get_annotations(k)
        settings = [name for name, kind in types.items() if str(get_origin(kind)) != "typing.ClassVar"]
        if settings and "__dataclass_fields__" not in vars(k):
            raise UserError(
                f"{k.__name__} has the setting '{settings[0]}' but is not a dataclass: "
                "write @dataclass(frozen=True) above the class"
            )
        above = {name for b in k.__mro__[1:] for name in inspect.get_annotations(b)} - fields
        for name, value in vars(k).items():
            data = not (callable(value) or hasattr(value, "__get__") or name.startswith("_"))
            if data and name not in types and name not in above:
                raise UserError(
                    f"'{name}' of {k.__name__} has no type, so it is not a setting: write {name}: "
                    f"{type(value).__name__} = {value!r}, or ClassVar[{type(value).__name__}] if it should not be one"
                )


def check_method(method: Method) -> None:
    """Leaves that are declared and made alike, scores and losses of the right shape, pairs that agree with scores."""
    try:
        _check_once(method)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        _check(method)  # a setting that is a list


@lru_cache(maxsize=512)
def _check_once(method: Method) -> None:
    _check(method)


def _check(method: Method) -> None:
    federation = few_people()
    server = _try(method, "init_server", lambda: method.init_server(federation))
    _check_leaves(method, federation, server)
    if isinstance(method, Trained):
        store = ClientStore(method, federation)
        for ids in (torch.arange(federation.n_clients), torch.arange(ALONE)):  # of one user, batches look different
            down = _try(method, "downlink", partial(method.downlink, server, ids))
            data = method.data(federation, ids, 1)
            leaves = store.read(data, training=True)
            p = _try(method, "receive", partial(method.receive, leaves, down, data))
            _check_training(method, p, data)
        _try(method, "phases", lambda: list(method.phases(2)))
        kept, up, _ = _try(method, "training", partial(local_round, method, leaves, down, data))
        for name in named(method.leaves(), "private", "kept"):
            if name not in kept:
                raise _wrong(method, f"does not keep '{name}', which it declares as its own")
        _check_server(method, server, up)


def _check_server(method: Trained, server: State, up: Payload) -> None:
    """The server's next state has all that the first one had, and is the same from sums where these must suffice."""

    def after(uploads: list[Payload]) -> State:
        return _try(method, "aggregate", lambda: method.aggregate(dict(server), iter(uploads), Moment(2, 0)))

    if type(method).__module__.startswith("tacit.methods"):  # some need more clients than these to cluster
        return
    state = after([up])
    lost = [name for name in server if name not in state or state[name].shape != server[name].shape]
    if lost:
        raise _wrong(method, f"has an aggregate that does not return '{lost[0]}' in its original shape")
    summed = folded(up)
    if method.individual or summed is up:
        return
    other = after([summed])
    if not all(torch.allclose(state[name].float(), other[name].float(), rtol=1e-3, atol=1e-5) for name in server):
        raise _wrong(method, "needs single uploads: aggregate gives another result for sums; say so in `individual`")


def _check_leaves(method: Method, federation: Federation, server: State) -> None:
    leaves, few = _try(method, "leaves", method.leaves), torch.arange(2)
    made = {
        "init_clients": _try(method, "init_clients", lambda: method.init_clients(federation, few)),
        "init_users": _try(method, "init_users", lambda: method.init_users(federation, few)),
    }
    for name, leaf in leaves.items():
        if leaf.kind == "shared":
            # a method that sends what it likes may send a leaf later than in the first round
            if name not in server and type(method).downlink is Method.downlink:
                raise _wrong(method, f"declares the shared leaf '{name}' but does not create it in init_server")
            continue
        maker, other = ("init_users", "init_clients") if leaf.per_user else ("init_clients", "init_users")
        if name not in made[maker]:
            beside = f", but in {other}" if name in made[other] else ""
            raise _wrong(method, f"declares the {leaf.kind} leaf '{name}' but does not create it in {maker}{beside}")
    for maker, some in made.items():
        for name in some:
            if name not in leaves or leaves[name].kind == "shared":
                raise _wrong(method, f"creates '{name}' in {maker} but does not declare it in leaves() as its own")
            if leaves[name].per_user != (maker == "init_users"):
                raise _wrong(method, f"creates '{name}' in {maker}, but only per-user leaves come from init_users")
    plain = (type(method).downlink, type(method).aggregate) == (Method.downlink, Trained.aggregate)
    for name in server if plain else ():
        if name not in leaves:
            raise _wrong(method, f"creates '{name}' in init_server but does not declare it in leaves()")


def _check_training(method: Trained, p: State, data: Cohort) -> None:
    C, U = data.users.shape
    table = _try(method, "view", lambda: method.view(p))
    if not isinstance(table, Tensor) or table.dim() != 3 or len(table) != C:
        raise _wrong(method, f"has a view of shape {_shape(table)}; it must be clients, rows and width, ({C}, …, d)")
    scores = _try(method, "score", lambda: method.score(p, table))
    wanted = (C, U, data.rows.shape[1])
    if _shape(scores) != wanted:
        raise _wrong(method, f"has scores of shape {_shape(scores)}; clients, users and rows make it {wanted}")
    slot, row = data.slot[:, :5], data.row[:, :5]
    expected = scores[torch.arange(C)[:, None], slot, row]
    try:
        pairs = method.pairs(p, table, slot, row).detach()
        agree = pairs.shape == expected.shape and torch.allclose(pairs, expected, rtol=1e-3, atol=1e-4)
    except (RuntimeError, KeyError):
        agree = False
    if not agree:
        raise _wrong(method, "has a 'pairs' that disagrees with its 'score': change both together")
    for phase in _try(method, "phases", lambda: list(method.phases(data.round))):
        for name in sorted({name for turn in phase.turns for name in turn}):
            if name not in p:
                raise _wrong(method, f"has a phase that moves '{name}', but no leaf of that name")
        if phase.ranked and not data.negatives:
            raise UserError(
                f"negatives=0 is invalid for {method.name}: its loss ranks positives above negatives, so it needs 1"
            )
        batch = next(iter(data.batches(0, 0, phase.batch, ranked=phase.ranked)))
        loss = _try(method, "loss", partial(phase.loss, p, batch))
        if _shape(loss) != (C,):
            raise _wrong(method, f"has a loss of shape {_shape(loss)}; it must be one value a client, {(C,)}")


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _try(method: Method, hook: str, call: Callable[[], T]) -> T:
    """Run a user's hook; whatever goes wrong there is reported as the method's fault."""
    try:
        with torch.no_grad():
            return call()
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = inspect.getsourcefile(type(method))
        line = next((f" (line {frame.lineno})" for frame in reversed(frames) if frame.filename == own), "")
        reason = f"{type(error).__name__}: {error}"
        raise _wrong(method, f"fails in {hook}{line} on made-up clients: {reason}") from error


def _wrong(method: Method, what: str) -> UserError:
    return UserError(f"method {type(method).__name__} {what}")


@cache
def few_people(items: int = ITEMS, pairs: int = 2) -> Federation:
    """Three clients of one user and some of two users with five interactions each; most items are touched by nobody."""
    users = ALONE + 2 * pairs
    user, step = np.repeat(np.arange(users), 5), np.tile(np.arange(5), users)
    names = np.arange(items).astype(np.str_)
    data = Interactions("trial", user, (user * 3 + step * 2) % 12, step.astype(np.float64), names[:users], names)
    clients = np.r_[np.arange(ALONE), np.repeat(np.arange(ALONE, ALONE + pairs), 2)]
    return Federation(split(data, "strict"), Ragged.of(clients, np.arange(users), ALONE + pairs))
