"""Settings of the gateway, beside those of every service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.membership.confirmation import CONFIRM_EVERY_S
from spotwise.core.messages.members import Member
from spotwise.core.requests.names import model_aliases
from spotwise.core.requests.sampling import Pooling
from spotwise.gateway.access.auth import ApiKey, parse_api_keys
from spotwise.gateway.mesh.attempt_orders import SubmissionTerms
from spotwise.gateway.resume.ports import KeepingLimits
from spotwise.gateway.schema.shared import LEAST_PRIORITY
from spotwise.http.limits import HttpLimits, within_open_files
from spotwise.mesh.service.settings import ModelServiceSettings
from spotwise.text.control_tokens import ControlTokensInText
from spotwise.text.message_forms import AUTO, TOOL_PARSERS

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s,]+")


def _listed(values: str) -> tuple[str, ...]:
    return tuple(value for value in map(str.strip, values.split(",")) if value)


#: Five confirmations by an attempt's holders.
UNHELD_S = 5 * CONFIRM_EVERY_S


class GatewaySettings(ModelServiceSettings):
    """Where the API listens, for whom, and how hard it tries."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)

    host: str = Field("127.0.0.1", description="address of the API")
    port: int = Field(8000, ge=0, le=65535, description="port of the API")
    api_keys: str = Field("", repr=False, description="comma-separated bearer keys, each KEY or NAME:KEY")
    api_keys_file: Path | None = Field(
        None,
        description="file of further keys, lines of spotwise keys hash, readable by its owner only; with it, even empty, "
        "every client needs a key",
    )
    allow_anonymous: bool | None = Field(
        None,
        description="without any key: true admits every client, also from other machines; false admits none; unset: only "
        "clients of this machine",
    )
    metrics_need_key: bool = Field(False, description="/metrics requires a key of the scope metrics")
    tls_cert: Path | None = Field(None, description="certificate chain (PEM) of the API, which then speaks TLS only")
    tls_key: Path | None = Field(None, description="private key (PEM) of the certificate; readable by its owner only")
    tls_client_ca: Path | None = Field(
        None, description="certificates (PEM); each client must show one of them, or one that they signed"
    )
    lame_duck_s: float = Field(
        0.0,
        ge=0,
        description="seconds that a gateway still accepts requests after its first stop signal, while /readyz is 503",
    )
    max_body_bytes: int = Field(8 << 20, ge=1024)
    keep_alive_s: int = Field(
        75,
        ge=1,
        description="seconds that an idle connection stays open; set it above that of the clients (often 5 s), or a request "
        "may meet a closing connection",
    )
    max_held_body_bytes: int = Field(
        128 << 20,
        ge=1024,
        description="maximum bytes of large request bodies that are read or wait at the same time, half of it for one key; "
        "beyond it 503",
    )
    max_connections: int = Field(
        4096,
        ge=1,
        description="maximum connections of clients; a further one replaces an idle one, or receives 503",
    )
    max_header_bytes: int = Field(64 << 10, ge=1024, description="maximum bytes of a request's headers")
    header_timeout_s: float = Field(10.0, gt=0, description="maximum seconds for receiving a request's headers")
    body_timeout_s: float = Field(60.0, gt=0, description="maximum seconds for receiving a request's body")
    write_timeout_s: float = Field(
        60.0, gt=0, description="seconds after which a client that reads next to nothing is disconnected"
    )
    max_answer_logprobs: int = Field(
        1_000_000,
        ge=1000,
        description="maximum log-probabilities in one answer, alternatives included; a request for more is refused",
    )
    stream_keep_alive_s: float = Field(
        15.0,
        ge=0,
        description="seconds without an event after which a stream gets a comment; 0: none",
    )
    answer_grace_s: int = Field(
        2,
        ge=0,
        description="seconds that running answers have to end at SIGTERM or SIGINT; a second signal ends them",
    )
    max_unread_tokens: int = Field(
        512,
        ge=1,
        description="tokens of a sequence that may wait for a slow client; beyond them it is paused, without KV, until they "
        "are read",
    )
    cors_origins: str = Field(
        "",
        description="comma-separated origins (https://chat.example) whose pages may use the API; * for all; empty for none",
    )
    default_max_tokens: int | None = Field(
        None, ge=1, description="max_tokens of a chat request without one; unset: the rest of the context"
    )
    generation_config: Literal["none", "model"] = Field(
        "none",
        description="sampling defaults: none (OpenAI's), or model (temperature, top_p, top_k, min_p and "
        "repetition_penalty of the model's generation_config.json)",
    )
    model_aliases: str = Field(
        "",
        description="comma-separated further names of the model and its adapters, each NAME=MODEL; *=MODEL for any "
        "unknown name",
    )
    tool_parser: str = Field(
        AUTO,
        description="how tool calls are found in the model's text: auto (as its tokenizer or chat template says), "
        "none, " + ", ".join(TOOL_PARSERS[2:]) + ", or a file with a response template of transformers",
    )
    reasoning_parser: str = Field(
        AUTO,
        description="form of reasoning in the model's text: auto (of its tokenizer or chat template), none, or think "
        "(between <think> and </think>)",
    )
    control_tokens_in_text: ControlTokensInText = Field(
        "text",
        description="control tokens in the messages and tools of a chat, such as the end of a turn, are read as text, or "
        "with allow as control tokens",
    )
    embedding_pooling: Pooling | None = Field(
        None,
        description="turns embeddings on, or changes them: last (hidden state of the last token) or mean (of all tokens); "
        "unset: as the model's folder says",
    )
    embedding_matryoshka: bool = Field(
        False,
        description="embeddings may be cut to any number of dimensions, whatever the model's config.json says",
    )
    least_priority: int = Field(
        LEAST_PRIORITY,
        ge=LEAST_PRIORITY,
        le=0,
        description="lowest priority, which is scheduled earliest, that clients may give; a lower one gets a 400",
    )
    prefix_sharing: Literal["tenant", "mesh"] = Field(
        "tenant",
        description="which prompts share the KV of equal prefixes: tenant (those of keys of one name) or mesh (all)",
    )
    submit_timeout_s: float = Field(
        5.0,
        gt=0,
        description="maximum seconds that a new request waits for a scheduler; then the client receives 503",
    )
    store_timeout_s: float = Field(
        5.0,
        gt=0,
        description="maximum seconds that the store may take for a record; then the client receives 503",
    )
    resume_s: float = Field(30.0, ge=0, description="seconds that a resumable request continues without its client")
    answer_kept_s: float = Field(
        600.0, ge=1, description="seconds that the answer of a resumable request is kept after its end"
    )
    responses_kept_s: float = Field(
        86_400.0,
        ge=0,
        description="seconds that a stored response is kept, with its conversation; 0: none is stored",
    )
    recovery_s: float = Field(
        30.0,
        ge=0,
        description="seconds that a lost attempt is retried before the client receives an error, without the time in which "
        "a scheduler or worker holds the next one",
    )
    stall_s: float = Field(
        600.0,
        gt=0,
        description="seconds without tokens after which an attempt counts as lost; set it above the wait in a full mesh",
    )

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, cors_origins: str) -> str:
        for origin in _listed(cors_origins):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError("an origin is scheme, host and perhaps port, e.g. https://chat.example:8443, or *")
        return cors_origins

    @field_validator("model_aliases")
    @classmethod
    def _are_aliases(cls, listed: str) -> str:
        model_aliases(listed)
        return listed

    @field_validator("api_keys")
    @classmethod
    def _are_keys(cls, api_keys: str) -> str:
        parse_api_keys(api_keys)
        return api_keys

    @model_validator(mode="after")
    def _certificate_has_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("set both SPOTWISE_TLS_CERT and SPOTWISE_TLS_KEY, or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("SPOTWISE_TLS_CLIENT_CA needs SPOTWISE_TLS_CERT and SPOTWISE_TLS_KEY")
        return self

    @property
    def bearer_keys(self) -> tuple[ApiKey, ...]:
        """The keys that let a client in."""
        return parse_api_keys(self.api_keys)

    @property
    def http_limits(self) -> HttpLimits:
        """What a connection may take."""
        return HttpLimits(
            max_connections=within_open_files(self.max_connections),
            max_header_bytes=self.max_header_bytes,
            header_timeout_s=self.header_timeout_s,
            body_timeout_s=self.body_timeout_s,
            write_timeout_s=self.write_timeout_s,
        )

    def keeping(self, member: Member) -> KeepingLimits:
        """Return how this process keeps requests."""
        process = f"{member.id}/{member.incarnation}"
        return KeepingLimits(process, self.resume_s, self.answer_kept_s, self.store_timeout_s)

    @property
    def submission(self) -> SubmissionTerms:
        """How this process submits sequences."""
        return SubmissionTerms(
            self.served_name, self.recovery, self.store_timeout_s, self.submit_timeout_s, self.max_unread_tokens
        )

    @property
    def browser_origins(self) -> tuple[str, ...]:
        """The origins whose pages may use the API."""
        return _listed(self.cors_origins)

    @property
    def recovery(self) -> RecoveryLimits:
        """The role's limits."""
        return RecoveryLimits(
            recovery_s=self.recovery_s,
            stall_s=self.stall_s,
            member_timeout_s=self.member_timeout_s,
            submit_s=self.submit_timeout_s,
            unheld_s=UNHELD_S,
        )
