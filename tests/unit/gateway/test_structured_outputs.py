"""`response_format` and `structured_outputs`: the grammars that engines get, what is refused, and answers that are cut."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import tracemalloc
from typing import Any

import pytest
from llguidance import LLMatcher

from spotwise.gateway.generate.choice import WrittenJson
from spotwise.text.chat_text import ChatText
from spotwise.text.grammar_check import GrammarCheck
from spotwise.text.message_reader import MessagePart
from tests.unit.gateway.apps import Encode, Fits, Http, Json, data_of
from tests.unit.gateway.fake_mesh import BOTH, CHAT, CHATS, COMPLETION, COMPLETIONS, RESPONSE, FakeMesh

SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
GOOD = '{"city": "Pécs", "degrees": 21}'
LARK = 'start: "a" start "b" | "x"'
GBNF = 'root ::= "a" root "b" | "x"'


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        (
            {"response_format": {"type": "json_object", "whitespace": "flexible"}},
            ["{}", GOOD, '{"a": [1, {}]}', "{\n\t" + 30 * " " + '"a":\r\n1}'],
            ["[]", "x", '"a"', "{" + 33 * " " + "}"],
        ),
        (
            {"response_format": {"type": "json_object"}},
            ["{}", GOOD, '{"a":[1, {}],"b": 2}'],
            ["[]", '{ "a":1}', '{"a" :1}', '{"a":  1}', '{"a":\n1}', '{"a":1 }', "{}\n"],
        ),
        ({"structured_outputs": {"json": SCHEMA, "whitespace": "flexible"}}, [GOOD.replace(" ", "\n\n")], ["{}"]),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}},
            [GOOD, GOOD.replace(" ", "")],
            ["{}", GOOD.replace(" ", "  ")],
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "w"}}}, ["{}", GOOD], ["1"]),
        ({"structured_outputs": {"json": SCHEMA}}, [GOOD], ["{}"]),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, [GOOD], ["{}"]),
        ({"structured_outputs": {"json": {}}}, ["1", GOOD], ["x"]),
        ({"structured_outputs": {"json_object": True}}, ["{}"], ["1"]),
        ({"structured_outputs": {"regex": "[0-9]{2}(-[a-z]+)?"}}, ["12", "12-ab"], ["1", "12-"]),
        ({"structured_outputs": {"choice": ["yes", "no", 'may "be"']}}, ["yes", "no", 'may "be"'], ["ye", "yesno"]),
        ({"structured_outputs": {"grammar": LARK}}, ["x", "aaxbb"], ["ax", ""]),
        ({"structured_outputs": {"grammar": GBNF}}, ["x", "aaxbb"], ["ax", ""]),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, [GOOD.replace(" ", "")], [GOOD]),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "_"}}, [GOOD.replace(" ", "_")], [GOOD]),
    ],
)
@pytest.mark.parametrize("path", BOTH)
async def test_what_a_text_has_to_look_like(
    client: Http, mesh: FakeMesh, fits: Fits, path: str, asked: Json, good: list[str], bad: list[str]
) -> None:
    response = await client.post(path, json=BOTH[path] | asked | {"n": 2})
    assert response.status_code == 200, response.text
    assert len(mesh.specs) == 2
    (grammar,) = {spec.sampling.grammar for spec in mesh.specs.values()}
    assert [fits(grammar, each) for each in good] == [True] * len(good)
    assert [fits(grammar, each) for each in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    "asked", [{}, {"response_format": {"type": "text", "json_schema": None}}, {"response_format": None}]
)
async def test_any_text_has_no_grammar(client: Http, mesh: FakeMesh, asked: Json) -> None:
    assert (await client.post(CHATS, json=CHAT | asked)).status_code == 200
    assert mesh.spec.sampling.grammar == ""


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "text"}, "response_format"),
        ({"response_format": {"type": "structural_tag", "structures": [], "triggers": []}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "foo"}}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"json": {"type": "string", "format": "unheard-of"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[" * 60_000}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "(a|b"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"grammar": 'root ::= "a'}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice.0"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"guided_regex": "a"}, "guided_regex"),
    ],
)
async def test_what_cannot_be_followed_is_refused(client: Http, mesh: FakeMesh, asked: Json, param: str) -> None:
    """400, naming the parameter; nothing reaches the mesh."""
    response = await client.post(CHATS, json=CHAT | asked)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert not mesh.specs


HOSTILE = [
    {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    {"regex": "(.*a){1,400}" + "b?" * 3000},
    {"regex": "|".join(f"(x{{{number}}}y*)+" for number in range(2000))},
    {"grammar": "start: " + "a " * 20_000 + "\na: start | "},
    {"json": {"anyOf": [{"type": "object", "properties": {f"p{n}": {"$ref": "#"}}} for n in range(1000)]}},
    {"json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 10**9}},
    {"json": {"type": "string", "pattern": "(a+)+$", "maxLength": 10**9}},
    {"choice": ["a" * 4000 + str(number) for number in range(1000)]},
]


@pytest.mark.parametrize("asked", HOSTILE, ids=lambda asked: str(asked)[:40])
async def test_costly_grammars_hold_up_nobody(client: Http, monkeypatch: pytest.MonkeyPatch, asked: Json) -> None:
    """They are compiled, or refused, in a thread, however short their bodies are."""
    threads: list[threading.Thread] = []
    tried = GrammarCheck._problem

    def problem(self: GrammarCheck, grammar: str) -> str:
        threads.append(threading.current_thread())
        return tried(self, grammar)

    monkeypatch.setattr(GrammarCheck, "_problem", problem)
    response = await client.post(CHATS, json=CHAT | {"structured_outputs": asked})
    assert response.status_code in (200, 400), response.text
    assert threading.main_thread() not in threads


#: Each has a grammar, whose member's name is written with an escape in its place of `_`, or stands inside others.
GRAMMARS = [
    (COMPLETIONS, COMPLETION | {"structured_outputs": {"regex": "REGEX"}}),
    (CHATS, CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "REGEX", "schema": {}}}}),
    ("/v1/responses", RESPONSE | {"text": {"format": {"type": "json_object"}}}),
    ("/v1/messages", CHAT | {"max_tokens": 8, "output_config": {"format": {"type": "json_schema", "schema": {}}}}),
]


@pytest.mark.parametrize(("path", "body"), GRAMMARS, ids=[path for path, _ in GRAMMARS])
@pytest.mark.parametrize("is_escaped", [False, True])
async def test_no_spelling_brings_a_grammar_onto_the_loop(
    client: Http, text: ChatText, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, is_escaped: bool
) -> None:
    """Whether a body has one is judged on what it means, not on its bytes, of which a member's name may have escapes."""
    threads: list[threading.Thread] = []

    def problem(grammar: str) -> str:
        threads.append(threading.current_thread())
        return ""

    text.grammar_check._verdicts.clear()
    monkeypatch.setattr(text.grammar_check, "_problem", problem)
    content = json.dumps(body)
    if is_escaped:
        content = re.sub('"(structured|response|output)_', r'"\1\\u005f', content).replace('"format"', '"f\\u006frmat"')
        assert "\\u" in content and json.loads(content) == body
    response = await client.post(path, content=content)
    assert response.status_code == 200, response.text
    assert len(threads) == 1 and threads[0] is not threading.main_thread()
    text.grammar_check._verdicts.clear()


def _integer(multiple: float) -> Json:
    return {"type": "integer", "multipleOf": multiple}


@pytest.mark.parametrize(
    "asked",
    [
        {"json": _integer(4_294_967_295)},
        {"json": {"type": "number", "multipleOf": 999.983}},
        {"json": _integer(299_999)},
        {"json": {"allOf": [_integer(9_973), _integer(9_967)]}},
        {"json": {"$ref": "#/$defs/a", "$defs": {"a": _integer(9_973)}, "multipleOf": 9_967}},
        {"json": {"type": "object", "properties": {f"p{number}": _integer(49_999) for number in range(20)}}},
        {"json": '{"type": "integer", "\\u006dultipleOf": 9999991, "multipleOf": 9999991}'},
        {"grammar": "start: number\nnumber: %json " + json.dumps(_integer(9_999_991))},
    ],
)
async def test_multiples_that_take_minutes_to_compile_are_refused_at_once(client: Http, asked: Json) -> None:
    """Of a number, of several that hold together, and of many; wherever a schema may be."""
    async with asyncio.timeout(1.0):
        response = await client.post(CHATS, json=CHAT | {"structured_outputs": asked})
    assert response.status_code == 400
    assert "multipleOf" in response.json()["error"]["message"]


@pytest.mark.parametrize("multiples", [[0.01, 5, 1000], [7], [0.25, 0.5], [10] * 50, [86_400, 3_600]])
async def test_usual_multiples_are_followed(client: Http, multiples: list[float]) -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"multipleOf": each} for n, each in enumerate(multiples)}}
    response = await client.post(CHATS, json=CHAT | {"structured_outputs": {"json": schema}})
    assert response.status_code == 200, response.text


async def test_a_grammar_that_is_sent_again_is_not_tried_again(
    client: Http, text: ChatText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests with the same schema follow one another."""
    tried: list[str] = []
    try_it = text.grammar_check._problem

    def noted(grammar: str) -> str:
        tried.append(grammar)
        return try_it(grammar)

    monkeypatch.setattr(text.grammar_check, "_problem", noted)
    for regex in ("[ab]+c", "[ab]+d", "[ab]+c", "[ab]+c"):
        await client.post(CHATS, json=CHAT | {"structured_outputs": {"regex": regex}})
    assert len(tried) == 2


def test_a_verdict_holds_no_grammar() -> None:
    """A tenant that sends large ones, each another, would have a gateway hold all of them."""
    check = GrammarCheck(lambda: pytest.fail("each is refused before"))
    schemas = (json.dumps(_integer(9_999_991 + number) | {"title": "x" * 100_000}) for number in range(100))
    tracemalloc.start()
    try:
        for schema in schemas:
            assert "multipleOf" in check.problem(LLMatcher.grammar_from_json_schema(schema))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1 << 20


async def test_a_grammars_size_is_counted_in_bytes(client: Http) -> None:
    response = await client.post(CHATS, json=CHAT | {"structured_outputs": {"json": {"const": "\U0001f680" * 40_000}}})
    assert response.status_code == 400
    assert "bytes" in response.json()["error"]["message"]


JSON = {"response_format": {"type": "json_object"}}
CUT = {"reason": "max_output_tokens"}
#: More digits than Python makes an integer of, and half of a surrogate pair.
ODD = '{"a": ' + 5000 * "7" + ', "b": "\\ud800"}'


async def last_choice(client: Http, path: str, body: Json, *, stream: bool) -> Json:
    response = await client.post(path, json=body | {"stream": stream})
    assert response.status_code == 200, response.text
    last: Json = data_of(response.text)[-1] if stream else response.json()
    return dict(last["choices"][0])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    ("asked", "written", "is_cut"),
    [
        (JSON, '{"city": "P', True),
        (JSON, '{"city": "Pest", "degrees": 2', True),
        (JSON, "", True),
        (JSON, '{"city": "Pest"}', False),
        ({"structured_outputs": {"json": {"type": "object"}}}, '{"city', True),
        ({"structured_outputs": {"json_object": True}}, '{"city', True),
        ({"structured_outputs": {"regex": ".*"}}, '{"city', False),
        ({"response_format": {"type": "text"}}, '{"city', False),
        ({}, '{"city', False),
    ],
)
async def test_a_cut_answer_says_so(
    client: Http, mesh: FakeMesh, encode: Encode, path: str, stream: bool, asked: Json, written: str, is_cut: bool
) -> None:
    """At the bound, where the value lacks its end; one that ends there is whole."""
    mesh.reply = encode(written)
    choice = await last_choice(client, path, BOTH[path] | asked, stream=stream)
    assert choice["finish_reason"] == "length"
    assert choice.get("incomplete_details") == (CUT if is_cut else None)


async def test_an_echo_is_no_part_of_the_value(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """What the model wrote is the value, and not the prompt before it."""
    mesh.reply = encode('{"a": 1}')
    choice = await last_choice(client, COMPLETIONS, COMPLETION | JSON | {"echo": True}, stream=False)
    assert choice["finish_reason"] == "length" and "incomplete_details" not in choice


def test_the_value_may_be_odd() -> None:
    """Numbers of any size, and half of a surrogate pair, are JSON; so is no answer while its calls are what is wanted."""
    written = WrittenJson(is_answer=True)
    assert written.is_open
    written.add([MessagePart("reasoning", "{"), MessagePart("content", ODD[:4000])])
    assert written.is_open
    written.add([MessagePart("content", ODD[4000:])])
    assert not written.is_open
    calls = WrittenJson(is_answer=False)
    calls.add([MessagePart("content", "It is")])
    assert not calls.is_open


def test_a_deeply_nested_value_is_open() -> None:
    """Deeper than Python's parser goes; such an answer ends at its bound, and in no error."""
    written = WrittenJson(is_answer=True)
    written.add([MessagePart("content", 100_000 * "[")])
    assert written.is_open
