"""Throw-away certificates for servers of tests; fixed dates, no clock."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["server_tls"]


def server_tls(
    folder: Path,
    *,
    names: tuple[str, ...] = ("localhost",),
    until: datetime = datetime(2199, 1, 1, tzinfo=UTC),
) -> tuple[ssl.SSLContext, str]:
    """A server's TLS settings with a self-signed certificate for ``names`` and 127.0.0.1, and the
    path of that certificate, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    others: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    if "localhost" in names:
        others.append(x509.IPAddress(IPv4Address("127.0.0.1")))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName(others), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(pem))
    secret = folder / "key.pem"
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, secret)
    return context, str(path)
