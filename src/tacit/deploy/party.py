"""A node in the secure sums of a run: one round at a time, and every round opened once."""

import hashlib
import json
import logging
from base64 import b64decode
from collections.abc import Callable

import numpy as np
import torch

from tacit.core.bounds import made_up
from tacit.core.method import Method
from tacit.core.payload import Payload
from tacit.core.trained import Trained
from tacit.deploy.vault import Vault
from tacit.deploy.wire import ANSWERS, Packet
from tacit.errors import UserError
from tacit.privacy import secure_sum
from tacit.privacy.fixed_point import FixedPoint
from tacit.privacy.secure_fleet import BOUND, Layout, check_sum


class Unknown(LookupError):
    """The server refers to a job this node does not know, a place it was not given, or a sum it is not in."""


class Spent(UserError):
    """A second sum of a round: with the first it would tell the uploads of whoever is in one of them alone."""


def leave_out(method: Method, round: int, error: UserError) -> None:
    """On the server: continue without a round whose sum nodes will not open again, where the method can."""
    if not isinstance(method, Trained):
        raise UserError(
            f"round {round}: nodes help to open the sum of a round only once; start a new run ({error})"
        ) from error
    logging.getLogger("tacit.server").warning(
        "round %d is left out: nodes help to open the sum of a round only once (%s)", round, error
    )


def check_alike(method: Method, n_items: int, down: Payload) -> None:
    """On a node: refuse a value for each client where the method has one for all of them.

    In a secure sum a server could send every node another model, one that leaves zeros of the uploads of all but one,
    and in an evaluation a model of its own to one user, whose ranks the node's mean metrics then are.
    """
    single = [name for name, field in down.fields.items() if not field.alike]
    if not single or method.individual:
        return
    own = method.downlink(method.init_server(made_up(n_items)), torch.arange(1)).fields
    if others := [name for name in single if name not in own or own[name].alike]:
        raise UserError(f"the server sends each client '{others[0]}' by itself, and {method.name} has one for all")


class Party:
    """Answers what a server of a secure sum asks."""

    def __init__(self, vault: Vault, job: str) -> None:
        self.vault = vault
        self._note = f"jobs/{job}/revealed.json"
        self._round = 0
        self._client: secure_sum.Client | None = None

    def answer(self, asked: Packet, identity: Callable[[], secure_sum.Identity | None]) -> Packet:
        """A stage beside the training itself."""
        round = self._open(asked)
        answer: secure_sum.Message
        if asked.kind == "invite":
            invitation = secure_sum.decode(secure_sum.Invitation, asked.body)
            self._round = round
            self._client = secure_sum.Client(int(asked.head["party"]), invitation, identity=identity())
            answer = self._client.advertise()
        elif asked.kind == "introduce":
            answer = self._in(round).share(secure_sum.decode(secure_sum.Neighbours, asked.body))
        elif asked.kind == "confirm":
            answer = self._in(round).confirm(secure_sum.decode(secure_sum.Survivors, asked.body))
        else:
            answer = self._in(round).reveal(secure_sum.decode(secure_sum.Question, asked.body))
            self.vault.write_json(self._note, round)  # on disk before a share leaves
        return Packet(ANSWERS[asked.kind], {"round": round}, secure_sum.encode(answer))

    def masked(self, method: Method, n_items: int, ups: list[Payload], down: Payload, asked: Packet) -> bytes:
        """The sum of these uploads under masks: the server can open it only together with all other nodes'."""
        check_sum(method)
        client = self._in(self._open(asked))
        point = FixedPoint(BOUND, int(asked.head["clients"]))
        layout = Layout(method, ups[0], down.only((down.ids == ups[0].ids[0]).nonzero()[:1, 0]))
        total = np.zeros(layout.length, dtype=np.uint64)
        for up in ups:
            for place in range(len(up.ids)):
                total += layout.encoded(layout.vector(up.only(torch.tensor([place]))), point)
        delivery = secure_sum.decode(secure_sum.Delivery, b64decode(asked.head["delivery"], validate=True))
        return secure_sum.encode(client.mask(delivery, total, self._about(method, n_items, down, asked)))

    def _about(self, method: Method, n_items: int, down: Payload, asked: Packet) -> bytes:
        """What every node of a sum must have been told alike: the run, the round, the fixed point and the model.

        What the method sends each client by itself is left out.
        """
        check_alike(method, n_items, down)
        out = hashlib.sha256(json.dumps([self._note, self._open(asked), int(asked.head["clients"])]).encode())
        for name, field in sorted(down.fields.items()):
            if field.alike:
                value = field.dense().contiguous()
                out.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
                out.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        return out.digest()

    def _open(self, asked: Packet) -> int:
        """The round that is asked about, if its sum has not been opened with this node's help."""
        round, revealed = int(asked.head["round"]), self.vault.json(self._note)
        if revealed is not None and type(revealed) is not int:
            raise UserError(f"{self.vault.path / self._note} is damaged; restore it, or start another run")
        if revealed is not None and round <= revealed:
            raise Spent(
                f"the server asks for a sum of round {round} again, and this node has helped to open that of round "
                f"{revealed}; two sums of a round would tell uploads apart: the server must go on without it"
            )
        return round

    def _in(self, round: int) -> secure_sum.Client:
        if self._client is None or self._round != round:
            raise Unknown(f"a secure sum in round {round}")
        return self._client
