"""Request bodies in gzip: what they say is what they say without, within the same bounds."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import httpx
import pytest
from starlette.applications import Starlette

from spotwise.http.body import PIECE_BYTES, Gunzip
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, EMBEDDING, EMBEDDINGS, RESPONSE

GZIP = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
LIMIT = 1 << 20


@pytest.fixture
async def client(make_app: Callable[..., Starlette]) -> httpx.AsyncClient:
    app = make_app(max_body_bytes=LIMIT, max_held_bytes=LIMIT, embeddings=EMBEDDINGS)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", COMPLETION),
        ("/v1/responses", RESPONSE),
        ("/v1/messages", {**CHAT, "max_tokens": 4}),
        ("/v1/embeddings", EMBEDDING),
        ("/tokenize", {"prompt": "Hi"}),
    ],
)
async def test_every_path_reads_gzip(client: httpx.AsyncClient, path: str, body: dict[str, object]) -> None:
    async with client:
        for name in ("gzip", "X-GZip"):
            content = gzip.compress(json.dumps(body).encode())
            response = await client.post(path, content=content, headers=GZIP | {"Content-Encoding": name})
            assert response.status_code == 200, response.text


async def test_a_bomb_is_too_large(client: httpx.AsyncClient) -> None:
    """However small it is sent: a body counts as it is without gzip. The limit itself is allowed."""
    room = LIMIT - len(json.dumps(COMPLETION | {"user": ""}))
    allowed = json.dumps(COMPLETION | {"user": "x" * room}).encode()
    async with client:
        assert (await client.post("/v1/completions", content=gzip.compress(allowed), headers=GZIP)).status_code == 200
        for content in (gzip.compress(allowed + b" "), gzip.compress(b" " * (1 << 28))):
            response = await client.post("/v1/completions", content=content, headers=GZIP)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        # Nothing of what was refused counts as held.
        assert (await client.post("/v1/completions", content=gzip.compress(allowed), headers=GZIP)).status_code == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ends in the midst"),
        (json.dumps(COMPLETION).encode(), "is not valid gzip"),
        (zlib.compress(json.dumps(COMPLETION).encode()), "is not valid gzip"),
        (gzip.compress(json.dumps(COMPLETION).encode())[:-9], "ends in the midst"),
        (gzip.compress(json.dumps(COMPLETION).encode()) + b"x", "Something follows"),
        (gzip.compress(b"{}") * 2, "Something follows"),
    ],
    ids=["nothing", "plain", "zlib", "cut", "a byte more", "two members"],  # gzip's own have the time in them
)
async def test_what_is_no_gzip_is_refused(client: httpx.AsyncClient, content: bytes, words: str) -> None:
    """In plain words, and never read as far as it goes."""
    async with client:
        response = await client.post("/v1/completions", content=content, headers=GZIP)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_content_encoding")
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
@pytest.mark.parametrize("step", [1 << 20, 7])
def test_pieces_are_small_and_together_the_whole(size: int, step: int) -> None:
    """Also of what compresses well, and in whatever parts it comes."""
    for whole in (b"a" * size, bytes(index * 37 % 251 for index in range(size))):
        content, gunzip, pieces = gzip.compress(whole), Gunzip(), list[bytes]()
        for start in range(0, len(content), step):
            pieces += gunzip.pieces(content[start : start + step])
        gunzip.finish()
        assert b"".join(pieces) == whole
        assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
