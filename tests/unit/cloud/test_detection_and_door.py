"""Detection of the cloud, and how requests handle a metadata service that misbehaves."""

from __future__ import annotations

import asyncio

import pytest

from spotwise.cloud.aws import Aws
from spotwise.cloud.azure import Azure
from spotwise.cloud.dialogue import Cloud, Dialogue, HttpAnswer, HttpRequest, unix_s
from spotwise.cloud.gcp import Gcp
from spotwise.cloud.http_client import MAX_BODY_BYTES, HttpClient
from spotwise.cloud.kubernetes import Kubernetes
from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from spotwise.spot_watcher.clouds import detect
from tests.fakes.metadata_server import NODE_TOKEN, Fault, MetadataServer
from tests.unit.cloud.speaking import NOW, carried_out

ORDER: tuple[Cloud, ...] = (Aws(), Gcp(), Azure(), Kubernetes("node-0", 30.0, lambda: NODE_TOKEN))


def one_question(request: HttpRequest) -> Dialogue[HttpAnswer]:
    answer = yield request
    return answer


async def fetched(server: MetadataServer, request: HttpRequest, timeout_s: float = 5.0) -> HttpAnswer:
    return await carried_out(one_question(request), server, timeout_s)


@pytest.mark.parametrize(
    ("spoken", "found"),
    [(("aws",), "aws"), (("gcp",), "gcp"), (("azure",), "azure"), (("kubernetes",), "kubernetes"), ((), None)],
)
async def test_the_cloud_of_a_machine_is_found(spoken: tuple[str, ...], found: str | None) -> None:
    async with MetadataServer(clouds=spoken) as server, HttpClient(server.url, 5.0) as door:
        here = await detect([(cloud, door) for cloud in ORDER])
    assert (here[0].name if here else None) == found


@pytest.mark.parametrize("cloud", ORDER, ids=lambda cloud: cloud.name)
async def test_other_clouds_are_not_taken_for_one(cloud: Cloud) -> None:
    async with MetadataServer(clouds=(cloud.name,)) as server:
        assert await carried_out(cloud.detect(), server)
    async with MetadataServer(clouds=tuple(each.name for each in ORDER if each is not cloud)) as server:
        assert not await carried_out(cloud.detect(), server)


async def test_a_clouds_own_metadata_comes_before_kubernetes() -> None:
    async with MetadataServer(clouds=("azure", "kubernetes")) as server, HttpClient(server.url, 5.0) as door:
        server.faults.append(Fault("/metadata", slow_s=0.1))
        here = await detect([(cloud, door) for cloud in ORDER])
    assert here is not None
    assert here[0].name == "azure"


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (Fault(slow_s=5.0), "no answer within 0.1 s"),
        (Fault(hang_up=True), "a broken answer (RemoteProtocolError)"),
        (Fault(truncated=True, body=b"x" * 100), "a broken answer (RemoteProtocolError)"),
        (Fault(raw=b"SSH-2.0-what\r\n\r\n"), "a broken answer (RemoteProtocolError)"),
        (Fault(body=b"x" * (MAX_BODY_BYTES + 1)), "an answer of more than 4 MiB"),
    ],
    ids=["slow", "hung up", "truncated", "no HTTP", "endless"],
)
async def test_a_malformed_answer_is_a_failure_with_its_reason(fault: Fault, failure: str) -> None:
    async with MetadataServer() as server:
        server.faults.append(fault)
        limit_s = 0.1 if fault.slow_s else 5.0
        request = HttpRequest("GET", "/computeMetadata/v1/instance/id", {"Metadata-Flavor": "Google"})
        assert await fetched(server, request, limit_s) == HttpAnswer(None, failure=failure)
        assert (await fetched(server, request)).status == 200


async def test_drops_that_never_end_are_cut_off() -> None:
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            # A client that closes with unread bytes resets the connection: the reader gets an exception then, and never an EOF.
            while not writer.transport.is_closing():
                writer.write(b"x")
                await asyncio.sleep(0.01)
        finally:
            writer.close()
            ended.set()

    server = await asyncio.start_server(drip, LOOPBACK, 0)
    url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    async with HttpClient(url, 0.2) as door:
        answer = await door.converse(one_question(HttpRequest("GET", "/")))
    await ended.wait()
    server.close()
    await server.wait_closed()
    assert answer.failure == "no answer within 0.2 s"


async def test_no_server_is_a_failure_with_its_reason() -> None:
    async with HttpClient(f"http://{LOOPBACK}:{free_port()}", 5.0) as door:
        assert (await door.converse(one_question(HttpRequest("GET", "/")))).failure == "no connection"


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests bypass the environment's proxies, since metadata is this machine's own."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{LOOPBACK}:{free_port()}")
    async with MetadataServer() as server:
        assert (await fetched(server, HttpRequest("GET", "/nothing"))).status == 404


async def test_redirects_are_not_followed() -> None:
    async with MetadataServer() as server:
        server.faults.append(Fault(raw=b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"))
        assert (await fetched(server, HttpRequest("GET", "/a"))).status == 302
        assert len(server.questions) == 1


@pytest.mark.parametrize(
    "text",
    ["2026-11-22T15:00:00Z", "2026-11-22T16:00:00+01:00", "2026-11-22T15:00:00", "Sun, 22 Nov 2026 15:00:00 GMT"],
)
def test_dates_of_all_clouds_are_unix_time(text: str) -> None:
    """Without a zone they are UTC."""
    assert unix_s(text) == NOW


@pytest.mark.parametrize("text", [None, "", "soon", 17, "Sun, 99 Nov 2026 15:00:00 GMT", "0000-00-00T00:00:00Z", ","])
def test_what_is_no_date_is_none(text: object) -> None:
    assert unix_s(text) is None
