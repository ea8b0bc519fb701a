"""What `spotwise up` was asked for, checked, with the model already resolved to a folder."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from spotwise.cli.errors import CommandError


class MeshOptions(BaseModel):
    """One mesh to start.

    Attributes:
        name: of the mesh on this machine.
        prompt_workers, token_workers, mixed_workers: processes of each pool; each phase needs one worker that can do it.
        model_folder: the resolved model.
        model_name: what clients ask for.
        dtype, device: as the engine takes them; `auto` lets it choose.
        host, port: where the gateway listens.
        nats_url, redis_url: running servers to use; None starts embedded ones.
        kv_cache_bytes: KV memory of each worker; None takes a share of what is available.
        threads: compute threads of each worker; None shares the cores.
        start_timeout_s: how long all services together may take to become healthy.
        service_modules: what precedes a service's name in `python -m`; tests put services of their own there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    prompt_workers: int = 1
    token_workers: int = 1
    mixed_workers: int = 0
    model_folder: Path
    model_name: str
    dtype: str = "auto"
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8000
    nats_url: str | None = None
    redis_url: str | None = None
    kv_cache_bytes: PositiveInt | None = None
    threads: PositiveInt | None = None
    start_timeout_s: PositiveFloat = 180.0
    service_modules: str = "spotwise."

    @model_validator(mode="after")
    def _both_phases_have_a_worker(self) -> Self:
        if self.mixed_workers == 0 and not (self.prompt_workers and self.token_workers):
            raise ValueError(
                "a mesh needs a prompt worker and a token worker, or a mixed worker: --prompt-workers 1 --token-workers 1"
            )
        return self

    @property
    def num_workers(self) -> int:
        """Worker processes of all pools."""
        return self.prompt_workers + self.token_workers + self.mixed_workers

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the gateway."""
        return f"http://{_reachable_host(self.host)}:{self.port}"


def parse_size(text: str, option: str) -> int:
    """Bytes of a size such as `4GiB`, `512MiB` or `2GB` (1 GiB = 1024^3, 1 GB = 1000^3).

    Raises:
        CommandError: it is no size, or not above zero; names `option`.
    """
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size <= 0:
        raise CommandError(f"{option} {text!r} is no size; write for instance 4GiB, 512MiB or 2GB")
    return size


def _reachable_host(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"
