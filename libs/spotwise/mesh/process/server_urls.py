"""URLs of brokers and stores: the nodes of a NATS cluster, and a Redis primary that Sentinel names; and text without the
passwords of URLs. Imports no client.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

#: A comma between two URLs, not one in a password.
_BETWEEN_URLS = re.compile(r",\s*(?=[A-Za-z]+://)")
SENTINEL_SCHEME = "redis+sentinel"
SENTINEL_PORT = 26379
# Up to the last @ of a word: a password may hold one, or a slash, that its user did not escape.
_CREDENTIALS = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s\"'<>]*@")


def without_passwords(text: str) -> str:
    """Return the text with user and password of every URL in it replaced by stars."""
    return _CREDENTIALS.sub(r"\1***@", text) if "://" in text else text


def server_urls(url: str) -> list[str]:
    """Return the servers of `nats://HOST:4222,nats://HOST:4222,...`."""
    return [each.strip() for each in _BETWEEN_URLS.split(url)]


def shown_servers(url: str) -> str:
    """Return the servers' URLs without passwords."""
    return ",".join(without_passwords(each) for each in server_urls(url))


class SentinelUrl:
    """`redis+sentinel://[USER:PASSWORD@]HOST:26379,HOST:26379,.../PRIMARY_NAME/0`; raises `ValueError` where it is none."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != SENTINEL_SCHEME:
            raise ValueError("no Sentinel URL")
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        self.user = unquote(user) or None
        self.password = unquote(password) or None
        self.sentinels = [_address(host) for host in hosts.split(",")]
        path = parts.path.strip("/").split("/")
        if not path[0] or len(path) > 2:
            raise ValueError("the URL's path is not /PRIMARY_NAME/DATABASE")
        self.primary_name = unquote(path[0])
        self.database = int(path[1]) if len(path) == 2 else 0


def is_sentinel_url(url: str) -> bool:
    """Whether a store's URL names sentinels."""
    return url.startswith(f"{SENTINEL_SCHEME}://")


def _address(host: str) -> tuple[str, int]:
    name, colon, port = host.rpartition(":")
    if not colon:
        return host, SENTINEL_PORT
    if not name:
        raise ValueError("a sentinel has no host")
    return name.strip("[]"), int(port)
