"""What a node recommends to its users, from what is on its disk alone."""

import math
from pathlib import Path

import torch

from tacit.core.fleet import SimulatedFleet
from tacit.core.local import local_round
from tacit.core.payload import BadPayload, Payload, decode
from tacit.core.store import ClientStore
from tacit.core.trained import Trained
from tacit.data.interactions import Interactions
from tacit.deploy import forget
from tacit.deploy.node import Work, latest_model, reopened, sent
from tacit.deploy.shard import shard
from tacit.deploy.vault import Vault
from tacit.errors import UserError
from tacit.runs.run import Recommendation

ALONE = 10  # rounds that a newcomer trains by itself


def served(vault: Vault) -> str:
    """The job that recommendations are made with: the latest that has a model."""
    for job in dict.fromkeys([vault.current, *vault.jobs()]):
        if latest_model(vault, job) is not None:
            return job
    raise UserError(f"{vault.path} has no model yet: its run has not finished a round")


def recommend(
    folder: Path, data: Interactions, user: str, k: int = 10, allow: tuple[str, ...] = ()
) -> list[Recommendation]:
    """The k best items a user has not touched, from what is on this disk alone.

    A user who was not there when the node joined the run is served after training by itself against the latest
    model; nothing of that is sent or kept.
    """
    vault = Vault(folder)
    data = forget.without(data, vault)
    work = reopened(vault, served(vault), data, 0, allow)
    model = latest_model(vault, work.job.id)
    if work.place is None or model is None:
        raise UserError(f"{folder} has no model yet: its run has not finished a round")
    try:
        down = decode(model.body)
    except BadPayload as error:
        raise UserError(f"the model in {folder} cannot be read ({error}); the next evaluation replaces it") from error
    index = work.data.user_index(user)
    if user in work.users:
        work.stand_at(int(model.head["round"]))
        number = work.shard.users.start + work.users.index(user)
        scores = work.fleet.scores_of_on(sent(down), number, "test").clone()
    else:
        scores = _newcomer(work, down, user)
    have = work.data.item[work.data.user == index]
    scores[torch.from_numpy(have)] = -math.inf
    value, item = scores.topk(min(k, int((scores > -math.inf).sum())))
    return [
        Recommendation(work.job.items[i], work.data.title(i), v, held_out=False)
        for i, v in zip(item.tolist(), value.tolist(), strict=True)
    ]


def _newcomer(work: Work, down: Payload, user: str) -> torch.Tensor:
    """(M,) logits of a user outside the run: a client of its own, trained against the latest model, upload dropped."""
    number, client = work.shard.users.stop, work.shard.clients.stop
    own = shard(work.data, work.job, [user], number, client)
    ids = torch.tensor([client])
    alone = Payload(ids, {name: field.typical() for name, field in down.fields.items()})
    store = ClientStore(work.method, own.federation, clients=own.clients, users=own.users)
    for round in range(1, ALONE + 1):
        data = work.method.data(own.federation, ids, round)
        kept, _, _ = local_round(work.method, store.read(data, training=True), alone, data)
        store.write(data, kept)
        if not isinstance(work.method, Trained):  # what is computed in one go is there after one round
            break
    fleet = SimulatedFleet(work.method, own.federation, threads=1, store=store)
    return fleet.scores_of_on(lambda _: alone, number, "test").clone()
