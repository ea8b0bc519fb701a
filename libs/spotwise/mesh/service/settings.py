"""Settings that every service has; each service's own `settings.py` adds to them. All are environment variables with the prefix
`SPOTWISE_`, e.g. `SPOTWISE_NATS_URL`.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from spotwise.core.access.store_budget import DEFAULT_STORE_BYTES
from spotwise.core.messages.numerics import Crossing
from spotwise.core.requests.names import named_folders
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.security.plane_tls import PlaneTls
from spotwise.mesh.security.secrets import MeshSecret, read_mesh_secret

_ALL_INTERFACES = ("0.0.0.0", "::")


def _host_and_process() -> str:
    return f"{re.sub('[^A-Za-z0-9_-]', '-', socket.gethostname())}-{os.getpid()}"


class ServiceSettings(BaseSettings):
    """Settings for joining the mesh."""

    model_config = SettingsConfigDict(env_prefix="SPOTWISE_", extra="ignore")

    service_id: str = Field(
        default_factory=_host_and_process,
        min_length=1,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="unique id of this member; default: host and process",
    )
    nats_url: str = "nats://127.0.0.1:4222"
    redis_url: str = "redis://127.0.0.1:6379/0"
    store_bytes: int = Field(
        DEFAULT_STORE_BYTES,
        ge=1 << 20,
        description="bytes of the store's budget, of all gateways together; the same for all members, well below Redis' "
        "maxmemory",
    )
    bind_host: str = Field(
        "127.0.0.1",
        description="address on which health and control listen; the KV listener takes all interfaces, or loopback where "
        "peers use a loopback address",
    )
    advertise_host: str | None = Field(
        None,
        description="address that peers use; default: bind_host, or the host's name where that is 0.0.0.0 or ::",
    )
    mesh_secret_file: Path | None = Field(
        None,
        description="file with the secret that all processes of the mesh share, 32 bytes or more, mode 0600; unset: any "
        "process may take part",
    )
    tls_dir: Path | None = Field(
        None,
        description="folder with ca.crt, tls.crt and tls.key, for gRPC and for the schemes tls:// and rediss://; unset: "
        "gRPC is unencrypted",
    )
    grpc_port: int = Field(0, ge=0, le=65535, description="port of health and control; 0 takes a free one")
    heartbeat_s: float = Field(0.25, gt=0)
    member_timeout_s: float = Field(
        2.0, gt=0, description="seconds without a heartbeat after which a member counts as lost"
    )
    stuck_after_s: float = Field(
        30.0,
        ge=0,
        description="seconds without progress of the event loop after which the process exits with status 70; four times as "
        "many for a message or periodic work; 0: never",
    )
    pulse_file: Path | None = Field(None, description="file that the event loop touches twice a second; unset: none")
    crossing: Crossing = Field(
        Crossing.COUNT,
        description="what happens to a request whose numerics class has no room: count (workers of another class go on with "
        "it, and that is counted) or refuse (it waits for its class); the same for schedulers, workers and planners",
    )
    journal: Path | None = Field(None, description="folder for journals of events and decisions; unset: none")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    @field_validator("mesh_secret_file")
    @classmethod
    def _is_secret(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                read_mesh_secret(path)
            except MeshError as error:
                raise ValueError(str(error)) from error
        return path

    @field_validator("tls_dir")
    @classmethod
    def _has_certificates(cls, folder: Path | None) -> Path | None:
        if folder is not None:
            try:
                PlaneTls(folder).check()
            except MeshError as error:
                raise ValueError(str(error)) from error
        return folder

    @property
    def plane_tls(self) -> PlaneTls | None:
        """The certificates; `None` without."""
        return None if self.tls_dir is None else PlaneTls(self.tls_dir)

    def mesh_secret(self) -> MeshSecret | None:
        """Read the mesh's secret; `None` of a mesh without one. Raises `MeshError` where it can no longer be read."""
        return None if self.mesh_secret_file is None else read_mesh_secret(self.mesh_secret_file)

    @property
    def member_metrics(self) -> tuple[int | None, str]:
        """The port of what every member counts (`None`: another endpoint of the service shows it), and its setting's name."""
        return None, ""

    @property
    def peer_host(self) -> str:
        """The address under which peers reach this process."""
        if self.advertise_host:
            return self.advertise_host
        return socket.gethostname() if self.bind_host in _ALL_INTERFACES else self.bind_host


def is_model_folder(folder: Path) -> Path:
    """Return a model folder; raises `ValueError` where it is none."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json")
    return folder


class ModelServiceSettings(ServiceSettings):
    """Settings of a service that depends on the model."""

    model_dir: Path = Field(description="Hugging Face folder of the model")
    model_name: str = Field("", description="model name in requests; default: the folder's name")
    adapters: str = Field(
        "",
        description="comma-separated LoRA adapters, each NAME=FOLDER; the same for gateways and workers",
    )

    @field_validator("model_dir")
    @classmethod
    def _is_model(cls, model_dir: Path) -> Path:
        return is_model_folder(model_dir)

    @model_validator(mode="after")
    def _adapters_have_names_of_their_own(self) -> Self:
        if self.adapters and self.served_name in dict(self.adapter_folders):
            raise ValueError(f"SPOTWISE_ADAPTERS: the model itself is called {self.served_name!r}; rename the adapter")
        return self

    @property
    def adapter_folders(self) -> tuple[tuple[str, Path], ...]:
        """Name and folder of each adapter; raises `ValueError` where the setting is malformed."""
        try:
            return tuple((name, Path(folder)) for name, folder in named_folders(self.adapters))
        except ValueError as error:
            raise ValueError(f"SPOTWISE_ADAPTERS: {error}") from error

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        return self.model_name or self.model_dir.name
