"""One streamed chat completion over HTTP, with its TTFT, decode time and token count."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.cli.client.resumable_stream import ResumableStream


@dataclass(slots=True)
class AnswerFigures:
    """The figures of one answer.

    Attributes:
        ttft_s: from sending the request to the first piece of text.
        output_tokens: as the mesh counts them.
        decode_s: from the first piece of text to the last.
    """

    request_id: str | None = None
    ttft_s: float | None = None
    output_tokens: int | None = None
    decode_s: float = 0.0

    def line(self) -> str:
        """The figures as one line of text."""
        parts = []
        if self.ttft_s is not None:
            parts.append(f"TTFT {self.ttft_s * 1000:.0f} ms")
        if self.output_tokens is not None:
            parts.append(f"{self.output_tokens} tokens")
            # The first token belongs to the prompt phase.
            if self.decode_s > 0 and self.output_tokens > 1:
                parts.append(f"{(self.output_tokens - 1) / self.decode_s:.1f} tokens/s")
        if self.request_id is not None:
            parts.append(f"request {self.request_id}")
        return " · ".join(parts)


class ChatClient:
    """A client of the gateways at `urls` (without `/v1`), the first as long as it answers; to be closed after use. `ca_file`:
    see `client_options`.
    """

    def __init__(self, *urls: str, ca_file: Path | None = None) -> None:
        self._http = ResumableStream(urls, ca_file)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def model(self) -> str:
        """The served model's name; raises `CommandError` where the gateway does not answer or refuses the request."""
        return self._http.models()[0]

    def stream(self, body: dict[str, Any], figures: AnswerFigures) -> Generator[str, None, None]:
        """Send a chat completion; yields its text as it arrives and fills `figures`; closing the iterator cancels the request.
        A stream that breaks off goes on at any of the gateways.

        Raises:
            CommandError: the gateway does not answer, the mesh refuses the request, or the stream breaks off.
        """
        request = {**body, "stream": True, "stream_options": {"include_usage": True}}
        sent_s = time.monotonic()
        first_s: float | None = None
        try:
            with contextlib.closing(self._http.events("/v1/chat/completions", request)) as events:
                for event in events:
                    if event.get("usage"):
                        figures.output_tokens = event["usage"]["completion_tokens"]
                    for choice in event["choices"]:
                        text = choice["delta"].get("content")
                        if text:
                            now_s = time.monotonic()
                            first_s = first_s or now_s
                            figures.ttft_s = first_s - sent_s
                            figures.decode_s = now_s - first_s
                            yield text
        finally:
            figures.request_id = self._http.request_id
