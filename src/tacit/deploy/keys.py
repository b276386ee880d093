"""Certificates and keys of a federation.

DIR/ca.crt, ca.key          the authority that signs the server's certificate
DIR/server/                 for the server: server.crt, server.key and nodes/NAME.pub, the keys that may connect
DIR/nodes/NAME/             for a node: ca.crt, node.key and node.crt, by which other nodes know it in a secure sum
"""

import ipaddress
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tacit.deploy.vault import write
from tacit.errors import UserError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise UserError(
        f"keys need Flower's libraries ({error}); install them with: pip install 'tacit[flower]'"
    ) from error

YEARS = 5
SOON = 30  # days before the end of a certificate from which on it is warned of
_DAY = timedelta(days=1)


def make(folder: Path, hosts: list[str], nodes: list[str]) -> list[Path]:
    """Make what is missing of an authority, a server's certificate and nodes' keys; gives the files made."""
    for name in nodes:
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
            raise UserError(f"'{name}' cannot name a node; use letters, digits, '-', '_' and '.'")
    try:
        return _make(folder, hosts, nodes)
    except OSError as error:
        raise UserError(f"cannot keep keys in {folder} ({error.strerror or error}); name another folder") from error


def _make(folder: Path, hosts: list[str], nodes: list[str]) -> list[Path]:
    made: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "ca.key").exists():
        key = ec.generate_private_key(ec.SECP384R1())
        made += [_private(folder / "ca.key", key), _public(folder / "ca.crt", _pem(_authority(key)))]
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signing = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    if hosts:
        hosts = list(dict.fromkeys([*_hosts(folder / "server" / "server.crt"), *hosts]))
        key = ec.generate_private_key(ec.SECP384R1())
        made += [
            _private(folder / "server" / "server.key", key),
            _public(folder / "server" / "server.crt", _pem(_signed(key.public_key(), hosts, authority, signing))),
        ]
    for name in nodes:
        path, public = folder / "nodes" / name / "node.key", folder / "server" / "nodes" / f"{name}.pub"
        if not path.exists() and not public.exists():  # else the node has made its own
            key = ec.generate_private_key(ec.SECP384R1())
            made += [_private(path, key, serialization.PrivateFormat.OpenSSH), _public(public, _ssh(key.public_key()))]
        if not path.with_name("ca.crt").exists():
            made.append(_public(path.with_name("ca.crt"), (folder / "ca.crt").read_bytes()))
        if not (certificate := path.with_name("node.crt")).exists():
            made.append(_public(certificate, _pem(_signed(_known(public), [name], authority, signing, server=False))))
    return made


def _hosts(path: Path) -> list[str]:
    """The hosts that a certificate already names: nodes that know the server by one of them must find it again."""
    if not path.exists():
        return []
    found = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def warn(path: Path, log: logging.Logger) -> int | None:
    """Days until a certificate ends, with a line in the log where they are few; None where it cannot be read."""
    try:
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None
    days = (ends - datetime.now(UTC)).days
    if days < SOON:
        what = "has ended" if days < 0 else f"ends in {days} days"
        log.warning(
            "the certificate %s %s, on %s; make another: docs/deploy.md, rotating keys", path, what, ends.date()
        )
    return days


def allowed(folder: Path) -> dict[str, bytes]:
    """The public keys a server knows, by the name of their file, as Flower keeps them."""
    found = {}
    for file in sorted((folder / "nodes").glob("*.pub")):
        found[file.stem] = _known(file).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    if not found:
        raise UserError(
            f"{folder} names no nodes: put public keys into {folder / 'nodes'}, or run tacit keys --node NAME"
        )
    return found


def _known(file: Path) -> ec.EllipticCurvePublicKey:
    key = serialization.load_ssh_public_key(file.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{file} is not an ECDSA key; make one with: ssh-keygen -t ecdsa -b 384")
    return key


def own(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key; refuses one that others may read."""
    if not path.exists():
        raise UserError(f"there is no key {path}; tacit keys makes one")
    if path.stat().st_mode & 0o077 and os.name == "posix":
        raise UserError(f"{path} can be read by others; run: chmod 600 {path}")
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not a private key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not an ECDSA key; make one with: ssh-keygen -t ecdsa -b 384")
    return key


def _private(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> Path:
    write(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path


def _public(path: Path, blob: bytes) -> Path:
    write(path, blob)
    path.chmod(0o644)
    return path


def _ssh(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now, name = datetime.now(UTC), _named("tacit authority")
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + YEARS * 365 * _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _signed(
    key: ec.EllipticCurvePublicKey,
    names: list[str],
    authority: x509.Certificate,
    signing: ec.EllipticCurvePrivateKey,
    server: bool = True,
) -> x509.Certificate:
    """A server's certificate or a node's: neither can pose as the other."""
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(names[0][:64]))
        .issuer_name(authority.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(min(now + YEARS * 365 * _DAY, authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    if server:
        made = made.add_extension(x509.SubjectAlternativeName([_host(host) for host in names]), critical=False)
    return made.sign(signing, hashes.SHA384())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
