"""Common parts of request bodies: the parameters that endpoints share and their checks, and the form that a text must have.

OpenAI's `response_format` and vLLM's `structured_outputs`.

Types are strict (a number in quotes is not a number) and ranges are checked here; checks that need the model's context or
vocabulary are in `prepared_request.py`, refused and ignored parameters in `parameters.py`. `null` means the default everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from spotwise.gateway.schema.parameters import Endpoint, refuse_unsupported
from spotwise.http.errors import bad_request, from_validation

#: A word of how to answer, of which this server may not know what to make.
Wish = Annotated[str, Field(max_length=64)]


def _fail_fast(schema: Any) -> None:
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case dict() as each:
                if each.get("type") == "list":
                    each["fail_fast"] = True
                waiting += each.values()
            case list() | tuple() as several:
                waiting += several


class StrictBody(BaseModel):
    """An object of the API: no coercion of types, unknown members ignored.

    A list is wrong by its first wrong item, since a body may have a million.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema of the class, whose lists fail fast."""
        schema = handler(source)
        _fail_fast(schema)
        return schema


Parsed = TypeVar("Parsed", bound=StrictBody)


def parse_body(kind: type[Parsed], body: Mapping[str, Any]) -> Parsed:
    """Check a body against its schema.

    Raises:
        ApiError: 400, naming the first parameter that is wrong.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        refused = from_validation(error)
    # Not there: a new error's context would be pydantic's, which keeps the frames of all callers, unseen by the collector.
    raise refused


#: Of `choice`.
MAX_CHOICES = 1024
MAX_CHOICE_CHARACTERS = 4096
#: Of `regex` and `grammar`.
MAX_GRAMMAR_CHARACTERS = 64 << 10

#: Between the tokens of JSON: one blank at most after colons and commas, or any layout.
Whitespace = Literal["compact", "flexible"]
_Name = Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
_Schema = dict[str, Any] | bool


class JsonSchema(StrictBody):
    """`response_format.json_schema`; all its schemas are followed strictly, whether `strict` or not."""

    name: _Name
    description: str | None = None
    schema_: _Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class OutputFormat(StrictBody):
    """`response_format`; `whitespace` is this server's own."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    whitespace: Whitespace | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> OutputFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("needs 'json_schema'")
        return self


class StructuredOutputs(StrictBody):
    """vLLM's `structured_outputs`: one of `json`, `json_object`, `regex`, `choice` and `grammar`; whitespace in JSON,
    of which `whitespace` is this server's own.
    """

    json_: _Schema | Annotated[str, Field(max_length=MAX_GRAMMAR_CHARACTERS)] | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)] | None = None
    choice: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARACTERS)]],
            Field(min_length=1, max_length=MAX_CHOICES),
        ]
        | None
    ) = None
    grammar: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)] | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    whitespace: Whitespace | None = None

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        kinds = (self.json_, self.json_object or None, self.regex, self.choice, self.grammar)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("must have exactly one of 'json', 'json_object', 'regex', 'choice' and 'grammar'")
        return self


MAX_STOP_STRINGS = 16
#: Each costs a table of so many numbers, and text is held back while it may still become one.
MAX_STOP_CHARACTERS = 1024
#: Of `stop_token_ids`, `logit_bias` and `allowed_token_ids`, and of all `bad_words`: they travel with every sequence's record.
MAX_LISTED_TOKENS = 1024
#: Each becomes two sequences of tokens, with a blank before it and without.
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256
#: Of `cache_salt`; a hash of it travels.
MAX_SALT_CHARACTERS = 1024
#: Of 32 bits, as vLLM's.
LEAST_PRIORITY = -(2**31)

#: A repetition penalty near 0 makes infinities of logits, and a draw among infinities is no draw.
MIN_REPETITION_PENALTY = 0.01


def _as_stop_strings(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return []
    if isinstance(stops, list) and len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"at most {MAX_STOP_STRINGS} stop strings are supported")
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise ValueError(f"a stop string has at most {MAX_STOP_CHARACTERS} characters")
    if "" in stops:
        raise ValueError("a stop string must not be empty")
    return stops


def _some_tokens(truncate_prompt_tokens: int) -> int:
    if truncate_prompt_tokens == 0:
        raise ValueError("must be at least 1, or -1 for as many as fit")
    return truncate_prompt_tokens


_BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
#: As clients write them.
StopStrings = StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)]


class PositionOptions(StrictBody):
    """`stream_options` of every endpoint that generates.

    Attributes:
        resumable: each event has an id, from which the stream can continue.
    """

    resumable: bool | None = None


class StreamOptions(PositionOptions):
    """`stream_options`.

    Attributes:
        include_usage: end the stream with a chunk that holds the usage.
        continuous_usage_stats: with that, every chunk holds the usage of its choice so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class PromptOptions(StrictBody):
    """What a request says about its prompts, and how they are scheduled.

    Attributes are the API's parameters under their documented names; `None` is the documented default.
    """

    user: str | None = None
    priority: int | None = Field(None, ge=LEAST_PRIORITY, le=2**31 - 1)
    truncate_prompt_tokens: Annotated[int, AfterValidator(_some_tokens)] | None = Field(None, ge=-1)
    truncation_side: Literal["left", "right"] | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_CHARACTERS)


class SharedRequest(PromptOptions):
    """What every endpoint that generates takes; OpenAI's names, then vLLM's extensions, with their meanings.

    Attributes are the API's parameters under their documented names; `None` is the documented default.

    Class attributes:
        endpoint: where such a body is sent.
    """

    endpoint: ClassVar[Endpoint]

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(None, max_length=MAX_LISTED_TOKENS)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[list[str], BeforeValidator(_as_stop_strings, json_schema_input_type=StopStrings | None)] = []
    stream: bool | None = None

    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=MIN_REPETITION_PENALTY, le=10)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(None, max_length=MAX_LISTED_TOKENS)
    min_tokens: int | None = Field(None, ge=0)
    allowed_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, min_length=1, max_length=MAX_LISTED_TOKENS
    )
    structured_outputs: StructuredOutputs | None = None
    bad_words: list[_BadWord] | None = Field(None, max_length=MAX_BAD_WORDS)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None


class GenerationRequest(SharedRequest):
    """What chats and completions share."""

    max_tokens: int | None = Field(None, ge=0)
    n: int | None = Field(None, ge=1)
    stream_options: StreamOptions | None = None
    response_format: OutputFormat | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0)


SharedParsed = TypeVar("SharedParsed", bound=SharedRequest)


def parse_request(kind: type[SharedParsed], body: Mapping[str, Any]) -> SharedParsed:
    """Check a body against its schema.

    Raises:
        ApiError: 400, naming the first parameter that is wrong or not supported.
    """
    refuse_unsupported(kind.endpoint, body)
    request = parse_body(kind, body)
    if isinstance(request, GenerationRequest):
        _require_stream_options_to_fit(request)
    return request


def _require_stream_options_to_fit(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise bad_request("'stream_options' is allowed only when 'stream' is true.", "stream_options", "invalid_value")
    if request.prompt_logprobs is not None and request.stream:
        message = "'prompt_logprobs' is in no stream; leave out 'stream', or use 'echo' with 'logprobs'."
        raise bad_request(message, "prompt_logprobs", "invalid_value")
