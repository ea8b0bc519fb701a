"""What a model may write where its calls follow a grammar, tried token by token."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from spotwise.gateway.generate.output_grammar import MessageGrammar
from spotwise.gateway.schema.tools import Tool
from spotwise.text.chat_text import ChatText
from spotwise.text.message_forms import LISTED_CALLS, CallForm, Thinking, message_form

CITY: dict[str, Any] = {
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


@pytest.fixture(scope="module")
def tokenizer(text: ChatText) -> LLTokenizer:
    return LLTokenizer(text._backend.to_str(), n_vocab=text.vocab_size)


def fits(tokenizer: LLTokenizer, grammar: str, written: str) -> bool:
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(written)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


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
def test_what_a_message_may_be(tokenizer: LLTokenizer, name: str) -> None:
    message, answer, good, bad = CASES[name]
    grammar = message.around(answer)
    assert {each: fits(tokenizer, grammar, each) for each in good} == dict.fromkeys(good, True)
    assert {each: fits(tokenizer, grammar, each) for each in bad} == dict.fromkeys(bad, False)


def test_what_needs_no_grammar_has_none() -> None:
    """Neither tools that may be called as the model pleases, nor reasoning; an answer keeps its own."""
    assert MessageGrammar([WEATHER, OTHER]).around("") == ""
    assert MessageGrammar(thinking=Thinking("<think>", "</think>")).around("") == ""
    assert MessageGrammar().around(ANSWER) == ANSWER
