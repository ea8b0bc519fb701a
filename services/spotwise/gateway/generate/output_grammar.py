"""The grammars that engines follow: of a text's required form, and of messages with calls and reasoning.

Where some tools alone are allowed, no other can be called. A call that is required, of a named function, of a strict tool, or
of one that takes no arguments follows its schema. Grammars are llguidance's, composed of the answer's own
(output_grammar.py) and one for the arguments of each function.

It is compiled for the model's own tokens and followed for a while, by the code of an engine, so that a grammar which is wrong
or too complex is a 400 and never reaches a batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llguidance import LLMatcher, grammar_from

from spotwise.gateway.schema.shared import OutputFormat, StructuredOutputs, Whitespace
from spotwise.gateway.schema.tools import Tool
from spotwise.http.errors import ApiError, bad_request
from spotwise.text.grammar_check import GrammarCheck
from spotwise.text.message_forms import LISTED_CALLS, CallForm, Thinking

_ANY_TEXT = "/(.|\\n)*/"
#: Between a thought and the message.
_BLANKS = "/[ \\t\\r\\n]{0,8}/"
_ANSWER = "answer"
#: Of a message that has to call: a small model would repeat its call until its length ends.
MAX_CALLS = 32
#: How llguidance lays JSON out, as models write it, in one line: with room for blanks a small one would write nothing else.
COMPACT: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
#: Between the tokens of JSON of any layout: no room for a model that writes blanks for ever.
JSON_BLANKS = "[ \\t\\n\\r]{1,32}"


@dataclass(frozen=True, slots=True)
class MessageGrammar:
    """What a message has to look like.

    Attributes:
        tools: tools that may be called.
        calls: `required`, or where the model pleases (`auto`); with no tools there are none.
        is_single: one call at most.
        is_partial: the model knows of other tools, which it must not call.
        form: how calls are written.
        thinking: how the model begins and ends its reasoning, which comes first; `None` where it does not think.
        is_thinking: the prompt has begun the reasoning.
    """

    tools: Sequence[Tool] = ()
    calls: Literal["auto", "required"] = "auto"
    is_single: bool = False
    is_partial: bool = False
    form: CallForm = LISTED_CALLS
    thinking: Thinking | None = None
    is_thinking: bool = False

    def around(self, answer: str) -> str:
        """Return the grammar of a message whose answer has a grammar, or may be any text (empty); empty allows any message."""
        is_required = bool(self.tools) and self.calls == "required"
        is_strict = self.is_partial or any(
            tool.function.strict or (self.form.trigger and not tool.function.parameters) for tool in self.tools
        )
        if not (answer or is_required or is_strict):
            return ""
        if not self.tools and self.thinking is None:
            return answer
        grammars = [
            *(_parts_of(answer) if answer else ()),
            *(_arguments(*each, free=not (is_required or answer)) for each in enumerate(self.tools)),
        ]
        rules = ""
        if is_required:
            message, rules = "calls", self._calls()
        elif answer and self.tools:
            message, rules = f"@{_ANSWER} | calls", self._calls()
        elif answer:
            message = f"@{_ANSWER}"
        else:
            message, rules = f"(trigger tail){'?' if self.is_single else '*'} TEXT", self._calls_in_text()
        lark = f"start: {self._start()}\nmessage: {message}\n{rules}"
        if self.thinking is not None:
            lark += f"thought[lazy]: {_ANY_TEXT} {json.dumps(self.thinking.closing)}\n"
        return json.dumps({"grammars": [{"name": "message", "lark_grammar": lark}, *grammars]})

    def _start(self) -> str:
        if self.thinking is None:
            return "message"
        thought = f"thought {_BLANKS} message"
        return thought if self.is_thinking else f"message | {json.dumps(self.thinking.opening)} {thought}"

    def _calls(self) -> str:
        """Return the rules of a message that is nothing but calls."""
        form = self.form
        more = "" if self.is_single else f" ({json.dumps(form.separator)} call){{0,{MAX_CALLS - 1}}}"
        calls = f"calls: {_text(form.before)} call{more} {_text(form.after)}\n"
        return calls + self._alternatives("call", form.opening)

    def _calls_in_text(self) -> str:
        """Return the rules of calls that stand in any text: after the trigger only a call can follow."""
        trigger = f"trigger[lazy]: {_ANY_TEXT} {json.dumps(self.form.trigger)}\nTEXT: {_ANY_TEXT}\n"
        return trigger + self._alternatives("tail", self.form.opening.removeprefix(self.form.trigger))

    def _alternatives(self, name: str, opening: str) -> str:
        rules = [f"{name}: {' | '.join(f'{name}_{index}' for index in range(len(self.tools)))}\n"]
        for index, tool in enumerate(self.tools):
            head = f'{opening}{{"name": {json.dumps(tool.function.name)}, "{self.form.arguments_key}": '
            tail = json.dumps("}" + self.form.closing)
            rules.append(f"{name}_{index}: {json.dumps(head)} @arguments_{index} {tail}\n")
        return "".join(rules)


#: Of models that do not think, without tools.
ANY_MESSAGE = MessageGrammar()


def _text(words: str) -> str:
    return json.dumps(words) if words else ""


def _parts_of(grammar: str) -> list[dict[str, Any]]:
    """Return the grammars that a grammar of llguidance consists of, the first of them under the name of the answer."""
    if not grammar.startswith("{"):
        return [{"name": _ANSWER, "lark_grammar": grammar}]
    first, *others = json.loads(grammar)["grammars"]
    return [first | {"name": _ANSWER}, *others]


def _arguments(index: int, tool: Tool, *, free: bool) -> dict[str, Any]:
    is_free = free and not tool.function.strict and bool(tool.function.parameters)
    schema = {"type": "object"} if is_free else tool.function.schema_of_arguments
    return {
        "name": f"arguments_{index}",
        "json_schema": schema | {"x-guidance": COMPACT},
    }


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
        check: checks grammars against the model's tokens.
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
