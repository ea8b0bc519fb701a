"""`POST /v1/chat/completions`: from messages to a prepared request, and the writer of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spotwise.gateway.apis.openai_writer import OpenAiWriter, WholeChoice
from spotwise.gateway.generate.api_options import ApiOptions, require_logprobs, require_model
from spotwise.gateway.generate.chat_tools import tool_use
from spotwise.gateway.generate.choice import ChoiceText, ScoredToken
from spotwise.gateway.generate.prepared_request import PreparedRequest, PromptTokens, RequestTerms, prepare_generation
from spotwise.gateway.generate.prompts import prompt_too_long, truncation_of
from spotwise.gateway.schema.chat import ChatPrompt, ChatRequest
from spotwise.gateway.schema.parameters import Endpoint, ignored_in
from spotwise.gateway.schema.shared import parse_request
from spotwise.gateway.schema.tools import Tool
from spotwise.http.errors import bad_request
from spotwise.http.sse import event
from spotwise.text.chat_template import RESERVED_TEMPLATE_VARIABLES, ChatTemplateError, wished_variables
from spotwise.text.chat_text import ChatText
from spotwise.text.control_tokens import TooManyMarksError
from spotwise.text.detokenize import LEAST_LOGPROB, TokenBytes
from spotwise.text.message_reader import MessagePart, calls_of
from spotwise.text.prompt_encoder import PromptTooLongError, Truncation


def prepare_chat(body: Mapping[str, Any], text: ChatText, options: ApiOptions, terms: RequestTerms) -> PreparedRequest:
    """Check a body and prepare its request.

    Raises:
        ApiError: 400 or 404, with the parameter at fault.
    """
    prepared = prepare_chat_request(parse_request(ChatRequest, body), text, options, terms, "chatcmpl-")
    return prepared.ignoring(ignored_in(Endpoint.CHAT, body, ChatRequest.model_fields))


def prepare_chat_request(
    request: ChatRequest,
    text: ChatText,
    options: ApiOptions,
    terms: RequestTerms,
    id_prefix: str,
    *,
    may_fill_context: bool = False,
) -> PreparedRequest:
    """Prepare a chat whose body is right by itself; raises as `prepare_chat`.

    Args:
        request: the chat.
        text: the model's facts.
        options: the server's limits.
        terms: what is known of the request beside its body.
        id_prefix: prefix of the answer's id.
        may_fill_context: a bound that the context has no room for is the context's.
    """
    require_model(request.model, options)
    logprobs = _logprobs(request, options)
    max_tokens, max_tokens_param = request.max_tokens, "max_tokens"
    if request.max_completion_tokens is not None:
        max_tokens, max_tokens_param = request.max_completion_tokens, "max_completion_tokens"
    if max_tokens == 0:
        raise bad_request(
            f"Invalid value for '{max_tokens_param}': must be at least 1.", max_tokens_param, "invalid_value"
        )
    most_new_tokens = options.default_max_tokens if max_tokens is None else max_tokens
    truncation = truncation_of(request, most_new_tokens, text.context_length)
    tools = tool_use(request, text)
    token_ids = chat_token_ids(request, text, truncation=truncation, tools=tools.tools)
    reading = tools.reading(token_ids, text)
    _, ignored = wished_of(request, text)
    if (
        may_fill_context
        and max_tokens is not None
        and len(token_ids) < text.context_length < len(token_ids) + max_tokens
    ):
        max_tokens = None
    prepared = prepare_generation(
        request,
        [PromptTokens(token_ids)],
        text,
        options,
        id_prefix=id_prefix,
        terms=terms,
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        default_max_tokens=None if may_fill_context else options.default_max_tokens,
        logprobs=logprobs,
        message=tools.grammar(reading),
        reading=reading,
    )
    return prepared.ignoring(ignored)


def chat_token_ids(
    prompt: ChatPrompt,
    text: ChatText,
    *,
    add_special_tokens: bool = False,
    truncation: Truncation | None = None,
    tools: Sequence[Tool] = (),
) -> tuple[int, ...]:
    """Render a chat and tokenize it.

    Args:
        prompt: the chat.
        text: the model's template and tokenizer.
        add_special_tokens: as a prompt of completions has them; templates write their own.
        truncation: cuts the rendered chat.
        tools: tools that the model may call.

    Raises:
        ApiError: 400, with the parameter at fault.
    """
    continue_final_message = prompt.continue_final_message or False
    add_generation_prompt = prompt.add_generation_prompt
    if continue_final_message and add_generation_prompt:
        raise bad_request(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            "continue_final_message",
            "invalid_value",
        )
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    wished, _ = wished_of(prompt, text)
    template_kwargs = wished | (prompt.chat_template_kwargs or {})
    if reserved := sorted(RESERVED_TEMPLATE_VARIABLES.intersection(template_kwargs)):
        param = f"chat_template_kwargs.{reserved[0]}"
        raise bad_request(f"'{param}' is no variable of a chat template.", param, "invalid_value")
    messages = [message.for_template() for message in prompt.messages]
    try:
        token_ids = text.encode_chat(
            messages,
            add_generation_prompt,
            continue_final_message,
            template_kwargs,
            add_special_tokens,
            truncation,
            [tool.for_template() for tool in tools],
        )
    except ChatTemplateError as error:
        raise bad_request(str(error), "messages", "chat_template_error") from error
    except TooManyMarksError as error:
        raise bad_request(f"The body is too complex: {error}.", "messages", "body_too_complex") from error
    except PromptTooLongError as error:
        raise prompt_too_long("messages", text.context_length, error.at_least_tokens) from error
    if not token_ids:
        raise bad_request("Invalid value for 'messages': they render to nothing.", "messages", "invalid_value")
    return token_ids


def wished_of(prompt: ChatPrompt, text: ChatText) -> tuple[dict[str, Any], list[str]]:
    """Return the variables of the template that a chat's wishes set, and the names of those that it has none for."""
    is_thinker = text.form is not None and text.form.reads_reasoning
    return wished_variables(prompt.reasoning_effort, prompt.verbosity, text.template, is_thinker=is_thinker)


def _logprobs(request: ChatRequest, options: ApiOptions) -> int | None:
    if not request.logprobs:
        if request.top_logprobs:
            raise bad_request("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs", "invalid_value")
        return None
    return require_logprobs("top_logprobs", request.top_logprobs or 0, options)


def _texts(parts: Sequence[MessagePart]) -> dict[str, Any]:
    """Return what the model thinks and says, by OpenAI's names, and vLLM's of the reasoning."""
    texts = dict[str, Any]()
    for name, kind in (("reasoning_content", "reasoning"), ("content", "content")):
        if text := "".join(part.text for part in parts if part.kind == kind):
            texts[name] = text
    return texts


class ChatWriter(OpenAiWriter):
    """Answers as `chat.completion` and `chat.completion.chunk` objects."""

    WHOLE_OBJECT = "chat.completion"
    CHUNK_OBJECT = "chat.completion.chunk"
    TEXT_FRONT = b'"delta":{"content":'
    TEXT_TAIL = b'},"logprobs":null,"finish_reason":null}'
    PROMPT_IN_CHOICES = False

    def openings(self) -> list[bytes]:
        """Return a role delta for every choice."""
        events = []
        for index in range(len(self._prepared.sequences)):
            delta = {"role": "assistant", "content": ""}
            chunk = self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            if self._prepared.return_token_ids:
                chunk["prompt_token_ids"] = self._prompt_ids(index)
            events.append(event(chunk))
        return events

    def _delta(self, piece: ChoiceText) -> dict[str, Any]:
        if piece.parts is None:
            return {"delta": {"content": piece.text} if piece.text else {}}
        delta = _texts(piece.parts)
        calls = dict[int, dict[str, Any]]()
        for part in piece.parts:
            if part.kind == "call":
                function = {"name": part.text, "arguments": ""}
                calls[part.call] = {"index": part.call, "id": part.call_id, "type": "function", "function": function}
            elif part.kind == "arguments":
                call = calls.setdefault(part.call, {"index": part.call, "function": {"arguments": ""}})
                call["function"]["arguments"] += part.text
        return {"delta": delta | ({"tool_calls": list(calls.values())} if calls else {})}

    def _message(self, choice: WholeChoice) -> dict[str, Any]:
        if choice.parts is None:
            return {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        texts = _texts(choice.parts)
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls_of(choice.parts)
        ]
        content = texts.pop("content", None if calls else "")
        message = {"role": "assistant", "content": content, "refusal": None, **texts}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, list[Any] | None]:
        return {"content": chat_logprobs(scored, self._token_bytes, self._spelled), "refusal": None}


def chat_logprobs(
    scored: Sequence[ScoredToken], token_bytes: TokenBytes, spelled: Callable[[int], str] | None = None
) -> list[dict[str, Any]]:
    """Return tokens with their log-probabilities and alternatives, as chats and responses have them.

    `spelled`: what a token is called, by default its text.
    """
    spelled = spelled or token_bytes.text_of

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes.bytes_of(token_id)
        return {"token": spelled(token_id), "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(raw)}

    content = []
    for token in scored:
        at_token = token.logprobs
        if at_token is None:
            continue
        alternatives = zip(at_token.top_token_ids, at_token.top_logprobs, strict=True)
        content.append(
            entry(token.token_id, at_token.logprob) | {"top_logprobs": [entry(*each) for each in alternatives]}
        )
    return content
