"""Stream a chat completion that survives broken connections and gateways. Needs httpx only.

for text in stream(["http://127.0.0.1:8000", "http://127.0.0.1:8001"], {"model": "...", "messages": [...]}):
    print(text, end="", flush=True)
"""

import itertools
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

PATIENCE_S = 30.0


class StreamError(Exception):
    """The request was refused, or could not be resumed in time."""


def stream(gateways: list[str], body: dict[str, Any], api_key: str = "") -> Iterator[str]:
    """Yield the text of choice 0 as it comes, each character once; raise StreamError where it cannot go on."""
    # The key makes a request that is sent twice one request; the gateways keep it for a while without a connection.
    headers = {"Idempotency-Key": str(uuid.uuid4()), "X-Resume": "true"}  # the latter: every event with its id
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    broken_s = None
    for url in itertools.cycle(gateways):
        try:
            for event_id, event in events(url, body | {"stream": True}, headers):
                if event is None:
                    return
                broken_s = None
                if "error" in event:
                    raise StreamError(event["error"]["message"])
                for choice in event["choices"]:
                    if choice["index"] == 0 and choice["delta"].get("content"):
                        yield choice["delta"]["content"]
                if event_id:  # what came with this event is done: a resumed stream begins after it
                    headers["Last-Event-ID"] = event_id
        except httpx.TransportError:
            pass  # the gateway, or the way to it, is gone
        broken_s = broken_s or time.monotonic()
        if time.monotonic() - broken_s > PATIENCE_S:
            raise StreamError(f"no gateway went on with the answer within {PATIENCE_S:g} s")
        time.sleep(0.5)


def events(url: str, body: dict[str, Any], headers: dict[str, str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield each event's id and data; None at the end. A gateway that is full or starting has no events yet."""
    event_id = ""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60.0) as response:
        if response.status_code not in (200, 429, 502, 503):
            raise StreamError(response.read().decode())
        for line in response.iter_lines() if response.status_code == 200 else ():
            field, _, value = line.partition(": ")
            if field == "id":
                event_id = value
            elif field == "data":
                yield event_id, None if value == "[DONE]" else json.loads(value)
