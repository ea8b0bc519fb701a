"""Sampling parameters of requests that give none: OpenAI's, or those that a model was published with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotwise.gateway.schema.shared import MIN_REPETITION_PENALTY

_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Defaults of the parameters of these names; by themselves OpenAI's, and vLLM's for what OpenAI does not have."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


#: Of a model that has none of its own.
OPENAIS = SamplingDefaults()


class _GenerationConfig(BaseModel):
    model_config = ConfigDict(extra="ignore")

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=10)] | None = None


def published_defaults(model_dir: Path) -> SamplingDefaults:
    """Return the defaults in a model's `generation_config.json`; OpenAI's for what it leaves out, and where there is none.

    Raises:
        ValueError: a value that no request could give.
    """
    path = model_dir / _FILE
    try:
        published = _GenerationConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return OPENAIS
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        name = ".".join(map(str, finding["loc"]))
        raise ValueError(f"{path}: {name + ': ' if name else ''}{finding['msg']}") from None
    return SamplingDefaults(**published.model_dump(exclude_none=True))
