"""Opens the API to its clients: reads the keys, and keeps them up to date."""

from __future__ import annotations

from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import OPEN_PATHS
from spotwise.gateway.access.known_keys import REPORT_S, KnownKeys
from spotwise.gateway.access.quotas import Quotas
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.addresses import is_loopback
from spotwise.mesh.service.host import ServiceHost


async def open_access(settings: GatewaySettings, host: ServiceHost, metrics: GatewayMetrics) -> ApiAccess:
    """Read the keys, and keep them up to date as long as the host runs.

    Raises:
        MeshError: keys cannot be read, or clients of other machines would need none.
    """
    store = host.store.keys
    keys = KnownKeys(
        settings.bearer_keys,
        host.clock,
        store,
        settings.api_keys_file,
        is_loopback=is_loopback(settings.host),
        allow_anonymous=settings.allow_anonymous,
    )
    try:
        keys.read_file()
    except ValueError as error:
        raise MeshError(f"SPOTWISE_API_KEYS_FILE: {error}") from error
    await keys.look()
    if keys.requires_key is None:
        raise MeshError(
            f"the API would listen on {settings.host} and let in any client that reaches it, because there are no API keys; "
            "make one with `spotwise keys create NAME`, set SPOTWISE_API_KEYS or SPOTWISE_API_KEYS_FILE, or set "
            "SPOTWISE_ALLOW_ANONYMOUS=true where only trusted clients reach it"
        )
    quotas = Quotas(store, host.clock, f"{host.id}/{host.member.incarnation}", metrics.count_limited)
    host.every(1.0, keys.watch, "api_keys")
    host.every(REPORT_S, keys.report_use, "api_key_uses")
    host.spawn(quotas.run(), "quotas")
    open_paths = OPEN_PATHS - ({"/metrics"} if settings.metrics_need_key else set())
    return ApiAccess(keys, quotas, open_paths)
