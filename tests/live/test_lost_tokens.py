"""Token messages that never arrive: a worker's connection to the broker breaks, and what it had sent is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from spotwise.mesh.embedded.servers import nats_server, running
from tests.live.broker_proxy import BrokerProxy
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.parallel

SEEDS = range(4)
TOKENS = 120


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProxy]:
    with running(nats_server(tmp_path_factory.mktemp("nats"))) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with BrokerProxy(port).running() as relay:
            yield relay


@pytest.fixture(scope="module")
def mesh(proxy: BrokerProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    with SimulatedMesh(
        tmp_path_factory.mktemp("lossy"),
        *("--prompt-workers", "1", "--token-workers", "1", "--nats-url", proxy.url),
    ) as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: SimulatedMesh) -> list[list[int]]:
    """The tokens of each stream as they should be."""
    return [stream.tokens for stream in mesh.streams(SEEDS, TOKENS)]


def lose(proxy: BrokerProxy, seconds: float) -> None:
    """Lose what the token worker sends for a while, then break its connection, so that it connects anew."""
    proxy.lose("token-0")
    time.sleep(seconds)
    proxy.cut("token-0")


@pytest.mark.parametrize("after_tokens", [20, TOKENS - 8], ids=["in the middle", "the last ones"])
def test_a_stream_goes_on_where_tokens_were_lost(
    mesh: SimulatedMesh, proxy: BrokerProxy, undisturbed: list[list[int]], after_tokens: int
) -> None:
    """Within seconds, and with the same tokens; nothing that follows may show the gap, where the last ones are lost."""
    streams = mesh.streams(SEEDS, TOKENS, after_tokens, lambda: lose(proxy, 0.6))
    assert [stream.tokens for stream in streams] == undisturbed
    assert max(mesh.attempts(stream) for stream in streams) == 2
    assert max(max(stream.gaps_s) for stream in streams) < 30.0  # it was two minutes
    mesh.wait_until_idle()
