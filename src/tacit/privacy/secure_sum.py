"""A sum that the server can open without seeing a summand, and that survives dropouts.

The protocol of Bonawitz et al. (2017) on the sparse graph of Bell et al. (2020): every client hides its vector under
a mask of its own and under one for each neighbour, which the neighbour takes away again. Both masks come from short
secrets that are shared among the neighbours, so that a sum can be opened without the clients that dropped out. The
threat is a server that follows the protocol and is curious, together with a share of the clients; see
docs/decisions/0013-secure-sum.md.

    AdvertiseKeys   Invitation →  Keys       two public keys: for masks, and for the way of the shares
    ShareKeys       Neighbours →  Shares     shares of the mask's private key and of the own mask's seed, encrypted
    MaskedInput     Delivery   →  Masked     the vector under all masks
    Unmask          Question   →  Answer     of neighbours that stayed the seed's share, of others the key's share

Client and Server exchange nothing but these messages; `encode` and `decode` turn them into bytes and back.
"""

import secrets
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, Literal, TypeVar, get_type_hints

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.errors import UserError
from tacit.privacy.fixed_point import Words
from tacit.privacy.mask_graph import circle, degree_and_threshold
from tacit.privacy.shamir import SHARE, Entropy, secret_of, shares

Stage = Literal["AdvertiseKeys", "ShareKeys", "MaskedInput", "Unmask"]
STAGES: tuple[Stage, ...] = ("AdvertiseKeys", "ShareKeys", "MaskedInput", "Unmask")
DROPOUTS = 0.3  # of the clients invited, that a sum survives
COLLUDING = 0.1  # of the clients invited, that may tell the server all they know
FEWEST = 3  # of two, each knows the other's from the sum
_KEY = 32  # bytes of a key


class BadMessage(ValueError):
    """A message that the protocol does not allow at this place."""


# messages


@dataclass(frozen=True)
class Invitation:
    """Server to client: a sum begins."""

    session: bytes  # never the same twice
    clients: int  # invited: as many summands at most
    honest: int  # of them certainly in the sum and not colluding: noise may be divided by so many


@dataclass(frozen=True)
class Keys:
    """Client to server: public keys."""

    client: int
    mask: bytes
    share: bytes


@dataclass(frozen=True)
class Neighbours:
    """Server to client: the neighbours' public keys, and how many shares shall open a secret."""

    threshold: int
    mask: dict[int, bytes]
    share: dict[int, bytes]


@dataclass(frozen=True)
class Shares:
    """Client to server: for each neighbour two shares that the server cannot read."""

    client: int
    sealed: dict[int, bytes]


@dataclass(frozen=True)
class Delivery:
    """Server to client: what its neighbours sealed for it. These neighbours have a mask with it."""

    sealed: dict[int, bytes]


@dataclass(frozen=True)
class Masked:
    """Client to server: the vector under its masks, as little-endian words of `width` bytes."""

    client: int
    width: int
    words: bytes


@dataclass(frozen=True)
class Question:
    """Server to client: which of its neighbours are in the sum, and which dropped out after ShareKeys."""

    stayed: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """Client to server: shares of the seeds of those that stayed, and of the mask keys of those that dropped."""

    client: int
    seeds: dict[int, bytes]
    keys: dict[int, bytes]


Message = Invitation | Keys | Neighbours | Shares | Delivery | Masked | Question | Answer
M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """Field after field: numbers and lengths in four bytes, a dictionary as ids and values of one length."""
    out = []
    for f in fields(message):
        value = getattr(message, f.name)
        if isinstance(value, int):
            out.append(struct.pack("<I", value))
        elif isinstance(value, bytes):
            out.append(struct.pack("<I", len(value)) + value)
        elif isinstance(value, tuple):
            out.append(struct.pack(f"<I{len(value)}I", len(value), *value))
        else:
            width = len(next(iter(value.values()), b""))
            out.append(struct.pack(f"<II{len(value)}I", len(value), width, *value) + b"".join(value.values()))
    return b"".join(out)


def decode(kind: type[M], blob: bytes) -> M:
    """A message of that kind from its bytes; anything malformed raises BadMessage."""
    place = 0

    def take(size: int) -> bytes:
        nonlocal place
        if size > len(blob) - place:
            raise BadMessage(f"a {kind.__name__} that ends too early")
        place += size
        return blob[place - size : place]

    def numbers(count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", take(4 * count))

    hints, values = get_type_hints(kind), {}
    for f in fields(kind):
        value: Any
        if hints[f.name] is int:
            (value,) = numbers(1)
        elif hints[f.name] is bytes:
            value = take(*numbers(1))
        elif hints[f.name] == tuple[int, ...]:
            value = numbers(*numbers(1))
        else:
            count, width = numbers(2)
            ids = numbers(count)
            value = {i: take(width) for i in ids}
            if len(value) != count:
                raise BadMessage(f"a {kind.__name__} that names a client twice")
        values[f.name] = value
    if place != len(blob):
        raise BadMessage(f"a {kind.__name__} with something behind it")
    return kind(**values)


# masks


def add_masks(words: Words, keys: Iterable[tuple[bytes, bool]]) -> None:
    """Add the keystream of each key (AES-256 in counter mode), or take it away where False, in place."""
    zeros, stream = bytes(words.nbytes), bytearray(words.nbytes)
    mask = np.frombuffer(stream, dtype=words.dtype.newbyteorder("<"))
    for key, plus in keys:
        # a key is used for one vector of one session, so the counter may start at zero
        Cipher(AES256(key), CTR(bytes(16))).encryptor().update_into(zeros, stream)
        (np.add if plus else np.subtract)(words, mask, out=words)


def agreed(mine: X25519PrivateKey, theirs: bytes, purpose: bytes, session: bytes, size: int) -> bytes:
    """The secret of two clients, for one purpose and one session."""
    try:
        raw = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:
        raise BadMessage(f"not a public key: {error}") from error
    return HKDF(hashes.SHA256(), size, session, b"tacit secure sum, " + purpose).derive(raw)


class Client:
    """One client in one sum. Every step is taken once; a second time could open what it sent before."""

    def __init__(self, id: int, invitation: Invitation, entropy: Entropy = secrets.token_bytes) -> None:
        self.id = id
        self.session = invitation.session
        self._entropy = entropy
        self._mask = X25519PrivateKey.from_private_bytes(entropy(_KEY))
        self._share = X25519PrivateKey.from_private_bytes(entropy(_KEY))
        self._seed = entropy(_KEY)
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
            both = agreed(self._share, public, b"shares", self.session, 2 * _KEY)
            there, back = both[:_KEY], both[_KEY:]  # the first half is for what goes from the smaller id
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
        common = ((agreed(self._mask, self._public[j], b"mask", self.session, _KEY), self.id < j) for j in self._held)
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


def share(clients: int, part: float) -> int:
    """So many of the clients, rounded down but for a rounding error."""
    return int(part * clients + 1e-9)


def needed(clients: int, dropouts: float = DROPOUTS) -> int:
    """How many of the invited clients must stay to the end."""
    return clients - share(clients, dropouts)


def honest(clients: int) -> int:
    """How many of the invited clients are certainly in a sum and do not collude."""
    return needed(clients) - share(clients, COLLUDING)


class Server:
    """One sum. Messages of a stage are taken until the stage is closed; who is missing then has dropped out."""

    def __init__(
        self,
        invited: Sequence[int],
        dropouts: float = DROPOUTS,
        colluding: float = COLLUDING,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        if len(invited) < FEWEST:
            raise UserError(f"a secure sum of {len(invited)} clients hides nothing: it takes at least {FEWEST}")
        if min(dropouts, colluding) < 0 or dropouts + colluding >= 1:
            raise UserError(f"a secure sum cannot bear dropouts={dropouts} and colluding={colluding}: together below 1")
        self.invited = tuple(invited)
        self.needed, self.colluding = needed(len(invited), dropouts), share(len(invited), colluding)
        self.session = entropy(16)
        self.degree = self.threshold = 0
        self.graph: dict[int, list[int]] = {}
        self._entropy = entropy
        self._stage = 0
        self._allowed: Collection[int] = set(invited)  # who may speak at this stage
        self._came: dict[int, Any] = {}  # who did, with what is kept of it
        self._keys: dict[int, Keys] = {}
        self._sharers: frozenset[int] = frozenset()
        self.summed: tuple[int, ...] = ()  # whose vectors are in the sum
        self._asked: dict[int, Question] = {}
        self._total: Words | None = None

    def invite(self) -> dict[int, Invitation]:
        """Whom to tell that a sum begins."""
        word = Invitation(self.session, len(self.invited), self.needed - self.colluding)
        return dict.fromkeys(self.invited, word)

    def keys(self, message: Keys) -> None:
        """A client takes part."""
        if not len(message.mask) == len(message.share) == _KEY:
            raise BadMessage(f"the keys of client {message.client} are not keys")
        self._accept("AdvertiseKeys", message.client, message)

    def introduce(self) -> dict[int, Neighbours]:
        """Close AdvertiseKeys and draw the graph among those that came."""
        self._keys = self._close("AdvertiseKeys")
        ids = list(self._keys)
        self.degree, self.threshold = degree_and_threshold(len(ids), self.colluding, len(ids) - self.needed)
        self.graph = circle(ids, self.degree, self._entropy)
        return {
            mine: Neighbours(
                self.threshold, {j: self._keys[j].mask for j in others}, {j: self._keys[j].share for j in others}
            )
            for mine, others in self.graph.items()
        }

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

    def ask(self) -> dict[int, Question]:
        """Close MaskedInput; everyone in the sum is asked for one share of each of its neighbours."""
        stayed = self._close("MaskedInput")
        self.summed = tuple(stayed)
        for mine in stayed:
            sharers = [j for j in self.graph[mine] if j in self._sharers]
            here, gone = (tuple(j for j in sharers if (j in stayed) is there) for there in (True, False))
            self._asked[mine] = Question(here, gone)
        return self._asked

    def revealed(self, message: Answer) -> None:
        """A client's shares of its neighbours' secrets."""
        asked = self._asked.get(message.client, Question((), ()))
        answered = message.seeds.keys() == set(asked.stayed) and message.keys.keys() == set(asked.dropped)
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
                for j, share in told.items():
                    opened[j][holder] = share
        add_masks(self._total, ((self._opened(j, found), False) for j, found in seeds.items()))
        for j, found in keys.items():
            mask = X25519PrivateKey.from_private_bytes(self._opened(j, found))
            if mask.public_key().public_bytes_raw() != self._keys[j].mask:
                raise UserError(f"secure sum aborted: the shares of client {j}'s key do not belong together")
            # neighbour i had added the mask where i < j
            left = [i for i in self.graph[j] if i in stayed]
            common = ((agreed(mask, self._keys[i].mask, b"mask", self.session, _KEY), i > j) for i in left)
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
            raise BadMessage(f"client {client} has no word, or no second word, at {stage}")
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
    """The whole protocol, with clients that fall silent at a stage; the total is of those that sent a vector.

    `vectors` gives (client, words) in any order, one at a time, when all have shared their keys; none is kept.
    """
    wire, server = Wire(), Server(invited, dropouts, colluding, entropy)
    gone: set[int] = set()

    def silent(stage: Stage) -> None:
        gone.update((drops or {}).get(stage, ()))

    silent("AdvertiseKeys")
    clients = {i: Client(i, wire.down(word), entropy) for i, word in server.invite().items()}
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
    silent("Unmask")
    for i, question in server.ask().items():
        if i not in gone:
            server.revealed(wire.up(clients[i].reveal(wire.down(question))))
    return Outcome(server.total(), server.summed, server.degree, server.threshold, wire.bytes_up, wire.bytes_down)
