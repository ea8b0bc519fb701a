"""Tool calling for one chat: prompt rendering, output grammar, and parsing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers.utils.chat_parsing import ResponseParser

from spotwise.gateway.generate.output_grammar import ANY_MESSAGE, MessageGrammar
from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.tools import AllowedToolsChoice, Tool
from spotwise.http.errors import bad_request
from spotwise.text.chat_text import ChatText
from spotwise.text.message_forms import LISTED_CALLS, REASONING, MessageForm
from spotwise.text.message_reader import MessageReading

#: The message that the prompt begins is among so many of its last tokens.
_PREFIX_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request.

    Attributes:
        tools: tools that the prompt describes; none where the model shall call none.
        callable_tools: tools that it may call.
        form: how it writes its messages; `None` where all of them are text.
        is_required: it has to call one.
        is_named: the client has named which.
        is_single: it calls one at most.
    """

    tools: Sequence[Tool] = ()
    callable_tools: Sequence[Tool] = ()
    form: MessageForm | None = None
    is_required: bool = False
    is_named: bool = False
    is_single: bool = False

    def reading(self, prompt_token_ids: Sequence[int], text: ChatText) -> MessageReading | None:
        """Return how the model's text is read after a prompt; `None` where all of it is what the model says."""
        form = self.form
        if not self.tools and (form is None or not form.reads_reasoning):
            return None
        return MessageReading(
            form=form,
            prefix="" if form is None else _begun_message(form, prompt_token_ids, text),
            finds_calls=bool(self.tools) and not self.is_required,
            is_called=self.is_required,
            is_named=self.is_named,
            is_single=self.is_single,
            schemas={tool.function.name: tool.function.schema_of_arguments for tool in self.tools},
        )

    def grammar(self, reading: MessageReading | None) -> MessageGrammar:
        """Return what the model's message has to look like."""
        if reading is None:
            return ANY_MESSAGE
        form = self.form
        thinking = None if form is None else form.thinking
        has_thought, is_thinking = (False, False) if form is None else _thought(form, reading.prefix)
        return MessageGrammar(
            tools=self.callable_tools,
            calls="required" if self.is_required else "auto",
            is_single=self.is_single,
            is_partial=len(self.callable_tools) < len(self.tools),
            form=LISTED_CALLS if form is None else form.call_form,
            thinking=None if has_thought else thinking,
            is_thinking=is_thinking,
        )


def tool_use(request: ChatRequest, text: ChatText) -> ToolUse:
    """Return the tools of a request.

    Raises:
        ApiError: 400, they cannot be used as it says.
    """
    tools, name = request.tools or [], request.named_tool
    choice = request.tool_choice or "auto"
    if isinstance(choice, AllowedToolsChoice):
        choice = choice.allowed_tools.mode
    allowed = request.allowed_tools if name is None else [name]
    if not tools and allowed is not None:
        raise bad_request("'tool_choice' needs 'tools'.", "tool_choice", "invalid_value")
    if not tools and choice not in ("none", "auto"):
        raise bad_request("'tool_choice' needs 'tools'.", "tool_choice", "invalid_value")
    if not tools or choice == "none":
        return ToolUse(form=text.form)
    names = {tool.function.name for tool in tools}
    if unknown := [each for each in allowed or () if each not in names]:
        message = f"'tool_choice' names '{unknown[0]}', which is none of the tools."
        raise bad_request(message, "tool_choice", "invalid_value")
    is_required = choice != "auto"
    form = text.tool_form
    if not is_required and (form is None or not form.reads_calls):
        raise bad_request(
            "How this model writes calls is not known here. Ask for a call by 'tool_choice' ('required', or a function), or "
            "have the server's operator set SPOTWISE_TOOL_PARSER.",
            "tool_choice",
            "unsupported_parameter",
        )
    callable_tools = [tool for tool in tools if allowed is None or tool.function.name in allowed]
    if not is_required and form is not None and not form.call_form.trigger:
        if len(callable_tools) < len(tools):
            raise bad_request(
                "'tool_choice' of some tools is followed only with the mode 'required': this model's calls begin with no "
                "text of their own.",
                "tool_choice",
                "unsupported_parameter",
            )
        strict = next((index for index, tool in enumerate(tools) if tool.function.strict), None)
        if strict is not None:
            param = f"tools.{strict}.function.strict"
            message = (
                f"'{param}' is followed only where a call is asked for by 'tool_choice': this model's calls begin with no "
                "text of their own."
            )
            raise bad_request(message, param, "unsupported_parameter")
    return ToolUse(
        tools=tools,
        callable_tools=callable_tools,
        form=form,
        is_required=is_required,
        is_named=name is not None,
        is_single=name is not None or request.parallel_tool_calls is False,
    )


def _begun_message(form: MessageForm, prompt_token_ids: Sequence[int], text: ChatText) -> str:
    """Return what the prompt holds of the message that the model goes on with."""
    prompt = text.decode(prompt_token_ids[-_PREFIX_TOKENS:], skip_special_tokens=False)
    ends = [match.end() for match in form.template.start_anchor_re.finditer(prompt)]
    return prompt[max(ends, default=len(prompt)) :]


def _thought(form: MessageForm, prefix: str) -> tuple[bool, bool]:
    """Return whether the prompt holds the model's reasoning already, and whether it has begun it."""
    events = ResponseParser(form.without_calls(), prefix).initial_events
    kinds = [event["type"] for event in events if event["field"] in REASONING]
    return "region_close" in kinds, bool(kinds) and "region_close" not in kinds
