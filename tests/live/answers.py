"""What clients get of requests that run side by side, in full, to be compared with what others got."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tests.live.mesh import MODEL

#: A stream with so many tokens decodes.
BEGUN = 8

#: Bodies of requests by name, without the model: a chat where there are `messages`, streamed unless `stream` is false.
Bodies = Mapping[str, dict[str, Any]]


@dataclass
class ChoiceAnswer:
    """All that a client got of one choice.

    Attributes:
        scores: of each token, itself, its log-probability and its alternatives, as the endpoint has them.
        ends: its finish reason and stop reason; one pair, unless something is wrong.
        calls: of tools, names and arguments.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    ends: list[tuple[str, Any]] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)

    def beginning(self, most_tokens: int) -> ChoiceAnswer:
        """Return itself, or what a request for fewer tokens gives of it, with the text of all."""
        if len(self.token_ids) <= most_tokens:
            return self
        return ChoiceAnswer(
            self.text, self.token_ids[:most_tokens], self.scores[:most_tokens], [("length", None)], self.calls
        )

    def add(self, choice: Any) -> None:
        """Append what a chunk, or a whole answer, has of it."""
        message = getattr(choice, "delta", None) or getattr(choice, "message", None)
        self.text += (choice.text if message is None else message.content) or ""
        for number, call in enumerate(getattr(message, "tool_calls", None) or ()):
            self._add_call(getattr(call, "index", number), call.function)
        self.token_ids.extend(getattr(choice, "token_ids", None) or ())  # the chunk that opens a chat has none
        if choice.logprobs is not None:
            self.scores.extend(_of_chat(choice.logprobs) if message is not None else _of_completion(choice.logprobs))
        if choice.finish_reason:
            self.ends.append((choice.finish_reason, choice.stop_reason))

    def _add_call(self, index: int, function: Any) -> None:
        if index == len(self.calls):
            self.calls.append(["", ""])
        self.calls[index][0] += function.name or ""
        self.calls[index][1] += function.arguments or ""


def _of_chat(logprobs: Any) -> list[Any]:
    return [each.model_dump() for each in logprobs.content or ()]


def _of_completion(logprobs: Any) -> list[Any]:
    alternatives = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return list(zip(logprobs.tokens, logprobs.token_logprobs, alternatives, logprobs.text_offset, strict=True))


@dataclass
class Answer:
    """What a client got.

    Attributes:
        has_begun: set once the first choice has some tokens; of a whole answer, whose beginning is not seen, once it is sent.
        asked_s: Unix time at which it was sent, `last_s` of each streamed choice's last token, and `ended_s` of the end.
        longest_gap_s: the longest wait for tokens of a choice after its first ones.
    """

    request_id: str = ""
    choices: dict[int, ChoiceAnswer] = field(default_factory=dict)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    asked_s: float = 0.0
    last_s: dict[int, float] = field(default_factory=dict)
    ended_s: float = 0.0
    longest_gap_s: float = 0.0

    @property
    def token_ids(self) -> dict[int, list[int]]:
        """By choice."""
        return {index: choice.token_ids for index, choice in self.choices.items()}

    @property
    def tokens(self) -> int:
        """Of all choices."""
        return sum(len(choice.token_ids) for choice in self.choices.values())

    def add(self, given: Any) -> None:
        """Append a chunk, or a whole answer."""
        self.request_id = given.id
        for choice in given.choices:
            self.choices.setdefault(choice.index, ChoiceAnswer()).add(choice)


async def ask(
    client: Any, body: dict[str, Any], into: Answer, model: str = MODEL, on_chunk: Callable[[], None] = lambda: None
) -> None:
    """Send a request by the real client, which repeats nothing; `on_chunk` is called after each chunk.

    Ends of sequence are ignored, unless the body says otherwise.
    """
    fields = {"ignore_eos": True, "return_token_ids": True, "stream": True, **body}
    endpoint, prompt = (client.chat.completions, "messages") if "messages" in body else (client.completions, "prompt")
    arguments = {each: fields.pop(each) for each in (prompt, "stream")}
    into.asked_s = time.time()
    try:
        if arguments["stream"]:
            await _read(await endpoint.create(model=model, extra_body=fields, **arguments), into, on_chunk)
        else:
            into.has_begun.set()
            into.add(await endpoint.create(model=model, extra_body=fields, **arguments))
    finally:
        into.has_begun.set()
    into.ended_s = time.time()


async def _read(chunks: Any, into: Answer, on_chunk: Callable[[], None]) -> None:
    heard_s: dict[int, float] = {}
    async for chunk in chunks:
        into.add(chunk)
        for choice in chunk.choices:
            if not getattr(choice, "token_ids", None):
                continue
            into.last_s[choice.index] = time.time()
            now_s = time.monotonic()
            into.longest_gap_s = max(into.longest_gap_s, now_s - heard_s.get(choice.index, now_s))
            heard_s[choice.index] = now_s
        if 0 in into.choices and len(into.choices[0].token_ids) >= BEGUN:
            into.has_begun.set()
        on_chunk()


async def ask_all(
    client: Any, bodies: Bodies, disturb: Callable[[], Awaitable[Any]] | None = None, model: str = MODEL
) -> dict[str, Answer]:
    """Send requests at once, and `disturb` once all streams decode; return their answers when all have ended."""
    answers = {name: Answer() for name in bodies}
    async with asyncio.TaskGroup() as asking:
        for name, body in bodies.items():
            asking.create_task(ask(client, body, answers[name], model))
        if disturb is not None:
            for answer in answers.values():
                await answer.has_begun.wait()
            await disturb()
    return answers


def assert_same(answers: Mapping[str, Answer], expected: Mapping[str, Answer], about: str = "") -> None:
    """Each request got the text, tokens, log-probabilities and finish reasons of its twin."""
    assert answers.keys() == expected.keys()
    found = [each for name, answer in answers.items() for each in _differences(name, answer, expected[name])]
    assert not found, "\n".join([*found, about])


def assert_same_beginning(answer: Answer, expected: Answer, most_tokens: int, name: str) -> None:
    """The same of a request that may have had fewer tokens than its twin, `most_tokens` a choice."""
    begun = Answer(choices={index: each.beginning(most_tokens) for index, each in expected.choices.items()})
    for index, due in begun.choices.items():
        if (
            due is not expected.choices[index] and index in answer.choices
        ):  # where a text is cut is its tokens' business
            assert due.text.startswith(answer.choices[index].text.rstrip("\ufffd")), name
            assert "".join(map(str, due.calls)).startswith("".join(map(str, answer.choices[index].calls))[:-2]), name
            due.text, due.calls = answer.choices[index].text, answer.choices[index].calls
    found = _differences(name, answer, begun)
    assert not found, "\n".join(found)


def _differences(name: str, answer: Answer, expected: Answer) -> list[str]:
    """Say where a request's choices are not those of its twin: of each field, in a line."""
    if answer.choices.keys() != expected.choices.keys():
        return [f"{name}: choices {[*answer.choices]}, not {[*expected.choices]}"]
    found = []
    for index, due in expected.choices.items():
        for each in fields(ChoiceAnswer):
            got, want = getattr(answer.choices[index], each.name), getattr(due, each.name)
            if got != want:
                at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(got, want, strict=False)))
                about = f"{name}, {each.name} of choice {index}, from {at} of {len(want)} on"
                found.append(f"{about}: {got[at : at + 5]!r}, not {want[at : at + 5]!r}")
    return found


def lasted_s(answers: Mapping[str, Answer]) -> float:
    """Seconds from the first request to the end of the last one."""
    return max(each.ended_s for each in answers.values()) - min(each.asked_s for each in answers.values())
