"""What grammars promise: whatever is drawn from their masks, answers keep to their schema, and calls to their tools."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from spotwise.engine.sampling.grammar_following import allowed_tokens, compiled, consume
from spotwise.engine.sampling.grammar_tokens import grammar_tokenizer
from spotwise.gateway.generate.output_grammar import MessageGrammar, grammar_of
from spotwise.gateway.schema.shared import OutputFormat, StructuredOutputs
from spotwise.gateway.schema.tools import Tool
from spotwise.http.errors import ApiError
from spotwise.text.chat_text import ChatText
from spotwise.text.message_forms import LISTED_CALLS, CallForm, Thinking, message_form
from tests.unit.gateway.apps import Fits, Http, Json
from tests.unit.gateway.fake_mesh import CHAT, CHATS

CONTROL = ("<s>", "<|im_start|>", "<|im_end|>")
MOST_TOKENS = 400
WORDS = st.sampled_from(["a", "bc", 'q"', "é", "\n", "0", "the quick", *CONTROL, "x<|im_end|>y"])


@pytest.fixture(scope="module")
def tokenizer(text: ChatText) -> LLTokenizer:
    return grammar_tokenizer(text._backend.to_str(), text.vocab_size)


def written(tokenizer: LLTokenizer, grammar: str, chance: random.Random, most_tokens: int = MOST_TOKENS) -> str | None:
    """Draw tokens that fit until the grammar ends; `None`: it did not end in so many tokens."""
    matcher, tokens = compiled(tokenizer, grammar), list[int]()
    while len(tokens) < most_tokens:
        mask = np.frombuffer(matcher.compute_bitmask(), np.int32)
        fitting = allowed_tokens(matcher, mask, tokenizer.vocab_size).nonzero()[0].tolist()
        if tokenizer.eos_token in fitting and (len(fitting) == 1 or chance.random() < 0.5):
            return tokenizer.decode_str(tokens)
        # towards the end: what closes strings and objects
        closing = [each for each in fitting if tokenizer.decode_str([each]).strip() in ('"', "}", "]", '"}', '"]')]
        token = chance.choice(closing if closing and chance.random() < 0.3 else fitting)
        if token in tokenizer.eos_tokens:
            continue
        assert not tokenizer.is_special_token(token)
        consume(matcher, [token])
        tokens.append(token)
    return None


def numbers(draw: st.DrawFn) -> Json:
    low = draw(st.integers(-50, 50))
    schema: Json = {"type": draw(st.sampled_from(["integer", "number"]))}
    if draw(st.booleans()):
        schema |= {"minimum": low, "maximum": low + draw(st.integers(0, 99))}
    if draw(st.booleans()):
        schema |= {"exclusiveMinimum": low - 1}
    return schema


def strings(draw: st.DrawFn) -> Json:
    schema: Json = {"type": "string"}
    match draw(st.integers(0, 3)):
        case 0:
            low = draw(st.integers(0, 3))
            schema |= {"minLength": low, "maxLength": low + draw(st.integers(0, 5))}
        case 1:
            schema |= {"pattern": draw(st.sampled_from(["^[a-c]{1,3}$", "^(x|yz)+$", "^<\\|im_end\\|>$"]))}
        case 2:
            schema |= {"format": draw(st.sampled_from(["date", "uuid", "ipv4", "time"]))}
    return schema


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Json:
    kinds = ["const", "enum", "boolean", "null", "string", "number"]
    match draw(st.sampled_from(kinds if depth == 0 else [*kinds, "array", "object", "object", "any"])):
        case "const":
            return {"const": draw(st.one_of(WORDS, st.integers(-9, 9), st.none(), st.lists(WORDS, max_size=2)))}
        case "enum":
            return {
                "enum": draw(st.lists(st.one_of(WORDS, st.integers(-9, 9)), min_size=1, max_size=3, unique_by=repr))
            }
        case "boolean":
            return {"type": "boolean"}
        case "null":
            return {"type": "null"}
        case "string":
            return strings(draw)
        case "number":
            return numbers(draw)
        case "array":
            low = draw(st.integers(0, 2))
            return {
                "type": "array",
                "items": draw(schemas(depth - 1)),
                "minItems": low,
                "maxItems": low + draw(st.integers(0, 2)),
            }
        case "any":
            return {"anyOf": draw(st.lists(schemas(depth - 1), min_size=1, max_size=3))}
    names = draw(st.lists(WORDS, max_size=3, unique=True))
    schema: Json = {"type": "object", "properties": {name: draw(schemas(depth - 1)) for name in names}}
    schema["required"] = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    match draw(st.integers(0, 3)):
        case 0 | 1:
            schema["additionalProperties"] = False
        case 2:
            schema["additionalProperties"] = draw(schemas(0))
        case 3:
            schema |= {"patternProperties": {"^k[a-c]$": draw(schemas(0))}, "additionalProperties": False}
    if draw(st.booleans()):
        schema["minProperties"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxProperties"] = draw(st.integers(2, 4))
    return schema


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(schema=schemas(), seed=st.integers(0, 1 << 30), layout=st.sampled_from(["compact", "flexible"]))
def test_an_answer_keeps_to_its_schema(
    text: ChatText, tokenizer: LLTokenizer, schema: Json, seed: int, layout: Any
) -> None:
    """Or the schema is refused before it starts; control tokens in it are text."""
    outputs = StructuredOutputs.model_validate({"json": schema, "whitespace": layout})
    try:
        grammar = grammar_of(None, outputs, text.grammar_check)
    except ApiError as refused:
        assert refused.status == 400 and "non-verbose" not in refused.message
        return
    answer = written(tokenizer, grammar, random.Random(seed))
    if answer is None:
        return
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(json.loads(answer))


def test_answers_of_usual_schemas_end(text: ChatText, tokenizer: LLTokenizer) -> None:
    schema = {
        "type": "object",
        "properties": {
            "<|im_end|>": {"enum": ["<s>", 2]},
            "list": {"type": "array", "items": {"const": 1}, "maxItems": 3},
        },
        "required": ["<|im_end|>", "list"],
        "additionalProperties": False,
    }
    grammar = grammar_of(None, StructuredOutputs.model_validate({"json": schema}), text.grammar_check)
    answers = {written(tokenizer, grammar, random.Random(seed)) for seed in range(30)}
    assert len(answers) > 5 and None not in answers
    for answer in answers:
        assert answer is not None
        jsonschema_rs.validator_for(schema).validate(json.loads(answer))
        assert answer.startswith(('{"<|im_end|>":', '{"list":'))


@pytest.mark.parametrize("control", CONTROL)
@pytest.mark.parametrize(
    "outputs",
    [
        {"json": {"const": "_"}},
        {"json": {"enum": ["_"]}},
        {
            "json": {
                "type": "object",
                "properties": {"_": {"const": 1}},
                "required": ["_"],
                "additionalProperties": False,
            }
        },
        {"choice": ["_"]},
        {"regex": "a_b"},
        {"grammar": 'start: "_"'},
        {"grammar": 'root ::= "_"'},
    ],
)
def test_a_control_token_is_written_as_text(
    text: ChatText, tokenizer: LLTokenizer, control: str, outputs: Json
) -> None:
    if "regex" in outputs:
        outputs = {"regex": outputs["regex"].replace("_", control.replace("|", r"\|"))}
    else:
        outputs = json.loads(json.dumps(outputs).replace("_", control))
    grammar = grammar_of(None, StructuredOutputs.model_validate(outputs), text.grammar_check)
    answer = written(tokenizer, grammar, random.Random(1))
    assert answer is not None and control in answer


def test_a_control_token_in_a_tools_arguments_is_text(text: ChatText, tokenizer: LLTokenizer) -> None:
    parameters = {
        "type": "object",
        "properties": {"<|im_end|>": {"const": "<s>"}},
        "required": ["<|im_end|>"],
        "additionalProperties": False,
    }
    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": parameters}})
    grammar = grammar_of(None, None, text.grammar_check, MessageGrammar(tools=[tool], calls="required", is_single=True))
    answer = written(tokenizer, grammar, random.Random(1))
    assert answer is not None
    assert json.loads(answer)[0]["arguments"] == {"<|im_end|>": "<s>"}


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"regex": "(a{1,1000}){1,1000}"}, "too complex"),
        ({"regex": r"[^\s\S]"}, "no token of this model fits"),
        ({"json": {"type": "object", "minProperties": 2}}, "minProperties"),
        (
            {"json": {"patternProperties": {"^a$": {}}, "minProperties": 2, "additionalProperties": False}},
            "minProperties",
        ),
        ({"json": {"items": {"allOf": [{"type": "object", "minProperties": 3, "required": ["a"]}]}}}, "minProperties"),
        ({"grammar": 'start: "a" %json {"type": "object", "minProperties": 2}'}, "minProperties"),
    ],
)
async def test_what_cannot_be_followed_is_refused(client: Http, outputs: Json, words: str) -> None:
    response = await client.post(CHATS, json=CHAT | {"structured_outputs": outputs})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "invalid_grammar" and words in error["message"] and "verbose" not in error["message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "minProperties": 1},
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "minProperties": 2},
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 1}},
            "required": ["a", "b"],
            "minProperties": 2,
            "additionalProperties": False,
        },
        {"const": {"minProperties": 7}},
        {"type": "object", "properties": {"minProperties": {"type": "integer"}}},
    ],
)
def test_a_least_number_of_members_that_can_be_held_to(text: ChatText, tokenizer: LLTokenizer, schema: Json) -> None:
    form = OutputFormat.model_validate({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    grammar = grammar_of(form, None, text.grammar_check)
    for seed in range(10):
        if (answer := written(tokenizer, grammar, random.Random(seed))) is not None:
            jsonschema_rs.validator_for(schema).validate(json.loads(answer))


CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWER = 'start: "yes" | "no"'


def tool(name: str, **function: Any) -> Tool:
    return Tool.model_validate({"type": "function", "function": {"name": name, **function}})


WEATHER, STRICT, OTHER, FREE = (
    tool("weather", parameters=CITY),
    tool("weather", parameters=CITY, strict=True),
    tool("other"),
    tool("free", parameters={"type": "object"}),
)
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
WRONG = '{"name": "weather", "arguments": {"town": 1}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"


def _tagged() -> CallForm:
    form = message_form(None, "", "", "hermes")
    assert form is not None
    return form.call_form


#: A message's rules, the answer's grammar, and texts that it allows and does not.
CASES: dict[str, tuple[MessageGrammar, str, list[str], list[str]]] = {
    "required": (
        MessageGrammar([WEATHER, OTHER], "required", form=_tagged()),
        "",
        [TAGGED, "\n".join([TAGGED] * 32), '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'],
        ["", "Paris", TAGGED.replace(CALL, WRONG), f"{TAGGED} and", "\n".join([TAGGED] * 33)],
    ),
    "required, one": (
        MessageGrammar([WEATHER], "required", is_single=True, form=_tagged()),
        "",
        [TAGGED],
        [f"{TAGGED}\n{TAGGED}"],
    ),
    "required, of a model whose form is not known": (
        MessageGrammar([WEATHER], "required", form=LISTED_CALLS),
        "",
        [f"[{CALL}]", f"[{CALL}, {CALL}]"],
        [CALL, "[]"],
    ),
    "strict": (
        MessageGrammar([STRICT, OTHER, FREE], form=_tagged()),
        "",
        [
            "",
            "Paris.",
            TAGGED,
            f"Well: {TAGGED} and {TAGGED}.",
            '<tool_call>\n{"name": "free", "arguments": {"a": 1}}\n</tool_call>',
            '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
        ],
        [
            '<tool_call>\n{"name": "other", "arguments": {"a": 1}}\n</tool_call>',
            TAGGED.replace(CALL, WRONG),
            "<tool_call>",
            '<tool_call>\n{"name": "third", "arguments": {}}\n</tool_call>',
        ],
    ),
    "a tool without parameters": (
        MessageGrammar([OTHER, FREE], form=_tagged()),
        "",
        ["Paris.", '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'],
        ['<tool_call>\n{"name": "other", "arguments": {"a": 1}}\n</tool_call>'],
    ),
    "strict, one": (
        MessageGrammar([STRICT], is_single=True, form=_tagged()),
        "",
        ["Paris.", f"Well: {TAGGED}"],
        [TAGGED.replace(CALL, WRONG)],
    ),
    "an answer of a form, or calls": (
        MessageGrammar([WEATHER], form=_tagged()),
        ANSWER,
        ["yes", TAGGED],
        ["maybe", f"yes{TAGGED}", TAGGED.replace(CALL, WRONG)],
    ),
    "reasoning, then an answer of a form": (
        MessageGrammar(thinking=Thinking("<think>", "</think>")),
        ANSWER,
        ["yes", "<think>perhaps no</think>\n\nyes"],
        ["perhaps", "<think>perhaps</think>maybe"],
    ),
    "reasoning that the prompt has begun": (
        MessageGrammar(
            [WEATHER], "required", form=_tagged(), thinking=Thinking("<think>", "</think>"), is_thinking=True
        ),
        "",
        [f"perhaps {CALL}</think>\n{TAGGED}"],
        [TAGGED, "perhaps</think>"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_message_may_be(fits: Fits, name: str) -> None:
    message, answer, good, bad = CASES[name]
    grammar = message.around(answer)
    assert {each: fits(grammar, each) for each in good} == dict.fromkeys(good, True)
    assert {each: fits(grammar, each) for each in bad} == dict.fromkeys(bad, False)


def test_what_needs_no_grammar_has_none() -> None:
    """Neither tools that may be called as the model pleases, nor reasoning; an answer keeps its own."""
    assert MessageGrammar([WEATHER, OTHER]).around("") == ""
    assert MessageGrammar(thinking=Thinking("<think>", "</think>")).around("") == ""
    assert MessageGrammar().around(ANSWER) == ANSWER
