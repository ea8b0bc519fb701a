"""Parses the addresses of servers that an option names."""

from __future__ import annotations

from urllib.parse import urlsplit

from spotwise.cli.errors import OptionError
from spotwise.mesh.process.server_urls import SentinelUrl, is_sentinel_url, server_urls

_SERVER_PORTS = {"--nats-url": {"nats": 4222, "tls": 4222}, "--redis-url": {"redis": 6379, "rediss": 6379}}


def server_addresses(url: str, option: str) -> list[tuple[str, int]]:
    """Hosts and ports of a URL of a server, a NATS cluster's nodes or Redis Sentinel, given by `option`; raises `OptionError`,
    naming `option`, where it is none.
    """
    try:
        if option == "--redis-url" and is_sentinel_url(url):
            return SentinelUrl(url).sentinels
        urls = server_urls(url) if option == "--nats-url" else [url]
        return [_server_address(each, _SERVER_PORTS[option]) for each in urls]
    except ValueError:
        # The URL is left out of the message: it may hold a password.
        example = "nats://HOST:4222" if option == "--nats-url" else "redis://HOST:6379/0"
        raise OptionError(f"{option} is no server's URL; write for instance {example}") from None


def _server_address(url: str, ports: dict[str, int]) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme not in ports or parts.hostname is None:
        raise ValueError("no server's URL")
    return parts.hostname, parts.port or ports[parts.scheme]
