"""A client's side of a secure sum; the protocol is described in `privacy.secure_sum`."""

import hashlib
import hmac
import secrets
import struct
from itertools import chain
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tacit.errors import UserError
from tacit.privacy.fixed_point import Words
from tacit.privacy.mask_graph import FEWEST, least_threshold
from tacit.privacy.masks import KEY, TAG, add_masks, agreed
from tacit.privacy.shamir import SHARE, Entropy, shares
from tacit.privacy.sum_messages import (
    STAGES,
    Answer,
    BadMessage,
    Confirmed,
    Delivery,
    Invitation,
    Keys,
    Masked,
    Neighbours,
    Question,
    Shares,
    Stage,
    Survivors,
)


class Identity(Protocol):
    """Who a client is for the others, whatever the server between them says."""

    def prove(self, statement: bytes) -> bytes:
        """A proof that this client made a statement, of the same length for all."""

    def prover(self, proof: bytes, statement: bytes) -> bytes:
        """Who made a statement; ValueError where the proof is none."""


class Client:
    """One client in one sum. Every step is taken once; a second time could open what it sent before.

    Whatever the server says, a client shares its secrets with two others at least, at a threshold that a lying server
    cannot reach for both of them, and with an `identity` only with others that prove theirs. `trusting` clients take a
    sparse graph's lower threshold: their server follows the protocol.
    """

    def __init__(
        self,
        id: int,
        invitation: Invitation,
        entropy: Entropy = secrets.token_bytes,
        identity: Identity | None = None,
        trusting: bool = False,
    ) -> None:
        self.id = id
        self._identity, self._trusting = identity, trusting
        self.session = invitation.session
        self._entropy = entropy
        self._mask = X25519PrivateKey.from_private_bytes(entropy(KEY))
        self._share = X25519PrivateKey.from_private_bytes(entropy(KEY))
        self._seed = entropy(KEY)
        # keys of what goes to a neighbour and comes from it: shares, and then confirmations
        self._channels: dict[int, tuple[tuple[bytes, bytes], tuple[bytes, bytes]]] = {}
        self._public: dict[int, bytes] = {}  # the neighbours' keys for masks
        self._held: dict[int, bytes] = {}  # shares of the neighbours' secrets
        self._stayed: list[int] = []  # neighbours in the sum
        self._about = b""  # of what the vector was made from
        self._digest = b""  # of that, and of all that are in the sum
        self._threshold = 0
        self._next = 0

    def advertise(self) -> Keys:
        """Both public keys."""
        self._step("AdvertiseKeys")
        mask, share = (key.public_key().public_bytes_raw() for key in (self._mask, self._share))
        proof = self._identity.prove(self._statement(self.id, mask, share)) if self._identity else b""
        return Keys(self.id, mask, share, proof)

    def share(self, neighbours: Neighbours) -> Shares:
        """Both secrets in shares, each pair sealed for the neighbour that will hold it."""
        self._step("ShareKeys")
        ids = set(neighbours.mask)
        if self.id in ids or ids != set(neighbours.share) or neighbours.threshold > len(ids):
            raise BadMessage(f"client {self.id} cannot share its secrets with these neighbours")
        least = FEWEST - 1 if self._trusting else max(FEWEST - 1, least_threshold(len(ids)))
        if neighbours.threshold < least:
            raise UserError(
                f"secure sum: the server wants {neighbours.threshold} of {len(ids)} other parties to open a secret of "
                f"client {self.id}, which shares it at {least} or more, and with {FEWEST - 1} others or more"
            )
        if self._identity is not None:
            self._verify(neighbours, self._identity)
        self._threshold, self._public = neighbours.threshold, neighbours.mask
        for other, public in neighbours.share.items():
            all_four = agreed(self._share, public, b"shares", self.session, 4 * KEY)
            one, two, three, four = (all_four[at : at + KEY] for at in range(0, 4 * KEY, KEY))
            # the first of each pair is for what goes from the smaller id
            self._channels[other] = ((one, two), (three, four)) if self.id < other else ((two, one), (four, three))
        keys = shares(self._mask.private_bytes_raw(), self._threshold, ids, self._entropy)
        seeds = shares(self._seed, self._threshold, ids, self._entropy)
        return Shares(self.id, {other: self._sealed(other, keys[other] + seeds[other]) for other in neighbours.mask})

    def mask(self, delivery: Delivery, words: Words, about: bytes = b"") -> Masked:
        """The vector under the own mask and those with every neighbour that shared its secrets.

        `about` is what the vector was made from as far as it must be everybody's: neighbours who were told something
        else do not confirm, and the sum is not opened. A server could otherwise let all others send zeros.
        """
        self._step("MaskedInput")
        self._about = hashlib.sha256(about).digest()
        if len(delivery.sealed) < self._threshold:
            raise UserError(
                f"secure sum: client {self.id} has {len(delivery.sealed)} neighbours left and will not send without "
                f"{self._threshold}"
            )
        self._held = {other: self._opened(other, sealed) for other, sealed in delivery.sealed.items()}
        # of two neighbours the one with the smaller id adds the mask and the other takes it away
        common = ((agreed(self._mask, self._public[j], b"mask", self.session, KEY), self.id < j) for j in self._held)
        hidden = words.copy()
        add_masks(hidden, chain([(self._seed, True)], common))
        return Masked(self.id, words.itemsize, hidden.astype(words.dtype.newbyteorder("<"), copy=False).tobytes())

    def confirm(self, survivors: Survivors) -> Confirmed:
        """To every neighbour in the sum: who this client was told is in it."""
        self._step("ConsistencyCheck")
        told = set(survivors.clients)
        if self.id not in told or len(told) != len(survivors.clients):
            raise BadMessage(f"client {self.id} is told of a sum that it is not in")
        self._stayed = [j for j in self._held if j in told]
        if len(self._stayed) < self._threshold:
            raise UserError(
                f"secure sum: client {self.id} has {len(self._stayed)} neighbours in the sum and will not open it "
                f"without {self._threshold}"
            )
        there = struct.pack(f"<{len(told)}I", *sorted(told))
        self._digest = hashlib.sha256(self._about + self.session + there).digest()
        return Confirmed(self.id, {j: self._tag(self._channels[j][1][0]) for j in self._stayed})

    def reveal(self, question: Question) -> Answer:
        """Of every neighbour one share: with both, the server could open its vector.

        A server that told neighbours different survivors gets none: as many as open a secret must have been told the
        same as this client, and two sets cannot both be that large.
        """
        self._step("Unmask")
        agree = sum(
            hmac.compare_digest(question.tags.get(j, b""), self._tag(self._channels[j][1][1])) for j in self._stayed
        )
        if agree < self._threshold:
            raise UserError(
                f"secure sum: {agree} neighbours of client {self.id} confirm who is in the sum, and it will not open "
                f"it without {self._threshold}"
            )
        gone = self._held.keys() - set(self._stayed)
        keys = {j: self._held[j][:SHARE] for j in self._held if j in gone}
        return Answer(self.id, {j: self._held[j][SHARE:] for j in self._stayed}, keys)

    def _verify(self, neighbours: Neighbours, identity: Identity) -> None:
        """Everybody's keys are signed, and everybody is somebody else."""
        own = self._mask.public_key().public_bytes_raw(), self._share.public_key().public_bytes_raw()
        mine = self._statement(self.id, *own)
        known = {identity.prover(identity.prove(mine), mine)}
        for other, mask in neighbours.mask.items():
            try:
                statement = self._statement(other, mask, neighbours.share[other])
                known.add(identity.prover(neighbours.proof.get(other, b""), statement))
            except ValueError as error:
                raise UserError(f"secure sum: the keys of client {other} are not its own: {error}") from error
        if len(known) != len(neighbours.mask) + 1:
            raise UserError("secure sum: two of its clients are the same")

    def _statement(self, client: int, mask: bytes, share: bytes) -> bytes:
        return b"tacit secure sum, keys" + self.session + struct.pack("<I", client) + mask + share

    def _tag(self, key: bytes) -> bytes:
        return hmac.digest(key, self._digest, "sha256")[:TAG]

    def _step(self, stage: Stage) -> None:
        if self._next >= len(STAGES) or STAGES[self._next] != stage:
            raise BadMessage(f"client {self.id} is not at {stage}")
        self._next += 1

    def _sealed(self, other: int, content: bytes) -> bytes:
        # a key serves one direction and one message, so the nonce may be zero
        return AESGCM(self._channels[other][0][0]).encrypt(bytes(12), content, self._address(self.id, other))

    def _opened(self, other: int, sealed: bytes) -> bytes:
        if other not in self._channels:
            raise BadMessage(f"client {other} is not a neighbour of client {self.id}")
        try:
            content = AESGCM(self._channels[other][0][1]).decrypt(bytes(12), sealed, self._address(other, self.id))
        except InvalidTag as error:
            raise BadMessage(f"the shares of client {other} did not arrive as they were sent") from error
        if len(content) != 2 * SHARE:
            raise BadMessage(f"the shares of client {other} are not two")
        return content

    def _address(self, sender: int, receiver: int) -> bytes:
        return self.session + struct.pack("<II", sender, receiver)
