"""A process's settings for the security of its links: its secret, which links it encrypts; and the error of a refused link."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotwise.mesh.ports.ports import KvTransferError, MeshError
from spotwise.mesh.process.addresses import is_local, is_loopback
from spotwise.mesh.security.secrets import KEY_BYTES, MeshSecret
from spotwise.wire.link_hello import HelloRefusal, SealWish

NO_SECRET_TO_ENCRYPT_BY = "SPOTWISE_LINK_ENCRYPTION=on needs the secret of the mesh: set SPOTWISE_MESH_SECRET_FILE"

_EXPLAINED = {
    HelloRefusal.WRONG_SECRET: "the ends have different mesh secrets, or one has none; give both the same "
    "SPOTWISE_MESH_SECRET_FILE",
    HelloRefusal.ENCRYPTION_DIFFERS: "one end must encrypt this link and the other must not; give both the same "
    "SPOTWISE_LINK_ENCRYPTION",
    HelloRefusal.TOO_MANY_LINKS: "the peer has too many links of this process",
    HelloRefusal.TOO_MANY_WAITING: "too many connections wait at the peer for their hello",
    HelloRefusal.NO_SUCH_GROUP: "the member is not in this group, or the group's secret differs",
}


class LinkEncryption(StrEnum):
    """Which links are encrypted: all, none, or those between hosts where the mesh has a secret."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class LinkRefusedError(KvTransferError):
    """An end did not take a link; `refusal` says why."""

    def __init__(self, refusal: HelloRefusal, detail: str = "") -> None:
        super().__init__(_EXPLAINED.get(refusal) or detail or refusal.name.lower().replace("_", " "))
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """A process's secret and choice of encryption; raises `MeshError` for encryption without a secret."""

    secret: MeshSecret | None = None
    encryption: LinkEncryption = LinkEncryption.AUTO

    def __post_init__(self) -> None:
        if self.encryption is LinkEncryption.ON and self.secret is None:
            raise MeshError(NO_SECRET_TO_ENCRYPT_BY)

    def wish(self, peer_host: str | None) -> SealWish:
        """Return this end's wish for a link with a host; `None`: an unknown one."""
        if self.encryption is LinkEncryption.ON:
            return SealWish.ALWAYS
        if self.encryption is LinkEncryption.OFF:
            return SealWish.NEVER
        return SealWish.ALWAYS if self.secret is not None and not is_local(peer_host) else SealWish.EITHER

    def encrypts_from(self, own_host: str) -> bool:
        """Whether links of a process at this address may have to be encrypted."""
        return self.encryption is LinkEncryption.ON or (
            self.encryption is LinkEncryption.AUTO and self.secret is not None and not is_loopback(own_host)
        )

    @property
    def key(self) -> bytes:
        """The key of links; zeros without a secret."""
        return bytes(KEY_BYTES) if self.secret is None else self.secret.key("links")


def must_seal(mine: SealWish, theirs: SealWish) -> bool:
    """Whether ends with these wishes encrypt; raises `LinkRefusedError` where one must and the other must not."""
    if {mine, theirs} == {SealWish.ALWAYS, SealWish.NEVER}:
        raise LinkRefusedError(HelloRefusal.ENCRYPTION_DIFFERS)
    return SealWish.ALWAYS in (mine, theirs)
