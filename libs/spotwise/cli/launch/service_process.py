"""One process of a mesh, as data: its command line, its environment, and when it stops."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from spotwise.cli.launch.options import MeshOptions
from spotwise.core.access.secret_variables import environment_for

#: Environment of every service, part of which Python and libraries read before a service runs.
PYTHON_ENV = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
#: 0: every process is executed as a new program, none is forked.
FORK_SERVER = "SPOTWISE_FORK_SERVER"


def may_fork(environ: Mapping[str, str]) -> bool:
    """Whether processes are forked from ones that have imported their modules, as the supervisor's environment says."""
    return environ.get(FORK_SERVER, "1") != "0"


class StopOrder(IntEnum):
    """The order in which processes stop: gateway, workers, control plane, broker and store."""

    GATEWAY = 0
    WORKER = 1
    CONTROL = 2
    SERVER = 3


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process to start.

    Attributes:
        service_id: unique in the mesh; its log's name.
        module: what `python -m` runs: a package with a `__main__`, or a module.
        env: variables to set on top of the supervisor's own, of which it gets no others' secrets.
        member_ids: the members it registers as, where they differ from its own id.
        is_essential: the mesh serves no request without it; for workers, and processes of one `service`, without any of them.
        service: what it is one process of.
        later_imports: what `module` imports once its settings are read; for workers that compute: torch and the model's code.
    """

    service_id: str
    module: str
    env: Mapping[str, str]
    stop_order: StopOrder
    member_ids: tuple[str, ...] = ()
    is_essential: bool = True
    service: str = ""
    later_imports: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """Its command line; -P: the user's working folder must not shadow an installed package."""
        return (sys.executable, "-P", "-m", self.module)

    @property
    def members(self) -> tuple[str, ...]:
        """The ids of the mesh's members in this process."""
        return self.member_ids or (self.service_id,)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return its whole environment, given that of the process that starts it."""
        return {**environment_for(self.service, environ), **self.env}


def service(
    options: MeshOptions,
    module: str,
    service_id: str,
    env: Mapping[str, str],
    stop_order: StopOrder,
    member_ids: tuple[str, ...] = (),
    later_imports: tuple[str, ...] = (),
) -> ServiceProcess:
    """Return a service's process; `module` is its name after `options.service_modules`."""
    named = {**env, "SPOTWISE_SERVICE_ID": service_id}
    return ServiceProcess(
        service_id,
        f"{options.service_modules}{module}",
        named,
        stop_order,
        member_ids,
        service=module,
        later_imports=later_imports,
    )


def common_env(options: MeshOptions, nats_url: str, redis_url: str) -> dict[str, str]:
    """Return the environment of every service: the servers, the mesh's secret, the model and its adapters."""
    given = {} if options.mesh_secret_file is None else {"SPOTWISE_MESH_SECRET_FILE": str(options.mesh_secret_file)}
    if options.adapters:
        given["SPOTWISE_ADAPTERS"] = options.adapters
    return {
        **given,
        "SPOTWISE_NATS_URL": nats_url,
        "SPOTWISE_REDIS_URL": redis_url,
        "SPOTWISE_MODEL_DIR": str(options.model_folder),
        "SPOTWISE_MODEL_NAME": options.model_name,
        **PYTHON_ENV,
    }


def gateway_env(options: MeshOptions) -> dict[str, str]:
    """Return the environment of the gateway: where it listens, how, and for whom."""
    given = {
        "SPOTWISE_HOST": options.host,
        "SPOTWISE_PORT": options.port,
        "SPOTWISE_MODEL_ALIASES": options.model_aliases or None,
        "SPOTWISE_ALLOW_ANONYMOUS": "true" if options.allow_anonymous else None,
        "SPOTWISE_API_KEYS_FILE": options.api_keys_file,
        "SPOTWISE_TLS_CERT": options.tls_cert,
        "SPOTWISE_TLS_KEY": options.tls_key,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def policy_env(options: MeshOptions) -> dict[str, str]:
    """Return the environment of a worker's scheduling policy."""
    given = {
        "SPOTWISE_POLICY": options.policy,
        "SPOTWISE_PROFILE": options.profile,
        "SPOTWISE_KV_HOST_BYTES": options.kv_host_bytes,
    }
    return {name: str(value) for name, value in given.items() if value is not None}
