"""Where the parts of an answer are written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import SampledToken, TokenLogprobs
from spotwise.gateway.apis.chat import ChatWriter
from spotwise.gateway.apis.completions import CompletionWriter
from spotwise.gateway.apis.items_writer import ItemsWriter
from spotwise.gateway.generate.answer_work import (
    PART_TOKENS,
    TURN_SCORES,
    AnswerWork,
    parts_of,
    scores_of_batch,
    scores_of_piece,
)
from spotwise.gateway.generate.choice import Choice, ChoiceText
from spotwise.gateway.generate.generation import GeneratedTokens
from spotwise.gateway.resume import kept_forms
from spotwise.http.event_loop import AT_ONCE, OffLoop
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.unit.gateway.apps import Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, RESPONSE, FakeMesh
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app

LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}


def token(alternatives: int | None = None, prompt: int = 0) -> SampledToken:
    scores = None if alternatives is None else TokenLogprobs(-1.0, (3,) * alternatives, (-2.0,) * alternatives)
    return SampledToken("c", 5, scores, (None, *[scores] * (prompt - 1)) if prompt else None)


async def test_a_little_is_written_on_the_loop_and_more_in_a_thread() -> None:
    """The work of a few tokens costs less than a thread."""
    work, here = AnswerWork(OffLoop(), "k"), threading.get_ident()
    assert await work.do(TURN_SCORES, threading.get_ident) == here
    assert await work.do(TURN_SCORES + 1, threading.get_ident) != here


async def test_many_small_parts_leave_the_loop_to_others() -> None:
    """Answers that have thousands of tokens at hand write a few hundred of them in each of its iterations."""
    off_loop = OffLoop()
    written = [0]

    async def write() -> None:
        work = AnswerWork(off_loop, "k")
        for _ in range(4000):
            await work.do(1, lambda: None)
            written[-1] += 1

    writing = [asyncio.create_task(write()) for _ in range(20)]
    while not all(task.done() for task in writing):
        await asyncio.sleep(0)
        written.append(0)
    assert sum(written) == 20 * 4000
    # The answers that begin have a part each, and those that go on have their turns.
    assert max(written) <= (len(writing) + 2 * AT_ONCE) * (TURN_SCORES + 1)
    assert len(written) > 4000 // TURN_SCORES


@pytest.mark.parametrize("count", [0, 1, PART_TOKENS, PART_TOKENS + 1, 3 * PART_TOKENS])
def test_tokens_that_come_together_are_cut(count: int) -> None:
    """Without losing or repeating anything: the end is the last part's, what came with the first token the first's."""
    batch = GeneratedTokens((token(),) * count, FinishReason.STOP, 7, 0.5)
    parts = list(parts_of(batch))
    assert sum((part.tokens for part in parts), ()) == batch.tokens
    assert all(len(part.tokens) <= PART_TOKENS for part in parts)
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [FinishReason.STOP]
    assert [(part.cached_tokens, part.prefill_s) for part in parts] == [(7, 0.5)] + [(0, None)] * (len(parts) - 1)


def test_work_is_counted_in_tokens_and_log_probabilities() -> None:
    assert scores_of_batch(GeneratedTokens((token(), token(), token()))) == 3
    assert scores_of_batch(GeneratedTokens((token(4), token(4)))) == 2 * 6
    assert scores_of_batch(GeneratedTokens((token(4, prompt=100),))) == 6 + 500
    scores = TokenLogprobs(-1.0, (3,), (-2.0,))
    assert scores_of_piece(ChoiceText("", (1, 2), prompt_logprobs=[None, scores, scores])) == 2 + 3 * 2


class Threads:
    """Notes what is written on the thread of the event loop, and how much of it at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here = threading.get_ident()
        self.on_loop: list[tuple[str, int]] = []
        self.elsewhere = set[str]()
        self._note(monkeypatch, Choice, "pieces", lambda _, batch, **__: scores_of_batch(batch))
        for each in (ChatWriter, CompletionWriter, ItemsWriter):
            for name in ("collect", "events"):
                self._note(monkeypatch, each, name, lambda _, __, piece: scores_of_piece(piece))

    def _note(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, scores_of: Callable[..., int]) -> None:
        original = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == self._here:
                self.on_loop.append((name, scores_of(*arguments, **named)))
            else:
                self.elsewhere.add(name)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    def require_little_on_loop(self) -> None:
        assert max((scores for _, scores in self.on_loop), default=0) <= TURN_SCORES


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", COMPLETION | {"prompt": [[5] * 240] * 3, "echo": True, "max_tokens": 0, "logprobs": 10}),
        ("chat/completions", CHAT | {"logprobs": True, "top_logprobs": 20}),
        ("responses", RESPONSE | LOGPROBS),
    ],
    ids=["echoes", "chat", "responses"],
)
async def test_much_that_comes_at_once_is_written_in_threads(
    make_app: MakeApp, mesh: FakeMesh, threads: Threads, path: str, body: Json, stream: bool
) -> None:
    """A prompt's log-probabilities, or hundreds of tokens; the answer is the same as of small work."""
    mesh.reply = [5] * 200
    mesh.batch_tokens = 200
    async with connect(make_app()) as client:
        answer = await client.post(f"/v1/{path}", json=body | {"stream": stream})
    assert answer.status_code == 200
    assert "pieces" in threads.elsewhere
    threads.require_little_on_loop()


@pytest.mark.parametrize("path", ["completions", "responses"])
async def test_polls_and_resumes_read_in_threads(
    text: ChatText, threads: Threads, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a gateway that has to read all that is kept of a request."""
    here, reads = threading.get_ident(), list[bool]()
    read = kept_forms.read_chunks

    def noted(chunks: Any, choices: int) -> Any:
        reads.append(threading.get_ident() == here)
        return read(chunks, choices)

    for name in ("routes.requests", "resume.kept_requests", "resume.kept_forms"):
        monkeypatch.setattr(f"spotwise.gateway.{name}.read_chunks", noted)
    more = {"max_tokens": 200, "logprobs": 20} if path == "completions" else LOGPROBS
    body = (COMPLETION if path == "completions" else RESPONSE) | more | {"ignore_eos": True}
    mesh = KeepingMesh([5] * 200)
    headers = {"Idempotency-Key": "k"}
    answer = await Client(keeping_app(mesh, text), "POST", f"/v1/{path}", body, headers).answer()
    await until(lambda: all(kept.ending is not None for kept in mesh.store._kept.values()))
    threads.on_loop.clear()
    other = keeping_app(KeepingMesh(store=mesh.store), text, "g1")
    state = await Client(other, "GET", f"/v1/requests/{answer['id']}").answer()
    assert state["response"]["id"] == answer["id"]
    assert await Client(other, "POST", f"/v1/{path}", body, headers).answer() == answer
    stream = Client(other, "GET", f"/v1/requests/{answer['id']}", headers={"Accept": "text/event-stream"})
    while await stream.part() is not None:
        pass
    assert len(reads) >= 3
    assert not any(reads)
    threads.require_little_on_loop()
