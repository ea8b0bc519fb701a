"""A tenant that sends what costs a gateway most, over and over: run as a process of its own, beside the clients of others."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx

from tests.live.hostile_bodies import COMPLETIONS, HOSTILE, SCORED, dump
from tests.live.mesh import MODEL

#: Requests that it has running at any time.
_AT_ONCE = 4
#: `multipleOf` of what is a little less takes most of a second to compile, as long as one may; each number is another grammar.
_SLOW_GRAMMAR = 89_989
_JSON = {"Content-Type": "application/json"}
#: What a gateway may say to such a request; all else is counted by name.
_EXPECTED = frozenset({200, 400, 404, 408, 409, 413, 422, 429, 503, 504})

Attack = Callable[[httpx.AsyncClient, str, random.Random], Awaitable[int]]


async def _body(http: httpx.AsyncClient, url: str, rng: random.Random) -> int:
    """A body of the kinds that would stop a gateway."""
    kinds = HOSTILE | SCORED
    path, make = kinds[rng.choice(sorted(kinds))]
    content = await asyncio.to_thread(lambda: dump(make()))
    return (await http.post(f"{url}{path}", content=content, headers=_JSON)).status_code


async def _grammar(http: httpx.AsyncClient, url: str, rng: random.Random) -> int:
    """A grammar that takes long to compile, in a small body that spells its member's name with an escape."""
    schema = json.dumps({"type": "integer", "multipleOf": _SLOW_GRAMMAR - 2 * rng.randrange(20_000)})
    content = f'{{"model":"{MODEL}","prompt":"x","max_tokens":1,"structured\\u005foutputs":{{"json":{schema}}}}}'
    return (await http.post(f"{url}{COMPLETIONS}", content=content, headers=_JSON)).status_code


async def _abandoned(http: httpx.AsyncClient, url: str, rng: random.Random) -> int:
    """A long prompt whose client leaves at once, resumes, deletes, and leaves again."""
    prompt = [rng.randrange(1000, 40_000) for _ in range(2000)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 64, "stream": True, "ignore_eos": True}
    async with http.stream("POST", f"{url}{COMPLETIONS}", json=body, headers={"X-Resume": "true"}) as response:
        request_id = response.headers.get("x-request-id", "")
    where = f"{url}/v1/requests/{request_id}"
    async with http.stream("GET", where, headers={"Accept": "text/event-stream"}):
        pass
    await http.delete(where)
    return response.status_code


async def _conversation(http: httpx.AsyncClient, url: str, rng: random.Random) -> int:
    """Turns of a conversation that grows by a mebibyte each."""
    status, previous = 200, None
    for _ in range(6):
        body = {"model": MODEL, "input": "word " * 200_000, "truncation": "auto", "max_output_tokens": 16}
        answer = await http.post(
            f"{url}/v1/responses", json=body | ({"previous_response_id": previous} if previous else {})
        )
        status = answer.status_code
        if status != 200:
            break
        previous = answer.json()["id"]
    return status


async def _half_a_body(http: httpx.AsyncClient, url: str, rng: random.Random) -> int:
    """A body that stops before its end, for some seconds."""

    async def parts() -> AsyncIterator[bytes]:
        yield b'{"prompt": "' + b"x" * rng.randrange(1 << 20)
        await asyncio.sleep(5)

    return (await http.post(f"{url}{COMPLETIONS}", content=parts(), headers=_JSON)).status_code


_ATTACKS: Sequence[Attack] = (_body, _body, _grammar, _abandoned, _conversation, _half_a_body)


async def attack(urls: Sequence[str], key: str, seed: int, said: Counter[str]) -> None:
    """Attack gateways with a key until cancelled; note what they said."""

    async def one(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        async with httpx.AsyncClient(timeout=120.0, headers={"Authorization": f"Bearer {key}"}) as http:
            while True:
                kind = rng.choice(_ATTACKS)
                try:
                    status = await kind(http, rng.choice(urls), rng)
                    said[f"{kind.__name__.strip('_')} {status}"] += 1
                    if status not in _EXPECTED:
                        said["unexpected"] += 1
                except httpx.TransportError as error:
                    said[f"{kind.__name__.strip('_')} {type(error).__name__}"] += 1

    await asyncio.gather(*map(one, range(_AT_ONCE)))


async def _until_told(urls: Sequence[str], key: str, seed: int) -> Counter[str]:
    """Attack until standard input ends."""
    said: Counter[str] = Counter()
    attacking = asyncio.create_task(attack(urls, key, seed, said))
    await asyncio.to_thread(sys.stdin.read)
    attacking.cancel()
    await asyncio.gather(attacking, return_exceptions=True)
    return said


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_until_told(sys.argv[3:], sys.argv[1], int(sys.argv[2])))))
