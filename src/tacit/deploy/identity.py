"""Who a node is for the other nodes: its key, and the authority's word for it. The server between them has neither."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tacit.errors import UserError

PROOF = 1536  # bytes: proofs of all nodes have one length
_LENGTH = 2  # bytes before the certificate


class NodeIdentity:
    """Signs with a node's key, and knows other nodes by certificates of the same authority."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: bytes, authority: bytes) -> None:
        """Both certificates as PEM."""
        self._key = key
        self._own = x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
        self._authority = x509.load_pem_x509_certificate(authority)

    @classmethod
    def load(cls, folder: Path) -> "NodeIdentity":
        """From what `tacit keys` made for a node."""
        from tacit.deploy.keys import own

        path = folder / "node.crt"
        if not path.exists():
            raise UserError(
                f"a secure sum needs {path}, by which other nodes know this one; tacit keys DIR --node {folder.name} "
                "makes it where ca.key is"
            )
        try:
            return cls(own(folder / "node.key"), path.read_bytes(), (folder / "ca.crt").read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"the certificates in {folder} cannot be read ({error}); make them again") from error

    def prove(self, statement: bytes) -> bytes:
        """The certificate, and a signature under the statement."""
        signed = self._key.sign(statement, ec.ECDSA(hashes.SHA384()))
        proof = len(self._own).to_bytes(_LENGTH, "big") + self._own + len(signed).to_bytes(1, "big") + signed
        return proof + bytes(PROOF - len(proof))

    def prover(self, proof: bytes, statement: bytes) -> bytes:
        """The public key of the node that signed a statement; ValueError where none of this authority did."""
        end = _LENGTH + int.from_bytes(proof[:_LENGTH], "big")
        if len(proof) != PROOF or end >= PROOF:
            raise ValueError("they are not signed")
        certificate = x509.load_der_x509_certificate(proof[_LENGTH:end])
        try:
            certificate.verify_directly_issued_by(self._authority)
            usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            public = certificate.public_key()
            # the server's own certificate is of the same authority
            if list(usage) != [ExtendedKeyUsageOID.CLIENT_AUTH] or not isinstance(public, ec.EllipticCurvePublicKey):
                raise ValueError("their certificate is not a node's")
            public.verify(proof[end + 1 : end + 1 + proof[end]], statement, ec.ECDSA(hashes.SHA384()))
        except (InvalidSignature, TypeError, x509.ExtensionNotFound) as error:
            raise ValueError("they are not signed by a node of this authority") from error
        if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
            raise ValueError("their certificate is not valid today")
        return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
