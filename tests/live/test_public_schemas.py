"""Documents of a few schemas that people use; all of the set are answered by tests/long/test_public_schemas.py."""

from __future__ import annotations

import asyncio

from tests.live.mesh import LiveMesh
from tests.live.public_schemas import SchemaAnswers, ask, closing_bias, public_schemas

NAMES = (
    "1128f825085e",
    "29098e08a6b2",
    "518d801e7750",
    "5a41fef2e9cc",
    "5ab0df3b37a2",
    "6185cf46355a",
    "7608611c856d",
    "a14bbb5d39f8",
    "aafc5364968a",
    "b43967613414",
    "cfcf311b43ff",
    "e83c0fa76ba4",
)


def test_documents_fit_their_schemas(mesh: LiveMesh) -> None:
    """Objects in objects, enumerations, patterns, formats: each is answered, and is what was asked for."""
    answers = SchemaAnswers()
    schemas = public_schemas(*(f"{name}.json" for name in NAMES))
    asyncio.run(ask(mesh, schemas, answers, temperature=0, max_tokens=400, logit_bias=closing_bias(8.0, '"}]')))
    assert answers.unfit == []
    assert len(answers.ended) == len(NAMES), str(answers)
