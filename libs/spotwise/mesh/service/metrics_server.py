"""Serves a service's own Prometheus metrics, where it has no REST endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from prometheus_client import CollectorRegistry, start_http_server

from spotwise.mesh.ports.ports import MeshError

_log = structlog.get_logger(__name__)


@contextmanager
def served_metrics(registry: CollectorRegistry, host: str, port: int | None, setting: str) -> Iterator[None]:
    """Serve `registry` for the block, unless `port` is `None`; raises `MeshError`, naming the setting, where it is taken."""
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise MeshError(f"cannot listen on {host}:{port} ({setting}): {error}") from error
    _log.info("metrics", port=server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
