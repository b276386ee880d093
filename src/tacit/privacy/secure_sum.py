"""A sum that the server can open without seeing a summand, and that survives dropouts.

The protocol of Bonawitz et al. (2017) on the sparse graph of Bell et al. (2020): every client hides its vector under
a mask of its own and under one for each neighbour, which the neighbour takes away again. Both masks come from short
secrets that are shared among the neighbours, so that a sum can be opened without the clients that dropped out. The
threat is a server that may lie, together with a share of the clients; on the sparse graph one that follows the protocol
and is curious. See docs/decisions/0018-secure-sum.md.

    AdvertiseKeys     Invitation →  Keys       two public keys: for masks, and for the way of the shares; signed
    ShareKeys         Neighbours →  Shares     shares of the mask's private key and of the own mask's seed, encrypted
    MaskedInput       Delivery   →  Masked     the vector under all masks
    ConsistencyCheck  Survivors  →  Confirmed  to each neighbour a tag over who is in the sum
    Unmask            Question   →  Answer     of neighbours that stayed the seed's share, of others the key's share

Client and Server exchange nothing but these messages; `encode` and `decode` turn them into bytes and back.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.errors import UserError
from tacit.privacy.fixed_point import Words
from tacit.privacy.mask_graph import COLLUDING, DROPOUTS, FEWEST, circle, complete, degree_and_threshold, share
from tacit.privacy.masks import KEY, TAG, add_masks, agreed
from tacit.privacy.shamir import SHARE, Entropy, secret_of
from tacit.privacy.sum_client import Client, Identity
from tacit.privacy.sum_messages import (
    STAGES,
    Answer,
    BadMessage,
    Confirmed,
    Delivery,
    Invitation,
    Keys,
    M,
    Masked,
    Message,
    Neighbours,
    Question,
    Shares,
    Stage,
    Survivors,
    decode,
    encode,
)

__all__ = [
    "COLLUDING", "DROPOUTS", "FEWEST", "STAGES", "Answer", "BadMessage", "Client", "Confirmed", "Delivery", "Identity",
    "Invitation", "Keys", "Masked", "Message", "Neighbours", "Outcome", "Question", "Server", "Shares", "Stage",
    "Survivors", "add_masks", "agreed", "decode", "encode", "honest", "needed", "share", "simulate",
]  # fmt: skip

MOST_PROOF = 4096  # bytes of a certificate and a signature


def needed(clients: int, dropouts: float = DROPOUTS) -> int:
    """How many of the invited clients must stay to the end."""
    return clients - share(clients, dropouts)


def honest(clients: int) -> int:
    """How many of the invited clients are certainly in a sum and do not collude."""
    return needed(clients) - share(clients, COLLUDING)


class Server:
    """One sum. Messages of a stage are taken until the stage is closed; who is missing then has dropped out.

    `sparse` gives a client few neighbours of many, for clients that trust the server to follow the protocol.
    """

    def __init__(
        self,
        invited: Sequence[int],
        dropouts: float = DROPOUTS,
        colluding: float = COLLUDING,
        entropy: Entropy = secrets.token_bytes,
        sparse: bool = False,
    ) -> None:
        if len(invited) < FEWEST:
            raise UserError(f"a secure sum of {len(invited)} clients hides nothing: it takes at least {FEWEST}")
        if min(dropouts, colluding) < 0 or dropouts + colluding >= 1:
            raise UserError(f"secure sum: dropouts={dropouts} and colluding={colluding} must be below 1 together")
        self.invited = tuple(invited)
        self.needed, self.colluding = needed(len(invited), dropouts), share(len(invited), colluding)
        self.session = entropy(16)
        self.degree = self.threshold = 0
        self.graph: dict[int, list[int]] = {}
        self._entropy, self._sparse = entropy, sparse
        self._probe = X25519PrivateKey.generate()
        self._stage = 0
        self._allowed: Collection[int] = set(invited)  # who may speak at this stage
        self._came: dict[int, Any] = {}  # who did, with what is kept of it
        self._keys: dict[int, Keys] = {}
        self._sharers: frozenset[int] = frozenset()
        self.summed: tuple[int, ...] = ()  # whose vectors are in the sum
        self._stayed: dict[int, set[int]] = {}  # of each in the sum, the neighbours that are in it too
        self._total: Words | None = None

    def invite(self) -> dict[int, Invitation]:
        """Whom to tell that a sum begins."""
        word = Invitation(self.session, len(self.invited), self.needed - self.colluding)
        return dict.fromkeys(self.invited, word)

    def keys(self, message: Keys) -> None:
        """A client takes part."""
        if not len(message.mask) == len(message.share) == KEY or len(message.proof) > MOST_PROOF:
            raise BadMessage(f"the keys of client {message.client} are not keys")
        self._accept("AdvertiseKeys", message.client, message)
        try:
            for key in (message.mask, message.share):  # one that agrees with nobody would make all others fail
                agreed(self._probe, key, b"probe", self.session, KEY)
        except BadMessage:
            del self._came[message.client]
            raise

    def introduce(self) -> dict[int, Neighbours]:
        """Close AdvertiseKeys and draw the graph among those that came."""
        self._keys = self._close("AdvertiseKeys")
        ids = list(self._keys)
        bounds = degree_and_threshold if self._sparse else complete
        self.degree, self.threshold = bounds(len(ids), self.colluding, len(ids) - self.needed)
        self.graph = circle(ids, self.degree, self._entropy)
        width = max(len(told.proof) for told in self._keys.values())  # a dictionary's values have one length

        def of(others: list[int]) -> Neighbours:
            told = {j: self._keys[j] for j in others}
            proofs = {j: key.proof.ljust(width, b"\0") for j, key in told.items()}
            mask, share = {j: key.mask for j, key in told.items()}, {j: key.share for j, key in told.items()}
            return Neighbours(self.threshold, mask, share, proofs if width else {})

        return {mine: of(others) for mine, others in self.graph.items()}

    def shares(self, message: Shares) -> None:
        """A client's secrets for its neighbours."""
        if set(message.sealed) != set(self.graph.get(message.client, ())):
            raise BadMessage(f"client {message.client} shared with others than its neighbours")
        self._accept("ShareKeys", message.client, message.sealed)

    def deliver(self) -> dict[int, Delivery]:
        """Close ShareKeys; everyone gets what was sealed for it."""
        sent = self._close("ShareKeys")
        self._sharers = frozenset(sent)
        return {mine: Delivery({j: sent[j][mine] for j in self.graph[mine] if j in sent}) for mine in sent}

    def masked(self, message: Masked) -> None:
        """A client's vector; only the sum is kept."""
        words = _words(message)
        if self._total is not None and (words.shape, words.dtype) != (self._total.shape, self._total.dtype):
            raise BadMessage(f"the vector of client {message.client} is not like the others'")
        self._accept("MaskedInput", message.client, None)
        if self._total is None:
            self._total = words.copy()
        else:
            np.add(self._total, words, out=self._total)

    def survivors(self) -> dict[int, Survivors]:
        """Close MaskedInput; everyone in the sum is told who is in it."""
        there = self._close("MaskedInput")
        self.summed = tuple(there)
        self._stayed = {mine: {j for j in self.graph[mine] if j in there} for mine in there}
        return dict.fromkeys(self.summed, Survivors(self.summed))

    def confirmed(self, message: Confirmed) -> None:
        """A client's word to its neighbours on who is in the sum."""
        if message.tags.keys() != self._stayed.get(message.client) or {*map(len, message.tags.values())} != {TAG}:
            raise BadMessage(f"client {message.client} confirms to others than its neighbours in the sum")
        self._accept("ConsistencyCheck", message.client, message.tags)

    def ask(self) -> dict[int, Question]:
        """Close ConsistencyCheck; everyone is asked for one share of each of its neighbours."""
        told = self._close("ConsistencyCheck")
        return {mine: Question({j: told[j][mine] for j in self._stayed[mine] if j in told}) for mine in told}

    def revealed(self, message: Answer) -> None:
        """A client's shares of its neighbours' secrets."""
        stayed = self._stayed.get(message.client, set())
        gone = self._sharers.intersection(self.graph.get(message.client, ())) - stayed
        answered = bool(stayed) and message.seeds.keys() == stayed and message.keys.keys() == gone
        if not answered or any(
            len(share) != SHARE for told in (message.seeds, message.keys) for share in told.values()
        ):
            raise BadMessage(f"client {message.client} does not answer what it was asked")
        self._accept("Unmask", message.client, message)

    def total(self) -> Words:
        """Close Unmask and take the masks away: of those that stayed the own ones, of the others the common ones."""
        answers: dict[int, Answer] = self._close("Unmask")
        assert self._total is not None
        stayed = set(self.summed)
        seeds: dict[int, dict[int, bytes]] = {j: {} for j in stayed}  # owner -> holder -> share
        keys: dict[int, dict[int, bytes]] = {j: {} for j in self._sharers - stayed}
        for holder, answer in answers.items():
            for told, opened in ((answer.seeds, seeds), (answer.keys, keys)):
                for j, part in told.items():
                    opened[j][holder] = part
        add_masks(self._total, ((self._opened(j, found), False) for j, found in seeds.items()))
        for j, found in keys.items():
            mask = X25519PrivateKey.from_private_bytes(self._opened(j, found))
            if mask.public_key().public_bytes_raw() != self._keys[j].mask:
                raise UserError(f"secure sum aborted: the shares of client {j}'s key do not belong together")
            # neighbour i had added the mask where i < j
            left = [i for i in self.graph[j] if i in stayed]
            common = ((agreed(mask, self._keys[i].mask, b"mask", self.session, KEY), i > j) for i in left)
            add_masks(self._total, common)
        return self._total

    def _opened(self, owner: int, found: Mapping[int, bytes]) -> bytes:
        try:
            return secret_of(found, self.threshold)
        except ValueError as error:
            raise UserError(f"secure sum aborted: a secret of client {owner} cannot be opened: {error}") from error

    def _accept(self, stage: Stage, client: int, content: Any) -> None:
        if self._stage >= len(STAGES) or STAGES[self._stage] != stage:
            raise BadMessage(f"{stage} is not open: client {client} is too late or too early")
        if client not in self._allowed or client in self._came:
            raise BadMessage(f"client {client} may not send, or not again, at {stage}")
        self._came[client] = content

    def _close(self, stage: Stage) -> dict[int, Any]:
        if self._stage >= len(STAGES) or STAGES[self._stage] != stage:
            raise BadMessage(f"{stage} is not open")
        came, self._came = self._came, {}
        if len(came) < self.needed:
            self._stage = len(STAGES)
            raise UserError(
                f"secure sum aborted: {len(came)} of {len(self.invited)} clients are left after {stage}, and "
                f"{self.needed} are needed to open the sum; nothing is revealed, start the round again"
            )
        self._stage += 1
        self._allowed = set(came)
        return came


def _words(message: Masked) -> Words:
    if message.width not in (4, 8) or len(message.words) % message.width:
        raise BadMessage(f"the vector of client {message.client} has no whole words")
    return np.frombuffer(message.words, dtype="<u4" if message.width == 4 else "<u8")


# all of it in one process


@dataclass
class Outcome:
    """A sum and what it took."""

    total: Words
    clients: tuple[int, ...]  # whose vectors are in it
    degree: int
    threshold: int
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass
class Wire:
    """Every message passes through bytes, and they are counted."""

    bytes_up: int = 0
    bytes_down: int = 0

    def up(self, message: M) -> M:
        """From a client to the server."""
        blob = encode(message)
        self.bytes_up += len(blob)
        return decode(type(message), blob)

    def down(self, message: M) -> M:
        """From the server to a client."""
        blob = encode(message)
        self.bytes_down += len(blob)
        return decode(type(message), blob)


def simulate(
    invited: Sequence[int],
    vectors: Iterable[tuple[int, Words]],
    drops: Mapping[Stage, Collection[int]] | None = None,
    dropouts: float = DROPOUTS,
    colluding: float = COLLUDING,
    entropy: Entropy = secrets.token_bytes,
) -> Outcome:
    """The whole protocol on the sparse graph, with clients that fall silent at a stage and have no keys of their own.

    The total is of those that sent a vector.

    `vectors` gives (client, words) in any order, one at a time, when all have shared their keys; none is kept.
    """
    wire, server = Wire(), Server(invited, dropouts, colluding, entropy, sparse=True)
    gone: set[int] = set()

    def silent(stage: Stage) -> None:
        gone.update((drops or {}).get(stage, ()))

    silent("AdvertiseKeys")
    clients = {i: Client(i, wire.down(word), entropy, trusting=True) for i, word in server.invite().items()}
    for i, client in clients.items():
        if i not in gone:
            server.keys(wire.up(client.advertise()))
    silent("ShareKeys")
    for i, word in server.introduce().items():
        if i not in gone:
            server.shares(wire.up(clients[i].share(wire.down(word))))
    silent("MaskedInput")
    deliveries = server.deliver()
    for i, words in vectors:
        if i in deliveries and i not in gone:
            server.masked(wire.up(clients[i].mask(wire.down(deliveries[i]), words)))
    silent("ConsistencyCheck")
    for i, told in server.survivors().items():
        if i not in gone:
            server.confirmed(wire.up(clients[i].confirm(wire.down(told))))
    silent("Unmask")
    for i, question in server.ask().items():
        if i not in gone:
            server.revealed(wire.up(clients[i].reveal(wire.down(question))))
    return Outcome(server.total(), server.summed, server.degree, server.threshold, wire.bytes_up, wire.bytes_down)
