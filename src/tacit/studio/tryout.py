"""What a page needs to rank by itself: a catalogue, and a model small enough to send."""

from functools import lru_cache
from typing import Any

import numpy as np

from tacit.errors import UserError
from tacit.methods.tally import Tally
from tacit.methods.tally_shipped import small_model
from tacit.methods.tally_small import Whole, cut
from tacit.runs.model import Model

MEGABYTES = 4.0


def catalogue(model: Model) -> dict[str, Any]:
    """All items with titles and how many people have them, in the order of the model's columns."""
    data = model.data
    known = np.bincount(model.run.split.train.values, minlength=data.n_items)
    titles = (data.item_ids if data.titles is None else data.titles).tolist()
    return {"ids": data.item_ids.tolist(), "titles": titles, "known": known.tolist()}


@lru_cache(maxsize=2)
def small(model: Model) -> bytes:
    """The model of a linear method as `tally_small` writes it: the one that devices get, or one cut for the page."""
    server, method = model.server, model.method
    if isinstance(method, Tally):
        own = server.get("model")
        return small_model(method, server, MEGABYTES) if own is None else own.numpy().tobytes()
    weights = server.get("weights", server.get("filter"))
    if weights is None:
        raise UserError(
            f"{model.run.config.method} is trained on the device and does not rank in a page; choose a run of tally"
        )
    count = model.data.n_items
    used = np.bincount(model.run.split.train.values, minlength=count).astype(np.float64)
    return cut({"E": Whole(weights.numpy(), used, np.arange(count), 1.0)}, MEGABYTES * 1e6, (), (), 1.0)
