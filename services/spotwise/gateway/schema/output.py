"""What a text has to look like: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from spotwise.gateway.schema.strict_body import StrictBody

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
