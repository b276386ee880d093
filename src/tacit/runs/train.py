"""Training for use: on everything that users have, with what validation chose beforehand."""

import dataclasses
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tacit.config import RunConfig, config
from tacit.core.capabilities import Budgeted, Choosing
from tacit.core.method import Method
from tacit.core.trained import Trained
from tacit.data.downloads import Progress as DownloadProgress
from tacit.data.frames import kind_of, named
from tacit.data.interactions import Interactions
from tacit.errors import UserError
from tacit.runs.assembly import federation_of, fitted, idle, method_of
from tacit.runs.model import Model
from tacit.runs.run import Run, Watch, begin, start


def train(
    method: str = "tally",
    data: Any = "ml-100k",
    *,
    out: str | Path | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Model:
    """Train on everything and withhold nothing: `tacit.train("tally", data).recommend(user="17")`.

    How many rounds, or which of a closed form's solutions, is chosen before by validation under `strict`; `rounds`
    given are taken as they are. `data` is a data set's name, a `tacit.Data`, or what `tacit.Data.of` takes. Without
    `out` the model lives in memory until it is saved.
    """
    name, own = named(data)
    asked = config(method=method, data=name, **options)
    place = None if out else TemporaryDirectory(prefix="tacit-model-")
    where = Path(out or (place.name if place else ""))
    made = prepare(asked, where, own, watch, frames=kind_of(data))
    if made.idle:
        warnings.warn(made.idle, stacklevel=2)
    made.go_on(watch)
    return Model(made, place)


def prepare(
    asked: RunConfig,
    out: Path | None,
    own: Interactions | None = None,
    watch: Watch | None = None,
    progress: DownloadProgress | None = None,
    frames: str = "polars",
) -> Run:
    """A run on everything, ready to train, with what was left to validation chosen."""
    if asked.protocol != "strict":
        raise UserError(f"protocol '{asked.protocol}' is for evaluation; train withholds nothing, so leave it out")
    if own is not None:
        own = own.at_least(asked.min_interactions)
    method, rounds, said = _chosen(asked, own, watch, progress)
    changed = {
        f.name: getattr(method, f.name)
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != getattr(method_of(asked), f.name)
    }
    everything = asked.model_copy(
        update={"protocol": "everything", "rounds": rounds, "settings": asked.settings | changed, "patience": 0}
    )
    federation = federation_of(everything, method, progress, own)
    full = int((federation.split.train.lengths >= federation.n_items).sum())
    if full and getattr(method, "negatives", 0):
        raise UserError(
            f"{full:,} users of {asked.data} have every item, so that {asked.method} has no negative to draw for them; "
            "leave them out, or use tally"
        )
    made = begin(everything, method, federation, out, keep=True, chosen=said, frames=frames)
    return dataclasses.replace(made, chosen=said, idle=idle(asked, method))


def _chosen(
    asked: RunConfig, own: Interactions | None, watch: Watch | None, progress: DownloadProgress | None
) -> tuple[Method, int | None, str]:
    """The method, its rounds and what was chosen how; nothing is run where there is nothing to choose."""
    method = method_of(asked)
    federation = federation_of(asked, method, progress, own)
    method, said = fitted(method, federation.n_items, federation.split.data.time is not None)
    words = [said] if said else []
    most = method.length(asked.rounds)
    trained = isinstance(method, Trained)
    if (trained and asked.rounds) or most == 1 or not (trained or isinstance(method, Choosing)):
        if asked.evaluate_users is not None:
            raise UserError(f"{asked.method} has nothing left to choose by validation here; leave out --evaluate-users")
        return method, asked.rounds, "; ".join(words)
    if asked.ldp or asked.dp or (isinstance(method, Budgeted) and method.spent(1) is not None):
        raise UserError(
            f"choosing by validation would spend the privacy budget of {asked.method} twice; name what to train with: "
            + ("--rounds" if trained else "one value of each of its settings, as in --set ridge=1 --set blend=0.5")
        )
    if not federation.split.evaluates:
        words.append("nobody has 3 interactions, so nothing could be validated: the method's own defaults")
        return method.chosen(1) if isinstance(method, Choosing) else method, asked.rounds, "; ".join(words)
    with TemporaryDirectory(prefix="tacit-choosing-") as place:
        tried = start(asked, Path(place) / "run", progress, own, keep=False)
        best = tried.go_on(watch)
    value = f"{asked.select} {best.valid[asked.select]:.4f} on validation"
    if isinstance(tried.method, Choosing):
        method = tried.method.chosen(best.best_round)
        words.append(
            f"solution {best.best_round} of {best.rounds} was best ({tried.method.choice(best.best_round)}), {value}"
        )
        return method, None, "; ".join(words)
    words.append(f"{best.best_round} of {best.rounds} rounds were best, {value}")
    return method, best.best_round, "; ".join(words)
