"""Uvicorn inside a service: it leaves signals and the process's end to the service host, so that streams are ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from spotwise.mesh.ports.ports import MeshError

#: For what is cancelled at the end: to free what it holds in the mesh, and to write its answer.
_CUT_S = 1.0


class HttpServer(uvicorn.Server):
    """The API's server.

    Args:
        config: loaded or not; with `ssl` set it speaks TLS alone.
        handshake_timeout_s: a client that has not finished TLS's handshake by then is cut off.

    Attributes:
        listening: done once it listens; fails with a MeshError where it cannot.
    """

    def __init__(self, config: uvicorn.Config, handshake_timeout_s: float) -> None:
        super().__init__(config)
        self._handshake_timeout_s = handshake_timeout_s
        self.listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        try:
            if self.config.ssl is None:
                await super().startup(sockets)
            else:
                await super().startup(sockets=[])
                await self._listen_by_tls()
        except SystemExit as end:  # with a status of uvicorn's own, because of the error in its context
            self._cannot_listen(end.__context__)
        except OSError as error:
            self._cannot_listen(error)
        else:
            self.listening.set_result(None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in order: what is not answered in time is cancelled, and its clients learn so before the process ends."""
        await super().shutdown(sockets)
        if cut := set(self.server_state.tasks):
            await asyncio.wait(cut, timeout=_CUT_S)

    def hurry(self) -> None:
        """End now: answers under way have no more time."""
        self.should_exit = self.force_exit = True
        for task in self.server_state.tasks:
            if not task.cancelling():  # else it writes its end
                task.cancel()

    async def _listen_by_tls(self) -> None:
        """Listen as uvicorn does, but for the handshake: a connection counts only after it, and uvicorn allows it a minute."""
        config = self.config

        def open_connection() -> asyncio.Protocol:
            arguments: dict[str, Any] = {
                "config": config,
                "server_state": self.server_state,
                "app_state": self.lifespan.state,
                "_loop": None,
            }
            return config.http_protocol_class(**arguments)

        listen = functools.partial(asyncio.get_running_loop().create_server, open_connection, config.host, config.port)
        server = await listen(ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=self._handshake_timeout_s)
        self.servers = [server]

    def _cannot_listen(self, error: BaseException | None) -> None:
        where = f"{self.config.host}:{self.config.port} (SPOTWISE_HOST, SPOTWISE_PORT)"
        self.should_exit = True
        self.listening.set_exception(MeshError(f"the API cannot listen on {where}: {error}"))
