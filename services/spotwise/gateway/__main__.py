"""The gateway: the OpenAI API in front of the mesh."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator

import uvicorn
from prometheus_client import CollectorRegistry

from spotwise.core.members import MemberKind
from spotwise.gateway.api import create_app
from spotwise.gateway.api_options import ApiOptions
from spotwise.gateway.http_protocol import http_protocol
from spotwise.gateway.mesh_client import MeshGeneration
from spotwise.gateway.metrics import GatewayMetrics
from spotwise.gateway.settings import GatewaySettings
from spotwise.gateway.text import ChatText, ModelTextError
from spotwise.mesh.ports import MeshError
from spotwise.mesh.run_service import run_service
from spotwise.mesh.service import ServiceHost


class _HttpServer(uvicorn.Server):
    """Uvicorn, leaving signals and the process's end to the service host: streams are ended by it, in order.

    Attributes:
        listening: done once it listens; fails with a MeshError where it cannot.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as end:  # with a status of uvicorn's own, because of the error in its context
            where = f"{self.config.host}:{self.config.port} (SPOTWISE_HOST, SPOTWISE_PORT)"
            self.should_exit = True
            self.listening.set_exception(MeshError(f"the API cannot listen on {where}: {end.__context__}"))
        else:
            self.listening.set_result(None)


async def serve(settings: GatewaySettings) -> None:
    """Serve the API until a stop signal."""
    try:
        text = ChatText.load(settings.model_dir)
    except ModelTextError as error:
        raise MeshError(str(error)) from error
    metrics = GatewayMetrics(CollectorRegistry(), settings.served_name, text.context_length)
    options = ApiOptions(
        settings.served_name,
        api_keys=settings.bearer_keys,
        max_body_bytes=settings.max_body_bytes,
        max_held_bytes=settings.max_held_body_bytes,
        cors_origins=settings.browser_origins,
        default_max_tokens=settings.default_max_tokens,
        shares_prefixes=settings.prefix_sharing == "mesh",
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
                http=http_protocol(settings.http_limits, metrics.count_error),
                ws="none",
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=2,
            )
        )
        serving = asyncio.create_task(server.serve())
        await server.listening
        serving.add_done_callback(lambda _: host.stop())
        await host.run()
        server.should_exit = True
        await serving


if __name__ == "__main__":
    sys.exit(run_service(GatewaySettings, serve))
