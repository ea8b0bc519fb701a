"""A certificate authority for one mesh, for development and small deployments, with files that only their owner reads.

Another authority (cert-manager, Vault) may take its place; what a certificate must name is in `mesh.security.plane_tls`.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spotwise.mesh.security.plane_tls import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    MEMBER_NAME,
    role_name,
    role_uri,
    roles_in,
)
from spotwise.wire.roles import MeshRole

_CA_KEY_FILE = "ca.key"
#: Certificates are valid from this long ago on: the clocks of hosts differ.
_BACKDATED = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Certified:
    """What a certificate says.

    Attributes:
        name: its subject.
        roles: those of a member; empty of a server.
        hosts: names and addresses under which clients reach it.
        expires: the end of its validity, in UTC.
    """

    name: str
    roles: tuple[str, ...]
    hosts: tuple[str, ...]
    expires: datetime.datetime


class CertificateAuthority:
    """The CA in a folder with `ca.crt` and `ca.key`."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._folder = folder
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, folder: Path, name: str, days: int) -> CertificateAuthority:
        """Make a CA; raises `FileExistsError` where the folder has one, and `OSError` where it cannot be written."""
        private_folder(folder)
        if (folder / _CA_KEY_FILE).exists():
            raise FileExistsError(f"{folder} has a CA already")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(subject, subject, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        _write_key(folder / _CA_KEY_FILE, key)
        private_file(folder / CA_FILE, _pem(certificate))
        return cls(folder, certificate, key)

    @classmethod
    def read(cls, folder: Path) -> CertificateAuthority:
        """Read a CA; raises `OSError` where there is none, and `ValueError` where its files are damaged."""
        certificate = x509.load_pem_x509_certificate((folder / CA_FILE).read_bytes())
        key = serialization.load_pem_private_key((folder / _CA_KEY_FILE).read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{folder / _CA_KEY_FILE} is no elliptic key")
        return cls(folder, certificate, key)

    def issue(self, folder: Path, name: str, roles: Sequence[MeshRole], hosts: Iterable[str], days: int) -> Certified:
        """Write a new key and its certificate to a folder, and the CA's; `roles` are empty for a server. Raises `OSError`."""
        private_folder(folder)
        key = ec.generate_private_key(ec.SECP256R1())
        given = tuple(dict.fromkeys(hosts))
        names: list[x509.GeneralName] = [_host_name(host) for host in given]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        if roles:
            names += [x509.DNSName(MEMBER_NAME), *(x509.DNSName(role_name(role)) for role in roles)]
            names += [x509.UniformResourceIdentifier(role_uri(role)) for role in roles]
            usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        certificate = (
            _builder(subject, self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write_key(folder / KEY_FILE, key)
        private_file(folder / CERTIFICATE_FILE, _pem(certificate))
        private_file(folder / CA_FILE, _pem(self._certificate))
        return read_certificate(folder)


def read_certificate(folder: Path) -> Certified:
    """Read a folder's certificate; raises `OSError` where there is none, and `ValueError` where it is damaged."""
    certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE_FILE).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    roles = roles_in(names.get_values_for_type(x509.UniformResourceIdentifier))
    ours = {MEMBER_NAME, *map(role_name, MeshRole)}
    hosts = [name for name in names.get_values_for_type(x509.DNSName) if name not in ours]
    hosts += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    [name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Certified(str(name.value), tuple(sorted(roles)), tuple(hosts), certificate.not_valid_after_utc)


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter; raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, in place of an older one; raises `OSError`."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    private_file(
        path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
