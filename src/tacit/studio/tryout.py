"""What a page needs to rank by itself: a catalogue, and a model small enough to send."""

from functools import lru_cache
from typing import Any

import numpy as np

from tacit.errors import UserError
from tacit.runs.model import Model

SIZE = 4e6  # bytes


def catalogue(model: Model) -> dict[str, Any]:
    """All items with titles and how many people have them, in the order of the model's columns."""
    data = model.data
    known = np.bincount(model.run.split.train.values, minlength=data.n_items)
    titles = (data.item_ids if data.titles is None else data.titles).tolist()
    return {"ids": data.item_ids.tolist(), "titles": titles, "known": known.tolist()}


@lru_cache(maxsize=2)
def small(model: Model) -> bytes:
    """The model of a linear method as `tally_small` writes it."""
    from tacit.methods.tally_small import Whole, cut

    server, count = model.server, model.data.n_items
    own, used = np.arange(count), np.bincount(model.run.split.train.values, minlength=count).astype(np.float64)
    weights = server.get("weights", server.get("filter"))
    if weights is not None and weights.shape == (count, count):
        return cut({"E": Whole(weights.numpy(), used, own, 1.0)}, SIZE, (), (), 1.0)
    if "B" not in server or "blend" not in server:
        raise UserError(
            f"{model.run.config.method} is trained on the device and does not rank in a page; choose a run of tally"
        )
    blend = float(server["blend"])
    inputs = server["inputs"].numpy().astype(np.int64) if "inputs" in server else None
    rows = own if inputs is None else inputs
    scales = len(server["B"]) // max(len(rows), 1)
    settings = model.run.folder.run["settings"]
    parts = {}
    if len(server["B"]):
        parts["B"] = Whole(server["B"].numpy(), np.tile(used[rows], scales), np.tile(rows, scales), 1 - blend)
    if len(server["E"]):
        parts["E"] = Whole(server["E"].numpy(), used[rows], rows, blend)
    return cut(parts, SIZE, settings["windows"], settings["decays"], blend, inputs)
