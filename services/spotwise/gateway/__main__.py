"""The gateway: the OpenAI API in front of the mesh."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator

import uvicorn
from prometheus_client import CollectorRegistry

from spotwise.core.messages import MemberKind
from spotwise.gateway.api import create_app
from spotwise.gateway.mesh_client import MeshGeneration
from spotwise.gateway.metrics import GatewayMetrics
from spotwise.gateway.plan import ApiOptions
from spotwise.gateway.settings import GatewaySettings
from spotwise.gateway.text import ChatText, ModelTextError
from spotwise.mesh.ports import MeshError
from spotwise.mesh.run_service import run_service
from spotwise.mesh.service import ServiceHost


class _HttpServer(uvicorn.Server):
    """Uvicorn, leaving signals to the service host: streams are ended by it, in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: GatewaySettings) -> None:
    """Serve the API until told to stop."""
    try:
        text = ChatText.load(settings.model_dir)
    except ModelTextError as error:
        raise MeshError(str(error)) from error
    metrics = GatewayMetrics(CollectorRegistry(), settings.served_name)
    options = ApiOptions(
        settings.served_name,
        api_keys=settings.bearer_keys,
        max_body_bytes=settings.max_body_bytes,
        default_max_tokens=settings.default_max_tokens,
    )
    async with ServiceHost.open(settings, MemberKind.GATEWAY) as host:
        host.introduce(model=settings.served_name)
        generation = MeshGeneration(host, settings, metrics)
        await generation.start()
        server = _HttpServer(
            uvicorn.Config(
                create_app(generation, text, options, metrics),
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )
        serving = asyncio.create_task(server.serve())
        serving.add_done_callback(lambda _: host.stop())  # e.g. the port is taken
        await host.run()
        server.should_exit = True
        await serving


if __name__ == "__main__":
    sys.exit(run_service(GatewaySettings, serve))
