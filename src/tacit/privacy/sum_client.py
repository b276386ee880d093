"""A client's side of a secure sum; the protocol is described in `privacy.secure_sum`."""

import secrets
import struct
from itertools import chain

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tacit.errors import UserError
from tacit.privacy.fixed_point import Words
from tacit.privacy.masks import KEY, add_masks, agreed
from tacit.privacy.shamir import SHARE, Entropy, shares
from tacit.privacy.sum_messages import (
    STAGES,
    Answer,
    BadMessage,
    Delivery,
    Invitation,
    Keys,
    Masked,
    Neighbours,
    Question,
    Shares,
    Stage,
)


class Client:
    """One client in one sum. Every step is taken once; a second time could open what it sent before."""

    def __init__(self, id: int, invitation: Invitation, entropy: Entropy = secrets.token_bytes) -> None:
        self.id = id
        self.session = invitation.session
        self._entropy = entropy
        self._mask = X25519PrivateKey.from_private_bytes(entropy(KEY))
        self._share = X25519PrivateKey.from_private_bytes(entropy(KEY))
        self._seed = entropy(KEY)
        self._channels: dict[int, tuple[bytes, bytes]] = {}  # keys of what goes to a neighbour and comes from it
        self._public: dict[int, bytes] = {}  # the neighbours' keys for masks
        self._held: dict[int, bytes] = {}  # shares of the neighbours' secrets
        self._threshold = 0
        self._next = 0

    def advertise(self) -> Keys:
        """Both public keys."""
        self._step("AdvertiseKeys")
        mask, share = (key.public_key().public_bytes_raw() for key in (self._mask, self._share))
        return Keys(self.id, mask, share)

    def share(self, neighbours: Neighbours) -> Shares:
        """Both secrets in shares, each pair sealed for the neighbour that will hold it."""
        self._step("ShareKeys")
        ids = set(neighbours.mask)
        if self.id in ids or ids != set(neighbours.share) or not 0 < neighbours.threshold <= len(ids):
            raise BadMessage(f"client {self.id} cannot share its secrets with these neighbours")
        self._threshold, self._public = neighbours.threshold, neighbours.mask
        for other, public in neighbours.share.items():
            both = agreed(self._share, public, b"shares", self.session, 2 * KEY)
            there, back = both[:KEY], both[KEY:]  # the first half is for what goes from the smaller id
            self._channels[other] = (there, back) if self.id < other else (back, there)
        keys = shares(self._mask.private_bytes_raw(), self._threshold, ids, self._entropy)
        seeds = shares(self._seed, self._threshold, ids, self._entropy)
        return Shares(self.id, {other: self._sealed(other, keys[other] + seeds[other]) for other in neighbours.mask})

    def mask(self, delivery: Delivery, words: Words) -> Masked:
        """The vector under the own mask and those with every neighbour that shared its secrets."""
        self._step("MaskedInput")
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

    def reveal(self, question: Question) -> Answer:
        """Of every neighbour one share: with both, the server could open its vector."""
        self._step("Unmask")
        stayed, dropped = set(question.stayed), set(question.dropped)
        if stayed & dropped or stayed | dropped != set(self._held):
            raise BadMessage(f"client {self.id} is asked for what it must not tell")
        if len(stayed) < self._threshold:
            raise UserError(
                f"secure sum: client {self.id} has {len(stayed)} neighbours in the sum and will not open it without "
                f"{self._threshold}"
            )
        keys = {j: self._held[j][:SHARE] for j in question.dropped}
        return Answer(self.id, {j: self._held[j][SHARE:] for j in question.stayed}, keys)

    def _step(self, stage: Stage) -> None:
        if self._next >= len(STAGES) or STAGES[self._next] != stage:
            raise BadMessage(f"client {self.id} is not at {stage}")
        self._next += 1

    def _sealed(self, other: int, content: bytes) -> bytes:
        # a key serves one direction and one message, so the nonce may be zero
        return AESGCM(self._channels[other][0]).encrypt(bytes(12), content, self._address(self.id, other))

    def _opened(self, other: int, sealed: bytes) -> bytes:
        if other not in self._channels:
            raise BadMessage(f"client {other} is no neighbour of client {self.id}")
        try:
            content = AESGCM(self._channels[other][1]).decrypt(bytes(12), sealed, self._address(other, self.id))
        except InvalidTag as error:
            raise BadMessage(f"the shares of client {other} did not arrive as they were sent") from error
        if len(content) != 2 * SHARE:
            raise BadMessage(f"the shares of client {other} are not two")
        return content

    def _address(self, sender: int, receiver: int) -> bytes:
        return self.session + struct.pack("<II", sender, receiver)
