"""From what a text has to look like to the grammar that engines follow; what none of them could follow is refused here.

It is compiled for the model's own tokens and followed for a while, by the code of an engine, so that a grammar which is wrong
or too complex is a 400 and never reaches a batch.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher, grammar_from

from spotwise.gateway.generate.tool_grammar import ANY_MESSAGE, COMPACT, JSON_BLANKS, MessageGrammar
from spotwise.gateway.schema.output import OutputFormat, StructuredOutputs, Whitespace
from spotwise.http.errors import ApiError, bad_request
from spotwise.text.grammar_check import GrammarCheck

#: It travels with every choice's record.
MAX_GRAMMAR_BYTES = 128 << 10
_ANY_OBJECT = {"type": "object"}


def grammar_of(
    response_format: OutputFormat | None,
    structured_outputs: StructuredOutputs | None,
    check: GrammarCheck,
    message: MessageGrammar = ANY_MESSAGE,
) -> str:
    """Return the grammar of a request's output; empty where any text will do.

    Args:
        response_format, structured_outputs: what its answer has to look like.
        check: of the model's tokens.
        message: the calls and the reasoning beside the answer.

    Raises:
        ApiError: 400, naming the parameter at fault.
    """
    of_format = _of_format(response_format)
    if structured_outputs is None:
        grammar, param = of_format
    elif of_format[0]:
        raise bad_request(
            "'response_format' and 'structured_outputs' exclude each other.", "structured_outputs", "invalid_value"
        )
    else:
        grammar, param = _of_outputs(structured_outputs)
    grammar = message.around(grammar)
    if not grammar:
        return ""
    if message.tools:
        param = "tools"
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise _refused(param, f"it has more than {MAX_GRAMMAR_BYTES} bytes")
    if problem := check.problem(grammar):
        raise _refused(param, problem)
    return grammar


def is_json(response_format: OutputFormat | None, structured_outputs: StructuredOutputs | None) -> bool:
    """Whether a request's answer is to be one JSON value."""
    if structured_outputs is not None:
        return structured_outputs.json_ is not None or bool(structured_outputs.json_object)
    return response_format is not None and response_format.type != "text"


def _of_format(response_format: OutputFormat | None) -> tuple[str, str]:
    if response_format is None or response_format.type == "text":
        return "", "response_format"
    given = response_format.json_schema
    layout = _layout(response_format.whitespace)
    if response_format.type == "json_object" or given is None or given.schema_ is None:
        return _of_schema(_ANY_OBJECT, "response_format", layout)
    return _of_schema(given.schema_, "response_format.json_schema.schema", layout)


def _layout(whitespace: Whitespace | None) -> dict[str, Any]:
    """Return how llguidance lays JSON out."""
    return {"whitespace_pattern": JSON_BLANKS} if whitespace == "flexible" else COMPACT


def _of_outputs(given: StructuredOutputs) -> tuple[str, str]:
    options = _layout(given.whitespace)
    if given.whitespace_pattern is not None:
        options = {"whitespace_pattern": given.whitespace_pattern}
    if given.disable_any_whitespace:
        options = {"whitespace_flexible": False}
    if given.json_object:
        return _of_schema(_ANY_OBJECT, "structured_outputs.json_object", options)
    if given.json_ is not None:
        return _of_schema(given.json_, "structured_outputs.json", options)
    if given.regex is not None:
        return LLMatcher.grammar_from_regex(given.regex), "structured_outputs.regex"
    if given.choice is not None:
        return grammar_from("choice", json.dumps(given.choice)), "structured_outputs.choice"
    assert given.grammar is not None
    try:
        return grammar_from("grammar", given.grammar), "structured_outputs.grammar"
    except ValueError as error:
        raise _refused("structured_outputs.grammar", str(error)) from error


def _of_schema(schema: Any, param: str, options: dict[str, Any]) -> tuple[str, str]:
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=options), param  # type: ignore[arg-type]
    except ValueError as error:
        raise _refused(param, str(error)) from error


def _refused(param: str, problem: str) -> ApiError:
    return bad_request(f"Invalid value for '{param}': {problem.strip()}", param, "invalid_grammar")
