"""Cost profiles as JSON documents: what `spotwise profile` writes, simulations and workers read."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotwise.core.cost_model import LinearIterationCost, LinkCost, PiecewiseLinear, TableIterationCost
from spotwise.core.cost_profile import USUAL_MESSAGE_S, CostProfile
from spotwise.core.measured_range import MeasuredRange

#: Of the documents written now; one of another format is refused.
FORMAT = "spotwise-cost-profile/1"
_KINDS = ("linear", "table")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Link(_Part):
    latency_s: float
    bytes_per_s: float

    def cost(self) -> LinkCost:
        return LinkCost(self.latency_s, self.bytes_per_s)


class _Linear(_Part):
    kind: Literal["linear"]
    fixed_s: float
    prompt_token_s: float
    prompt_context_s: float
    decode_s: float
    decode_context_s: float

    def cost(self) -> LinearIterationCost:
        return LinearIterationCost(**self.model_dump(exclude={"kind"}))


class _Points(_Part):
    at: list[float]
    seconds: list[float]

    def cost(self) -> PiecewiseLinear:
        return PiecewiseLinear(tuple(self.at), tuple(self.seconds))


class _Table(_Part):
    kind: Literal["table"]
    prompt: _Points
    decode: _Points
    prompt_context_s: float
    decode_context_s: float
    mixed_factor: float | None = None

    def cost(self) -> TableIterationCost:
        prompt, decode = self.prompt.cost(), self.decode.cost()
        return TableIterationCost(prompt, decode, self.prompt_context_s, self.decode_context_s, self.mixed_factor)


class _Range(_Part):
    prompt_tokens: int
    prompt_context: float
    decodes: int
    decode_context: float

    def range(self) -> MeasuredRange:
        return MeasuredRange(**self.model_dump())


class _Document(_Part):
    model_config = ConfigDict(extra="ignore")  # how well it fits, where it was measured

    format: Literal["spotwise-cost-profile/1"]
    name: str = ""
    iteration: Annotated[_Linear | _Table, Field(discriminator="kind")]
    link: _Link | None = None
    kv_bytes_per_token: int
    kv_tokens: int
    message_s: float = USUAL_MESSAGE_S
    host_link: _Link | None = None
    measured_range: _Range | None = None


def profile_as_dict(profile: CostProfile) -> dict[str, Any]:
    """Return the profile as a document that JSON can hold."""
    kind = "linear" if isinstance(profile.iteration, LinearIterationCost) else "table"
    fields = dataclasses.asdict(profile)
    measured_range = fields.pop("measured")  # facts of a measurement have this name already (`kept_profiles.py`)
    iteration = {"kind": kind, **fields["iteration"]}
    return {"format": FORMAT, **fields, "iteration": iteration, "measured_range": measured_range}


def profile_from_json(text: bytes) -> CostProfile:
    """Return the profile in a document, whose further fields are ignored; raises `ValueError`, naming the field, where it is no
    JSON, or no profile.
    """
    try:
        document = _Document.model_validate_json(text)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_input=False)
        finding = min(
            findings, key=lambda each: each["type"] != "extra_forbidden"
        )  # a misspelt field is missing as well
        field = ".".join(str(part) for part in finding["loc"] if part not in _KINDS)
        raise ValueError(f"{field or 'the profile'}: {finding['msg']}") from None
    return CostProfile(
        name=document.name,
        iteration=document.iteration.cost(),
        link=None if document.link is None else document.link.cost(),
        kv_bytes_per_token=document.kv_bytes_per_token,
        kv_tokens=document.kv_tokens,
        message_s=document.message_s,
        host_link=None if document.host_link is None else document.host_link.cost(),
        measured=None if document.measured_range is None else document.measured_range.range(),
    )
