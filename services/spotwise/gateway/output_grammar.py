"""From what a text has to look like to the grammar that engines follow; what none of them could follow is refused here.

It is compiled for the model's own tokens and followed for a while, by the code of an engine, so that a grammar which is wrong
or too complex is a 400 and never reaches a batch.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

from llguidance import LLMatcher, LLTokenizer, grammar_from

from spotwise.engine.grammar_following import trial_problem
from spotwise.gateway.errors import ApiError, bad_request
from spotwise.gateway.grammar_schemas import promises_problem
from spotwise.gateway.long_work import begin_long_work
from spotwise.gateway.multiples import multiples_problem
from spotwise.gateway.schema_output import OutputFormat, StructuredOutputs, Whitespace
from spotwise.gateway.tool_grammar import ANY_MESSAGE, COMPACT, JSON_BLANKS, MessageGrammar

#: It travels with every choice's record.
MAX_GRAMMAR_BYTES = 128 << 10
#: Verdicts on grammars that are remembered: requests with the same schema follow one another.
_KEPT_VERDICTS = 256
_ANY_OBJECT = {"type": "object"}


class GrammarCheck:
    """Tries grammars with a model's tokens, on no event loop.

    Args:
        load: the model's tokens, on first use.
    """

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._loading, self._remembering = Lock(), Lock()
        self._tokenizer: LLTokenizer | None = None
        #: By the grammar's digest: grammars may be large.
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    def problem(self, grammar: str) -> str:
        """Return why a grammar cannot be followed; empty where it can.

        Raises:
            LongWorkError: it is not known, and may not be tried here.
        """
        digest = hashlib.blake2b(grammar.encode(), digest_size=32).digest()
        with self._remembering:
            if (known := self._verdicts.get(digest)) is not None:
                self._verdicts.move_to_end(digest)
                return known
        begin_long_work()
        found = self._problem(grammar)
        with self._remembering:
            self._verdicts[digest] = found
            if len(self._verdicts) > _KEPT_VERDICTS:
                self._verdicts.popitem(last=False)
        return found

    def _problem(self, grammar: str) -> str:
        if problem := multiples_problem(grammar) or promises_problem(grammar):
            return problem
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._load()
        return trial_problem(self._tokenizer, grammar)


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
