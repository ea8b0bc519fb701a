"""Settings of the gateway, beside those of every service."""

from __future__ import annotations

from pydantic import Field

from spotwise.core.gateway.role import RecoveryLimits
from spotwise.mesh.settings import ModelServiceSettings


class GatewaySettings(ModelServiceSettings):
    """Where the API listens, for whom, and how hard it tries."""

    host: str = Field("127.0.0.1", description="address of the API")
    port: int = Field(8000, ge=0, le=65535, description="port of the API")
    api_keys: str = Field("", description="comma-separated bearer keys; empty lets everyone in")
    max_body_bytes: int = Field(8 << 20, ge=1024)
    default_max_tokens: int | None = Field(None, ge=1, description="of a chat that names none; else the context's rest")
    submit_timeout_s: float = Field(5.0, gt=0, description="a scheduler that does not answer by then is not there")
    recovery_s: float = Field(
        30.0, ge=0, description="how long a lost attempt is tried again before the client hears of it"
    )
    stall_s: float = Field(120.0, gt=0, description="an attempt that brings nothing for so long counts as lost")

    @property
    def bearer_keys(self) -> frozenset[str]:
        """The keys that let a client in."""
        return frozenset(key.strip() for key in self.api_keys.split(",") if key.strip())

    @property
    def recovery(self) -> RecoveryLimits:
        """The role's limits."""
        return RecoveryLimits(recovery_s=self.recovery_s, stall_s=self.stall_s, member_timeout_s=self.member_timeout_s)
