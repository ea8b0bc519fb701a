"""URLs of clusters, and the order in which a client tries the nodes of one."""

from __future__ import annotations

from urllib.parse import urlparse

import pytest
from nats.aio.client import Server

from spotwise.mesh.nats.bus import ReconnectOrder
from spotwise.mesh.process.server_urls import SentinelUrl, server_urls, shown_servers

URLS = [urlparse(f"nats://user:a,b@{host}:4222") for host in "abc"]


def test_a_comma_in_a_password_divides_no_url() -> None:
    url = ", ".join(each.geturl() for each in URLS)
    assert server_urls(url) == [each.geturl() for each in URLS]
    assert server_urls("nats://a:4222") == ["nats://a:4222"]
    assert shown_servers(url) == "nats://***@a:4222,nats://***@b:4222,nats://***@c:4222"


def test_a_lost_node_is_tried_last_and_failed_ones_after_the_others() -> None:
    spans: list[float] = []

    def longest(_least: float, most: float) -> float:
        spans.append(most)
        return most

    order = ReconnectOrder(longest)
    order.connected(URLS[0], URLS)
    assert order.connected_to == "a:4222"
    failed = [0, 0, 0]
    tried = []
    for _ in range(7):
        server, delay_s = order([Server(uri, count) for uri, count in zip(URLS, failed, strict=True)], {})
        assert delay_s == spans[-1]
        tried.append(URLS.index(server.uri))
        failed[tried[-1]] += 1
    assert tried == [1, 2, 0, 1, 2, 0, 1]
    assert spans == sorted(spans)
    failed = [99, 99, 99]
    assert order([Server(uri, count) for uri, count in zip(URLS, failed, strict=True)], {})[1] == 1.0


def test_addresses_that_a_cluster_announces_are_not_tried() -> None:
    """They have no credentials; where only such are left, they are."""
    order = ReconnectOrder()
    order.connected(URLS[0], URLS[:1])
    announced = Server(urlparse("nats://10.0.0.9:4222"), 0)
    assert order([announced, Server(URLS[0], 5)], {})[0].uri == URLS[0]
    assert order([announced], {})[0] == announced


def test_a_sentinel_url_has_credentials_hosts_and_the_primarys_name() -> None:
    """Ports and the database have defaults; what is escaped is not so afterwards."""
    url = SentinelUrl("redis+sentinel://mesh:p%40ss@a:1,b,[::1]:3/main/2")
    assert (url.user, url.password, url.primary_name, url.database) == ("mesh", "p@ss", "main", 2)
    assert url.sentinels == [("a", 1), ("b", 26379), ("::1", 3)]
    assert SentinelUrl("redis+sentinel://a/main").database == 0


@pytest.mark.parametrize(
    "url",
    [
        "redis://a/main",
        "redis+sentinel://a",
        "redis+sentinel://a/main/x",
        "redis+sentinel://:1/main",
        "redis+sentinel://a:x/main",
    ],
)
def test_a_url_that_is_none_of_sentinels_is_refused(url: str) -> None:
    """Whatever of it is missing or wrong."""
    with pytest.raises(ValueError):
        SentinelUrl(url)
