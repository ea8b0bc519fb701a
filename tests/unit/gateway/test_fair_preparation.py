"""Keys share the threads that plan requests: one key's grammars delay no other key's requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from spotwise.gateway.access.auth import ApiKey
from spotwise.http.event_loop import INLINE_BYTES
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import PATIENCE_S, until
from tests.unit.gateway.fake_mesh import CHAT

CHATS = "/v1/chat/completions"
#: Requests of the key with slow grammars.
CROWD = 12


@pytest.mark.parametrize("named", [True, False], ids=["named keys", "keys without names"])
async def test_slow_grammars_of_one_key_delay_no_other_key(
    make_app: Callable[..., Starlette], text: ChatText, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """While two of them compile and the others wait, another key's chats are planned, and those with grammars of its own."""
    compiling, go_on = 0, threading.Event()
    known = text.grammar_check._problem

    def problem(grammar: str) -> str:
        nonlocal compiling
        if "slow" not in grammar:
            return known(grammar)
        compiling += 1
        assert go_on.wait(PATIENCE_S)
        return "slow"

    monkeypatch.setattr(text.grammar_check, "_problem", problem)
    app = make_app(api_keys=[ApiKey(key, key if named else "") for key in ("crowd", "other")])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:

        async def ask(key: str, **asked: Any) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (await client.post(CHATS, json=CHAT | asked, headers=headers)).status_code

        slow = [{"structured_outputs": {"regex": f"slow{named}{number}"}} for number in range(CROWD)]
        crowd = [asyncio.create_task(ask("crowd", **each)) for each in slow]
        await until(lambda: compiling == 2)
        async with asyncio.timeout(PATIENCE_S):
            assert await ask("other") == 200
            assert await ask("other", user="u" * INLINE_BYTES) == 200
            for number in range(3):
                assert await ask("other", structured_outputs={"regex": f"[ab]{{{number + 1}}}"}) == 200
        assert compiling == 2 and not any(each.done() for each in crowd)
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*crowd) == [400] * CROWD
