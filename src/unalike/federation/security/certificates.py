"""A private certificate authority, the server's certificate, and the keys of the sites' connections.

The authority of a federation signs one certificate: the server's. A site trusts nothing else, so a public authority cannot
impersonate the server. A site's connection uses a P-384 key, as Flower's node authentication requires; its messages are signed
with another key (`security/keys.py`).
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import writing

PRIVATE_MODE = 0o600
"""Only the owner of the file reads and writes it."""
KEY_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)
"""The key usages of X.509; a certificate states each as allowed or not."""
EXPIRY_WARNING_DAYS = 60
"""Days before a certificate expires from which on coordinator and sites warn."""
AUTHORITY_YEARS = 10.0
"""Validity of the authority's certificate, which sites have in their bundles."""
SERVER_YEARS = 2.0
"""Validity of the server's certificate, which is renewed without new bundles."""
DAY_SECONDS = 86400
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")
"""A host's name: labels of letters, digits and hyphens. A name in other letters is written as in the DNS (xn--...)."""
MAX_HOST_LETTERS = 253
"""Most letters of a host's name in the DNS."""


def authority(
    name: str, years: float = AUTHORITY_YEARS
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new private authority; it can sign servers but no further authorities."""
    key = node_key()
    subject = _name(f"{name} authority")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    # it signs itself, and nothing that signs others
    certificate = (
        _builder(subject=subject, issuer=subject, key=key, years=years)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    return key, certificate


def server(
    hosts: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate,
    years: float = SERVER_YEARS,
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A server's key and certificate for these names and addresses, and always for this machine's (localhost)."""
    server_key = node_key()
    subject = _name(hosts[0] if hosts else "localhost")
    # the coordinator's own processes connect to it on this machine
    all_hosts = dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"])
    names = x509.SubjectAlternativeName([_host(host) for host in all_hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    certificate = (
        _builder(subject=subject, issuer=issuer.subject, key=server_key, years=years)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(names, critical=False)
        .add_extension(signed_by, critical=False)
        .sign(key, hashes.SHA384())
    )
    return server_key, certificate


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a server's certificate is for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def read(key: bytes, certificate: bytes) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A private key and a certificate from PEM. Raises `UnalikeError`."""
    try:
        private = serialization.load_pem_private_key(key, None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("not of an elliptic curve")
        return private, x509.load_pem_x509_certificate(certificate)
    except (ValueError, TypeError) as error:
        raise UnalikeError(
            f"a key or certificate that cannot be read: {error}; restore the folder's files"
        ) from None


def why_untrusted(
    key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, authority: bytes
) -> str:
    """The reason why sites that trust the authority (PEM) would refuse this server; "" if they accept it."""
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return "is of another authority than that in ca.pem, which sites trust"
    if certificate.public_key() != key.public_key():
        return "is not that of the key beside it"
    if certificate.not_valid_before_utc > datetime.datetime.now(datetime.UTC):
        return f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on, and this machine's clock is before it"
    return "has expired" if days_left(certificate) < 0 else ""


def days_left(certificate: x509.Certificate) -> float:
    """Days until the certificate expires; negative if it has expired."""
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return left.total_seconds() / DAY_SECONDS


def expiry(what: str, certificate: bytes, remedy: str) -> list[str]:
    """The line that says that a certificate (PEM) expires within `EXPIRY_WARNING_DAYS`, or has expired; none for any other."""
    left = days_left(x509.load_pem_x509_certificate(certificate))
    if left >= EXPIRY_WARNING_DAYS:
        return []
    when = "has expired" if left < 0 else f"expires in {left:.0f} days"
    return [f"{what} {when}; {remedy}"]


def node_key() -> ec.EllipticCurvePrivateKey:
    """A new P-384 key, for certificates and for Flower's node authentication."""
    return ec.generate_private_key(ec.SECP384R1())


def pem(key: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    """A private key (PKCS 8, not encrypted) or a certificate as PEM."""
    if isinstance(key, x509.Certificate):
        return key.public_bytes(serialization.Encoding.PEM)
    return key.private_bytes(
        encoding=serialization.Encoding.PEM,
        format=serialization.PrivateFormat.PKCS8,
        encryption_algorithm=serialization.NoEncryption(),
    )


def openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A node's private key in the form of OpenSSH, which Flower's tools read."""
    return key.private_bytes(
        encoding=serialization.Encoding.PEM,
        format=serialization.PrivateFormat.OpenSSH,
        encryption_algorithm=serialization.NoEncryption(),
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public key as PEM, as Flower registers it."""
    return as_pem(key.public_key())


def as_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as PEM, always in the same form."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from its creation on. Raises `UnalikeError` if it exists or on failure."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        except FileExistsError:
            raise UnalikeError(
                f"{path} exists; keys are never overwritten: choose another folder or move it away"
            ) from None
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # half of a key would look like a key
            path.unlink(missing_ok=True)
            raise


def replace_private(path: Path, content: bytes) -> None:
    """Replace a private file atomically."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    write_private(new, content)
    os.replace(new, path)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, years: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    # from yesterday on, since sites' clocks may be slow
    valid_from = now - datetime.timedelta(days=1)
    valid_until = now + datetime.timedelta(days=365 * years)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(valid_until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    """A name or address in a certificate. Raises `UnalikeError` for what no site can connect to."""
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    last_label = text.rstrip(".").rpartition(".")[2]
    # an address with a mistake looks like a name; no domain at the top of the DNS is a number
    is_address = last_label.isdecimal()
    if HOST_NAME.fullmatch(text) and len(text) <= MAX_HOST_LETTERS and not is_address:
        return x509.DNSName(text)
    raise UnalikeError(
        f"{text!r} is no host; expected a name such as fed.example.org or an IP address, without scheme, port, path and '*'"
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    usages = dict.fromkeys(KEY_USAGES, False) | allowed
    return x509.KeyUsage(**usages)
