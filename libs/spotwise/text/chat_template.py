"""A model's chat template: from messages and tools to the text of a prompt."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from spotwise.text.message_texts import as_parts, render_whole, with_text
from spotwise.text.template_variables import variables_of
from spotwise.text.template_wishes import EFFORTS
from spotwise.text.tool_calls import TEMPLATE_ERRORS, render_with_calls
from spotwise.text.tool_text import with_tools_as_text

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
