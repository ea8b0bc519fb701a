"""The options of `spotwise up` that a mesh keeps as they are given, each declared once, as a field with its `typer.Option`."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError, field_validator

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.option_groups import OptionGroup
from spotwise.worker.engine_choices import DEVICE, DTYPES, WEIGHTS


class EngineKind(StrEnum):
    """The engine of the workers: real or simulated."""

    TORCH = "torch"
    SIMULATED = "simulated"


class SimulatedKv(StrEnum):
    """How simulated workers hand KV over."""

    TIMED = "timed"
    REAL = "real"


def parse_size(text: str, option: str) -> int:
    """Bytes of a size like `4GiB` or `2GB` (1 GiB = 1024^3, 1 GB = 1000^3), not 0; raises `OptionError`, naming `option`."""
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size <= 0:
        raise OptionError(f"{option} {text!r} is no size; write for instance 4GiB, 512MiB or 2GB")
    return size


def size_option(flag: str, **shown: Any) -> Any:
    """Return an option whose value is a size like `4GiB`, in bytes; `shown`: arguments of `typer.Option`, like `help`."""

    def size(text: str) -> int:
        return parse_size(text, flag)

    return typer.Option(flag, parser=size, metavar="<str>", **shown)


def _policy_option() -> Any:
    from spotwise.cli.launch.worker_options import (
        policy_option,  # the policies, which `up` alone needs, take long to import
    )

    return policy_option()


class PoolSizes(OptionGroup):
    """How many workers each pool has; each phase needs one that can do it."""

    prompt_workers: Annotated[
        int,
        typer.Option(
            min=0, show_default=False, help="Workers of the prompt phase (prefill); 1, or none beside --mixed-workers."
        ),
    ] = 1
    token_workers: Annotated[
        int,
        typer.Option(
            min=0, show_default=False, help="Workers of the token phase (decode); 1, or none beside --mixed-workers."
        ),
    ] = 1
    mixed_workers: Annotated[
        int, typer.Option(min=0, help="Workers of both phases; named alone, there are no others.")
    ] = 0


class FleetChoice(OptionGroup):
    """The options about machines that are bought; of what is `None`, provider, trace or planner decide."""

    file: Annotated[
        Path | None,
        typer.Option(
            "--fleet",
            help="Fleet file (TOML): machines are bought and given back for the load, instead of all the above.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(help="Spot trace by which instances of this computer come and go; --fleet may be left out."),
    ] = None
    compress: Annotated[
        float,
        typer.Option(min=1e-3, show_default=False, help="Seconds of the trace in one of the mesh's; 1 by default."),
    ] = 1.0
    grace_s: Annotated[
        float | None,
        typer.Option("--grace", min=0, help="Seconds from a notice to the loss, where the trace does not say."),
    ] = None
    budget_per_h: Annotated[
        float | None,
        typer.Option("--budget", min=0, help="Dollars an hour that a fleet may cost; without a limit by default."),
    ] = None
    on_demand_floor: Annotated[
        int,
        typer.Option(
            min=0, show_default=False, help="On-demand instances of a fleet that serve, at least; 0 by default."
        ),
    ] = 0
    spares: Annotated[
        int | None, typer.Option(min=0, help="Instances of a fleet held beside those that serve; 1 by default.")
    ] = None
    latency_target_s: Annotated[
        float | None,
        typer.Option(
            "--latency-target",
            min=0,
            help="Seconds of a request that are fast enough for a fleet; 0: as few as can be; by default twice those of a "
            "request without load.",
        ),
    ] = None

    @property
    def is_bought(self) -> bool:
        """Whether devices are bought, or come and go as in a trace."""
        return self.file is not None or self.trace is not None


class LaunchOptions(OptionGroup):
    """The options that a mesh keeps as they are given."""

    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    weights: Annotated[
        str,
        typer.Option(help="keep: those of a GGUF file stay quantised in memory; widen: they take the dtype's bytes."),
    ] = "keep"
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto"
    host: Annotated[str, typer.Option(help="Address the gateway listens on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0 takes a free one.")] = 8000
    allow_anonymous: Annotated[
        bool,
        typer.Option("--allow-anonymous", help="With another --host: clients need no key while there is none."),
    ] = False
    api_keys_file: Annotated[
        Path | None,
        typer.Option(envvar="SPOTWISE_API_KEYS_FILE", help="File of API keys, as `spotwise keys hash` prints them."),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="SPOTWISE_TLS_CERT", help="Certificate chain (PEM) of the gateway, which then speaks TLS."),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(envvar="SPOTWISE_TLS_KEY", help="Its private key (PEM), private to its owner.")
    ] = None
    gateways: Annotated[
        int, typer.Option(min=1, help="Gateways, on --port and the ports that follow it; any serves any request.")
    ] = 1
    schedulers: Annotated[
        int, typer.Option(min=1, help="Cluster schedulers: one acts, the others stand by and take over.")
    ] = 1
    planners: Annotated[
        int, typer.Option(min=1, help="Migration planners: one acts, the others stand by and take over.")
    ] = 1
    nats_url: Annotated[str | None, typer.Option(help="A running NATS server, instead of an embedded one.")] = None
    redis_url: Annotated[str | None, typer.Option(help="A running Redis server, instead of an embedded one.")] = None
    keep_store: Annotated[
        bool,
        typer.Option(
            "--keep-store",
            help="The embedded Redis writes an append-only file while the mesh runs, and its restart forgets nothing.",
        ),
    ] = False
    kv_cache_bytes: Annotated[
        int | None, size_option("--kv-cache", help="KV memory of each worker, for instance 4GiB.")
    ] = None
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads of each worker.")] = None
    engine: Annotated[EngineKind, typer.Option(help="simulated: only take the time; hundreds fit on one machine.")] = (
        EngineKind.TORCH
    )
    policy: Annotated[str | None, _policy_option] = None
    kv_host_bytes: Annotated[
        int | None, size_option("--kv-host", help="Host memory of each worker for swapped KV, for instance 16GiB.")
    ] = None
    profile: Annotated[
        Path | None, typer.Option(help="What a worker costs, for mlfq or simulated ones: a file of `spotwise profile`.")
    ] = None
    speed: Annotated[
        float,
        typer.Option(min=1e-6, show_default=False, help="Speed of a simulated worker over that of its profile."),
    ] = 1.0
    simulated_kv: Annotated[
        SimulatedKv,
        typer.Option(show_default=False, help="KV hand-offs of simulated workers: timed, or real bytes over UCX."),
    ] = SimulatedKv.TIMED
    name: Annotated[str, typer.Option(help="Name of the mesh; each mesh of a machine has its own.")] = DEFAULT_NAME
    start_timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds all services together may take to start.")
    ] = 180.0
    hang_timeout_s: Annotated[
        float,
        typer.Option(
            "--hang-timeout", min=0, help="Seconds without activity after which a process is replaced; 0: never."
        ),
    ] = 15.0
    log_bytes: Annotated[
        int,
        size_option(
            "--log-size",
            show_default="16MiB",
            help="Size at which a process's log begins anew; the last two are kept beside it.",
        ),
    ] = 16 << 20

    @field_validator("dtype")
    @classmethod
    def _dtype_is_one_of_the_engine(cls, dtype: str) -> str:
        if dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype!r} is no dtype; write auto, float32, bfloat16 or float16")
        return dtype

    @field_validator("weights")
    @classmethod
    def _weights_are_kept_or_widened(cls, weights: str) -> str:
        if weights not in WEIGHTS:
            raise ValueError(f"--weights {weights!r}: write {' or '.join(WEIGHTS)}")
        return weights

    @field_validator("device")
    @classmethod
    def _device_is_one_of_the_engine(cls, device: str) -> str:
        if not re.fullmatch(DEVICE, device):
            raise ValueError(f"--device {device!r} is no device; write auto, cpu, cuda or cuda:0")
        return device

    def with_absolute_paths(self) -> Self:
        """Return these options for processes in any folder."""
        return self.model_copy(update={name: value.absolute() for name, value in self if isinstance(value, Path)})
