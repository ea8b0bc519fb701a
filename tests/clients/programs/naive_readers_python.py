"""Readers written by hand, and one that reads as `vllm bench serve` does: streams of all four APIs, as this mesh sends them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from tests.clients.checks import MODEL, QUESTION, URL, check, run
from tests.clients.naive_readers import Events, as_vllm_bench, by_blank_line, by_chunk, by_line, post

_PLACE = urlsplit(URL)
_CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
#: By the path: a body, and whether its events have names.
APIS: dict[str, tuple[dict[str, Any], bool]] = {
    "/v1/chat/completions": (_CHAT | {"max_tokens": 24, "stream_options": {"include_usage": True}}, False),
    "/v1/completions": (
        {"model": MODEL, "prompt": QUESTION, "max_tokens": 24, "logprobs": 1, "ignore_eos": True},
        False,
    ),
    "/v1/responses": ({"model": MODEL, "input": QUESTION, "max_output_tokens": 24}, True),
    "/v1/messages": (_CHAT | {"max_tokens": 24}, True),
}


def _sent(path: str) -> tuple[list[bytes], list[bytes]]:
    body, _ = APIS[path]
    head, chunks, pieces = post(_PLACE.hostname or "", _PLACE.port or 0, path, body | {"stream": True})
    assert head.startswith("HTTP/1.1 200"), (head, chunks)
    return chunks, pieces


def _is_answer(events: Events) -> bool:
    return len(events) > 2 and not any("error" in event and event["error"] for event in events)


@check
def prefix_of_a_line() -> None:
    for path, (_, named) in APIS.items():
        _, pieces = _sent(path)
        assert _is_answer(by_line(pieces, named=named)), path


@check
def split_at_blank_lines() -> None:
    for path, (_, named) in APIS.items():
        _, pieces = _sent(path)
        assert _is_answer(by_blank_line(pieces, named=named)), path


@check
def chunk_by_chunk() -> None:
    for path, (_, named) in APIS.items():
        chunks, _ = _sent(path)
        assert _is_answer(by_chunk(chunks, named=named)), path


@check
def vllm_bench_serve() -> None:
    """Not the package itself, which takes 480 MB and needs torch to be imported; `make bench-peer` runs that."""
    for path, (_, named) in APIS.items():
        if not named:
            _, pieces = _sent(path)
            assert _is_answer(as_vllm_bench(pieces)), path


if __name__ == "__main__":
    run()
