"""A streamed request that continues where its connection broke, at the same gateway or another one."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import httpx

from spotwise.cli.client.gateway_access import client_options
from spotwise.cli.client.gateway_client import RequestRefusedError, decode_event, listed_models, request_failures

_CONNECT_TIMEOUT_S = 5.0
#: Longest silence between two pieces of an answer; a long prompt on a busy mesh waits here.
_READ_TIMEOUT_S = 300.0
#: A stream that broke off is resumed within this time, which a gateway's restart takes.
PATIENCE_S = 30.0
_PAUSE_S = 0.5
#: Statuses of a gateway that may take the request later.
_LATER = (429, 502, 503)


class ResumableStream:
    """Streams from the gateways at `urls` (without `/v1`), the first as long as it answers; to be closed after use.

    `ca_file`: see `client_options`.

    Attributes:
        request_id: id of the latest request.
    """

    def __init__(self, urls: Sequence[str], ca_file: Path | None = None) -> None:
        timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        self._urls = ", ".join(urls)
        self._clients = [httpx.Client(**client_options(url, ca_file), timeout=timeout) for url in urls]
        self.request_id: str | None = None

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def models(self) -> list[str]:
        """Return the names of the models that the first gateway serves; raises `CommandError` where it does not answer, or
        refuses the request.
        """
        first = self._clients[0]
        with request_failures(_url_of(first)):
            return listed_models(first.get("/v1/models").raise_for_status().json())

    def events(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the data of each event, once. Closing the generator cancels the request.

        Raises:
            CommandError: the mesh refuses the request, or says that it cannot go on; no gateway answers, or none went on with
                the stream in time.
        """
        with request_failures(self._urls):
            yield from self._resumed_events(path, body)

    def _resumed_events(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        event_id = next_id = ""
        broken_s: float | None = None
        clients = itertools.cycle(self._clients)
        client = next(clients)
        tried = 1
        while True:
            try:
                headers = {"X-Spotwise-Resumable": "true", "X-Resume": "true"} | (
                    {"Last-Event-ID": event_id} if event_id else {}
                )
                with client.stream("POST", path, json=body, headers=headers) as response:
                    self._check(client, response, may_retry=bool(event_id))
                    self.request_id = response.headers.get("X-Request-Id")
                    for line in response.iter_lines():
                        if line.startswith("data: [DONE]"):
                            return
                        if line.startswith("id: "):
                            next_id = line.removeprefix("id: ")
                        if (event := decode_event(line)) is not None:
                            broken_s = None
                            yield event
                            event_id = next_id  # of an event that has come whole
                if not event_id:
                    return  # a gateway without ids, which ends its streams in another way
            except GeneratorExit:
                self._cancel(client, next_id)
                raise
            except httpx.HTTPError:
                broken_s = broken_s or time.monotonic()
                is_over = time.monotonic() - broken_s > PATIENCE_S if event_id else tried >= len(self._clients)
                if is_over:
                    raise
                tried += 1
                if event_id:
                    time.sleep(_PAUSE_S)
            client = next(clients)

    def _check(self, client: httpx.Client, response: httpx.Response, *, may_retry: bool) -> None:
        if response.status_code == httpx.codes.OK:
            return
        content = response.read()
        if may_retry and response.status_code in _LATER:
            raise httpx.HTTPStatusError(f"status {response.status_code}", request=response.request, response=response)
        self.request_id = response.headers.get("X-Request-Id")
        raise RequestRefusedError(_url_of(client), response.status_code, content)

    def _cancel(self, client: httpx.Client, event_id: str) -> None:
        if event_id:
            with contextlib.suppress(httpx.HTTPError):
                client.delete(f"/v1/requests/{event_id.partition('.')[0]}", timeout=_CONNECT_TIMEOUT_S)


def _url_of(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")
