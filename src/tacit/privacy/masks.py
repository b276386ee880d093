"""Masks over vectors of words, from secrets that two clients agree on."""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.privacy.fixed_point import Words
from tacit.privacy.sum_messages import BadMessage

KEY = 32  # bytes of a key
TAG = 16  # bytes of a confirmation


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
