"""Certificates for tests: an authority of the test's own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class IssuedFiles:
    """The files of a certificate."""

    certificate: Path
    key: Path


class TestAuthority:
    """Signs certificates for loopback; `ca` is the file of its own."""

    __test__ = False

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _signed(name, self._key, self._key, name, None)
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> IssuedFiles:
        """Write, or replace, the files of a certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(name, key, self._key, self._certificate.subject, self._certificate)
        files = IssuedFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.touch(mode=0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signing_key: ec.EllipticCurvePrivateKey,
    issuer: str | x509.Name,
    authority: x509.Certificate | None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    issued = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer) if isinstance(issuer, str) else issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if authority is not None:
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        issued = issued.add_extension(x509.SubjectAlternativeName(names), critical=False)
    else:
        usage = dict.fromkeys(signature(x509.KeyUsage).parameters, False) | {"key_cert_sign": True, "crl_sign": True}
        issued = issued.add_extension(x509.KeyUsage(**usage), critical=True)
    return issued.sign(signing_key, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
