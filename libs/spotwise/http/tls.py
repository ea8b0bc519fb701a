"""TLS of the API: its certificate, read again when the files change, so that a renewed one needs no restart."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from spotwise.mesh.security.secrets import require_private

#: How often the files are looked at.
CERTIFICATE_LOOK_S = 5.0

_log = structlog.get_logger("spotwise.gateway")


class ServerTls:
    """The server's side of TLS 1.2 and later.

    Args:
        certificate: chain, PEM.
        key: private key, PEM, without a pass phrase; only its owner may read it.
        client_ca: authorities of which each client must show a certificate; None: none need.

    Attributes:
        context: what the server listens with; new connections get the newest certificate.

    Raises:
        ValueError: a file cannot be read, is not private, or does not fit the other.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = (certificate, key)
        self._seen = self._versions()
        self.context = _server_context()
        self._load(self.context)
        if client_ca is not None:
            try:
                self.context.load_verify_locations(client_ca)
            except OSError as error:  # ssl.SSLError, too
                raise ValueError(f"{client_ca} holds no certificates (PEM): {error}") from error
            self.context.verify_mode = ssl.CERT_REQUIRED

    async def follow_files(self) -> None:
        """Take in changed files, once both fit each other; until then connections get the last certificate that did."""
        try:
            seen = self._versions()
            if seen == self._seen:
                return
            # A context that has loaded one half of a wrong pair would serve no client.
            self._load(_server_context())
            self._load(self.context)
        except ValueError as error:
            _log.error("certificate_unreadable", error=str(error))
            return
        self._seen = seen
        _log.info("certificate_reloaded", file=str(self._files[0]))

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        require_private(key)
        try:
            # Without a pass phrase: the library would ask for one on the terminal.
            context.load_cert_chain(certificate, key, password=_no_pass_phrase)
        except OSError as error:  # ssl.SSLError, too
            raise ValueError(f"{certificate} and {key} are no certificate and its key (PEM): {error}") from error

    def _versions(self) -> tuple[tuple[int, int], ...]:
        try:
            return tuple((status.st_mtime_ns, status.st_ino) for status in (file.stat() for file in self._files))
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_pass_phrase() -> str:
    return ""
