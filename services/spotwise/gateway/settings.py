"""Settings of the gateway, beside those of every service."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from spotwise.core.gateway.role import RecoveryLimits
from spotwise.gateway.auth import ApiKey, parse_api_keys
from spotwise.mesh.settings import ModelServiceSettings


class GatewaySettings(ModelServiceSettings):
    """Where the API listens, for whom, and how hard it tries."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)

    host: str = Field("127.0.0.1", description="address of the API")
    port: int = Field(8000, ge=0, le=65535, description="port of the API")
    api_keys: str = Field(
        "", repr=False, description="comma-separated bearer keys, each KEY or NAME:KEY; empty lets everyone in"
    )
    max_body_bytes: int = Field(8 << 20, ge=1024)
    keep_alive_s: int = Field(
        75,
        ge=1,
        description="how long an idle connection stays open; longer than clients keep theirs (5 s in many), "
        "or a request meets the end of its connection",
    )
    default_max_tokens: int | None = Field(None, ge=1, description="of a chat that names none; else the context's rest")
    submit_timeout_s: float = Field(5.0, gt=0, description="a scheduler that does not answer by then is not there")
    store_timeout_s: float = Field(
        5.0, gt=0, description="a store that has not taken a request's record by then is away; the client gets 503"
    )
    recovery_s: float = Field(
        30.0, ge=0, description="how long a lost attempt is tried again before the client hears of it"
    )
    stall_s: float = Field(120.0, gt=0, description="an attempt that brings nothing for so long counts as lost")

    @field_validator("api_keys")
    @classmethod
    def _are_keys(cls, api_keys: str) -> str:
        parse_api_keys(api_keys)
        return api_keys

    @property
    def bearer_keys(self) -> tuple[ApiKey, ...]:
        """The keys that let a client in."""
        return parse_api_keys(self.api_keys)

    @property
    def recovery(self) -> RecoveryLimits:
        """The role's limits."""
        return RecoveryLimits(recovery_s=self.recovery_s, stall_s=self.stall_s, member_timeout_s=self.member_timeout_s)
