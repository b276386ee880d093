"""The tables that clients rank with, on a plane by t-SNE: whether a client's own items lie apart from the others.

The papers show such pictures for how much or little a table gives away. A picture is no measure: the audit's AUC, where
there is one, is said beside it.
"""

import numpy as np
import torch

from tacit.core.rounds import sample
from tacit.errors import UserError
from tacit.runs.diagnose import RANKED, clients_tables
from tacit.runs.files import to_json, write_text
from tacit.runs.run import Run

FILE = "plane.json"
SEEN = 4  # clients
MOST = 1000  # items of a client, its own first


def plane(run: Run) -> None:
    """Write the planes of a few clients beside the run."""
    from sklearn.manifold import TSNE

    federation, seed = run.fleet.federation, run.config.seed
    server = run.load_best()
    if federation.n_clients < federation.n_users:
        raise UserError(f"{run.folder.path} has clients of many users; a plane is of one user's own items")
    shown = []
    for client in sample(federation.n_clients, SEEN, seed, 0).tolist():
        table = dict(clients_tables(run, server, torch.tensor([client])))[RANKED][0]
        own = run.split.train[client]
        others = np.setdiff1d(np.arange(federation.n_items), own)
        kept = np.sort(np.random.default_rng(seed).permutation(others)[: max(MOST - len(own), 0)])
        items = np.concatenate([own[:MOST], kept])
        perplexity = min(30.0, (len(items) - 1) / 3)
        spots = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(table[items].numpy())
        points = [[round(float(x), 3), round(float(y), 3)] for x, y in spots]
        shown.append({"user": str(run.split.data.user_ids[client]), "own": len(own[:MOST]), "points": points})
    write_text(run.folder.path / FILE, to_json({"round": run.folder.best_round, "users": shown}) + "\n")
