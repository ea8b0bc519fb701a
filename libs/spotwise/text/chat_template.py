"""A model's chat template: from messages, tools and wishes of how to think and write to the text of a prompt.

Templates have no common names. A wish reaches the template under the names that it reads, and is ignored where it reads none.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from jinja2 import TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerFast

from spotwise.text.message_texts import (
    TEMPLATE_ERRORS,
    as_parts,
    render_whole,
    render_with_calls,
    with_text,
    with_tools_as_text,
)


class _Generation(Extension):
    """The tag `generation` of transformers, which marks what the model writes in a template for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def variables_of(source: str) -> frozenset[str]:
    """Return the names that a template reads and does not set; none of a template that is wrong, which rendering says."""
    environment = ImmutableSandboxedEnvironment(extensions=[_Generation, loopcontrols])
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(source)))
    except TemplateSyntaxError:
        return frozenset()


#: What clients call efforts, the least first. A template may take some of them only.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EFFORT, _VERBOSITY, _BUDGET = "reasoning_effort", "verbosity", "thinking_budget"
#: Names of a template's switch of thinking.
_SWITCHES = ("enable_thinking", "thinking")
#: Verbosity of an answer that nothing is wished of.
_USUAL_VERBOSITY = "medium"


class WishedTemplate(Protocol):
    """A chat template, as wishes see it.

    Attributes:
        variables: names that it reads.
        efforts: values of `reasoning_effort` that it takes.
    """

    variables: frozenset[str]
    efforts: tuple[str, ...]


def wished_variables(
    effort: str | None, verbosity: str | None, template: WishedTemplate, *, is_thinker: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the template's variables for an effort and a verbosity, and the names of those that it has none for.

    Args:
        effort: one of `EFFORTS`; the nearest that the template takes is given, and any other text is ignored. A template
            that only switches thinking on or off does so.
        verbosity: given as it is.
        template: the model's chat template.
        is_thinker: the model's thinking is known to be split off.
    """
    variables = dict[str, Any]()
    ignored = list[str]()
    if effort is not None:
        found = _of_effort(effort, template)
        variables |= found
        if not found and (is_thinker or effort != "none"):
            ignored.append(_EFFORT)
    if verbosity is not None:
        if _VERBOSITY in template.variables:
            variables[_VERBOSITY] = verbosity
        elif verbosity != _USUAL_VERBOSITY:
            ignored.append(_VERBOSITY)
    return variables, ignored


def thinking_variables(
    template: WishedTemplate, *, enabled: bool, budget_tokens: int | None = None
) -> Mapping[str, bool | int]:
    """Return the template's variables that switch thinking on, for so many tokens at most, or off; none where it has none."""
    variables: dict[str, bool | int] = {name: enabled for name in _SWITCHES if name in template.variables}
    if enabled and budget_tokens is not None and _BUDGET in template.variables:
        variables[_BUDGET] = budget_tokens
    return variables


def takes_effort(template: WishedTemplate) -> bool:
    """Whether a template reads an effort, beside any switch of thinking."""
    return bool(template.efforts)


def _of_effort(effort: str, template: WishedTemplate) -> dict[str, Any]:
    if effort not in EFFORTS:
        return {}
    switch = dict(thinking_variables(template, enabled=effort != "none"))
    if not template.efforts or (effort == "none" and switch and "none" not in template.efforts):
        return switch
    place = EFFORTS.index(effort)
    nearest = min(template.efforts, key=lambda each: abs(EFFORTS.index(each) - place))
    return {_EFFORT: nearest} | (switch if effort == "none" else {})


ChatMessage = dict[str, Any]
#: What rendering takes besides the variables of a template.
RESERVED_TEMPLATE_VARIABLES = frozenset(
    name
    for name, parameter in inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters.items()
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD
) | {"messages"}
#: A text and a name of a function that no model's chat template holds.
_PROBE = "spotwise_probe_of_tools"
_SOME_MESSAGE = ({"role": "user", "content": "x"},)


class ChatTemplateError(Exception):
    """The chat template cannot render these messages, or there is none."""


class ChatTemplate:
    """Renders chats.

    Attributes:
        source: the template; empty where the model has none.
        wants_parts: it writes contents that are lists of parts, and no strings.
        renders_tools: it writes tools; else they are a text of the system's.
        header: what begins the model's messages in it, up to their reasoning; empty where that is not known.
        variables: names that it reads from outside.
        efforts: values of its `reasoning_effort` that it takes, the least first; none where it does not read that.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.source = str(tokenizer.chat_template or "")
        self.wants_parts = self._wants_parts()
        self._some_message = [as_parts(each) if self.wants_parts else each for each in _SOME_MESSAGE]
        self.renders_tools = self._renders_tools()
        self.header = self._header()
        self.variables = variables_of(self.source)
        self.efforts = tuple(filter(self._takes_effort, EFFORTS)) if "reasoning_effort" in self.variables else ()

    def render(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the text of a chat; see `ChatText.encode_chat`.

        Raises:
            ChatTemplateError: there is no template, it refuses the messages, or leaves out a text of theirs.
        """
        if not self.source:
            raise ChatTemplateError("This model has no chat template. Use /v1/completions, or a chat model.")
        if "developer" not in self.source:
            # OpenAI's newer name of the system role, which most templates lack.
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        if tools and not self.renders_tools:
            messages, tools = with_tools_as_text(list(map(with_text, messages)), tools), ()

        def render(conversation: list[ChatMessage]) -> str:
            return self._applied(
                conversation,
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(template_kwargs or {}),
            )

        try:
            return render_whole(messages, partial(render_with_calls, render=render), wants_parts=self.wants_parts)
        except TEMPLATE_ERRORS as error:
            raise ChatTemplateError(f"The model's chat template cannot render these messages: {error}") from error

    def _applied(self, messages: Sequence[ChatMessage], **options: Any) -> str:
        return cast(str, self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options))

    def _wants_parts(self) -> bool:
        """Whether it leaves out a content that is a string, and writes one that is a list of parts."""
        message = {"role": "user", "content": _PROBE}
        for wants_parts in (False, True):
            with contextlib.suppress(*TEMPLATE_ERRORS):
                if _PROBE in self._applied([as_parts(message) if wants_parts else message]):
                    return wants_parts
        return False

    def _renders_tools(self) -> bool:
        function = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
        with contextlib.suppress(*TEMPLATE_ERRORS):
            return _PROBE in self._applied(self._some_message, tools=[{"type": "function", "function": function}])
        return False

    def _takes_effort(self, effort: str) -> bool:
        with contextlib.suppress(*TEMPLATE_ERRORS):
            return bool(self._applied(self._some_message, add_generation_prompt=True, reasoning_effort=effort))
        return False

    def _header(self) -> str:
        with contextlib.suppress(*TEMPLATE_ERRORS):
            closed, opened = (self._applied(self._some_message, add_generation_prompt=opens) for opens in (False, True))
            return opened.removeprefix(closed).partition("<think>")[0]
        return ""
