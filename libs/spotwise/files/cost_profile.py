"""Cost profiles as documents: the JSON that `spotwise profile` writes, or the same keys written by hand, in JSON or TOML."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost, PiecewiseLinear, TableIterationCost
from spotwise.core.costs.cost_profile import USUAL_MESSAGE_S, CostProfile, MeasuredRange

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
    measured_range = fields.pop("measured")  # facts of a measurement have this name already (`own_profile.py`)
    iteration = {"kind": kind, **fields["iteration"]}
    return {"format": FORMAT, **fields, "iteration": iteration, "measured_range": measured_range}


def profile_from_json(text: bytes) -> CostProfile:
    """Return the profile in a document, whose further fields are ignored; raises `ValueError`, naming the field, where it is no
    JSON, or no profile.
    """
    return _profile(lambda: _Document.model_validate_json(text))


def profile_from_tables(tables: Mapping[str, Any]) -> CostProfile:
    """Return the profile in a document's keys and values; raises as `profile_from_json`."""
    return _profile(lambda: _Document.model_validate(tables))


def read_cost_profile(path: Path) -> CostProfile:
    """Read a profile's file, TOML where its name ends so and else JSON; raises `ValueError` as `profile_from_json`, and
    `OSError` where it cannot be read.
    """
    text = path.read_bytes()
    if path.suffix.lower() != ".toml":
        return profile_from_json(text)
    try:
        tables = tomllib.loads(text.decode())
    except ValueError as error:  # no UTF-8, or no TOML
        raise ValueError(f"the profile: {error}") from error
    return profile_from_tables(tables)


def _profile(validate: Callable[[], _Document]) -> CostProfile:
    try:
        document = validate()
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
