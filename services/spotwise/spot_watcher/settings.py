"""Settings of the spot watcher, in addition to every service's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from spotwise.cloud.traced_instances import TraceEffect
from spotwise.core.spot.role import WatchPolicy
from spotwise.files.fleet_file import PROVIDERS
from spotwise.files.user_folders import NoHomeError, home_folder
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.settings import ServiceSettings

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class SpotWatcherSettings(ServiceSettings):
    """The machine's cloud, and how its interruptions are detected."""

    cloud: Literal["none", "auto", "aws", "gcp", "azure", "kubernetes"] = Field(
        "none",
        description="cloud whose metadata announces this machine's end; auto detects it; none queries no metadata",
    )
    watched_workers: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*)?$",
        description="comma-separated ids of the workers and devices on this machine; default: those with this host's name",
    )
    metadata_url: str = Field(
        "http://169.254.169.254", pattern=r"^https?://", description="metadata service of aws, gcp and azure"
    )
    cloud_poll_s: float | None = Field(
        None,
        gt=0,
        le=5,
        description="seconds between two queries; default: 2 for aws and kubernetes, 1 for azure and gcp",
    )
    cloud_backoff_s: float = Field(
        10.0, gt=0, le=30, description="maximum seconds between two queries of unreadable metadata"
    )
    cloud_timeout_s: float = Field(
        2.0, gt=0, le=30, description="maximum seconds of an answer; 30 s more for one that waits for news"
    )
    azure_vm_name: str | None = Field(
        None,
        min_length=1,
        description="name of this machine in azure's events; default: from its metadata",
    )
    azure_acknowledge: bool = Field(
        True,
        description="acknowledge the event once the last worker has left; azure may then take the machine",
    )
    node_name: str = Field(
        "", validate_default=True, description="node of kubernetes whose taints count; required with kubernetes"
    )
    node_grace_s: float = Field(30.0, gt=0, description="seconds from the taint of a kubernetes node to its end")
    kubernetes_url: str = Field(
        "",
        pattern=r"^(https?://.*)?$",
        validate_default=True,
        description="API server of kubernetes; default: the one in a pod's environment",
    )
    kubernetes_token_file: Path = Field(_SERVICE_ACCOUNT / "token", description="token of the service account")
    kubernetes_ca_file: Path = Field(
        _SERVICE_ACCOUNT / "ca.crt", description="certificates of the API server's authority"
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the watcher's metrics; 0 takes a free one; unset: none"
    )

    fleet_file: Path | None = Field(
        None, description="fleet file: which machines the mesh may buy, and for how much; unset: none"
    )
    fleet_mesh: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="name of the mesh, by which a provider knows its instances",
    )
    fleet_folder: Path | None = Field(
        None, description="state and logs of local instances; default: ~/.local/state/spotwise/fleet"
    )
    fleet_supervisor: str = Field(
        "",
        pattern=r"^([0-9]+:[0-9]+)?$",
        description="process with which local instances end, PID:START with its start in clock ticks (field 22 of "
        "/proc/PID/stat); unset: none",
    )
    fleet_list_s: float | None = Field(
        None,
        gt=0,
        le=300,
        description="seconds between two listings of the instances; default: "
        + ", ".join(f"{terms.list_s:g} for {provider}" for provider, terms in PROVIDERS.items()),
    )
    fleet_command: str = Field(
        "",
        description="JSON list: program and arguments of local instances whose type has none; default: devices of groups",
    )
    fleet_imports: str = Field(
        "",
        description="modules that a local instance without a command of its own imports, of one device, separated by "
        "commas, the one that it runs first: instances are forked from a process that has imported them; unset: executed",
    )
    fleet_nats_url: str | None = Field(
        None, description="broker with the user of local instances; default: the watcher's SPOTWISE_NATS_URL"
    )
    fleet_redis_url: str | None = Field(
        None, description="store with the user of local instances; default: the watcher's SPOTWISE_REDIS_URL"
    )
    fleet_trace: Path | None = Field(
        None, description="trace of spot instances by which local ones come and go; unset: none is taken away"
    )
    fleet_compress: float = Field(1.0, gt=0, description="seconds of the trace in one real second")
    fleet_grace_s: float | None = Field(
        None, ge=0, description="seconds of notice before the trace takes an instance; default: the fleet file's"
    )

    fleet_reaction: TraceEffect = Field(
        TraceEffect.NOTICE,
        description="for comparisons, what the trace's events do: notice, no_notice (instances end at once) or restart (all "
        "end)",
    )

    @field_validator("fleet_command")
    @classmethod
    def _is_a_command(cls, fleet_command: str) -> str:
        if fleet_command:
            try:
                words = json.loads(fleet_command)
            except ValueError as error:
                raise ValueError(f"no JSON: {error}") from error
            if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
                raise ValueError('write a list of words, ["program", "argument"]')
        return fleet_command

    @property
    def state_folder(self) -> Path:
        """Where the state of local instances is; raises `MeshError` where it is the user's home, and there is none."""
        try:
            return self.fleet_folder or home_folder() / ".local" / "state" / "spotwise" / "fleet"
        except NoHomeError as error:
            raise MeshError(f"{error}; set SPOTWISE_FLEET_FOLDER to an absolute path") from error

    @field_validator("node_name")
    @classmethod
    def _names_a_node(cls, node_name: str, info: ValidationInfo) -> str:
        if info.data.get("cloud") == "kubernetes" and not node_name:
            raise ValueError("name the node (in a pod: fieldRef spec.nodeName)")
        return node_name

    @field_validator("kubernetes_url")
    @classmethod
    def _names_a_server(cls, kubernetes_url: str, info: ValidationInfo) -> str:
        if info.data.get("cloud") == "kubernetes" and not (kubernetes_url or _server_of_this_pod()):
            raise ValueError("name the API server: this process is in no pod whose environment does")
        return kubernetes_url

    @property
    def api_server(self) -> str | None:
        """URL of the Kubernetes API server; `None` where none is configured."""
        return self.kubernetes_url or _server_of_this_pod()

    def policy(self, host: str) -> WatchPolicy:
        """Return how the role watches, on a machine of this name."""
        return WatchPolicy(
            host=host,
            workers=tuple(dict.fromkeys(self.watched_workers.split(","))) if self.watched_workers else (),
            backoff_s=self.cloud_backoff_s,
            member_timeout_s=self.member_timeout_s,
            acknowledge=self.azure_acknowledge,
        )


def _server_of_this_pod() -> str | None:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
