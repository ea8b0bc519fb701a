"""A worker's cost profile, as a JSON document that live meshes record and simulated ones run by.

It holds what a simulated worker knows of its machine and model: seconds of an iteration and a hand-off, bytes of a token's KV,
tokens of the KV cache. `spotwise profile` or a worker that measures itself writes it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotwise.core.cost_model import (
    LinearIterationCost,
    LinkCost,
    PiecewiseLinear,
    TableIterationCost,
)

#: Format of the documents written now; others are refused.
FORMAT = "spotwise-cost-profile/1"
#: Seconds of a message where none was measured: a broker on the same machine or network.
USUAL_MESSAGE_S = 0.0005
#: Between device and host, each way, where it was not measured: PCIe 4.0 with 16 lanes.
USUAL_HOST_LINK = LinkCost(latency_s=1e-5, bytes_per_s=25e9)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """One worker's costs.

    Attributes:
        name: of machine and model, for people.
        link: of hand-offs; `None` where none was measured (mixed workers, or a worker alone).
        kv_bytes_per_token: all layers.
        kv_tokens: that a worker's KV cache holds.
        message_s: seconds from one member's decision to the next one's, over bus and store.
        host_link: between device and host memory, either way; `None` where not measured.
    """

    name: str
    iteration: LinearIterationCost | TableIterationCost
    link: LinkCost | None
    kv_bytes_per_token: int
    kv_tokens: int
    message_s: float = USUAL_MESSAGE_S
    host_link: LinkCost | None = None

    def __post_init__(self) -> None:
        if self.kv_bytes_per_token < 1 or self.kv_tokens < 1:
            raise ValueError("kv_bytes_per_token and kv_tokens must be at least 1")
        if not 0.0 <= self.message_s < math.inf:
            raise ValueError("message_s must be at least 0 and finite")

    @property
    def known_link(self) -> LinkCost:
        """The link of hand-offs.

        Raises:
            ValueError: none was measured.
        """
        if self.link is None:
            raise ValueError(
                f"{self.name!r} says nothing of hand-offs, as what a worker measured alone: take mixed workers only, "
                "or record a mesh with prompt workers and token workers (spotwise profile)"
            )
        return self.link

    @property
    def context_parity(self) -> float:
        """Tokens of context that cost a prompt token as much as all else; infinite where context costs nothing."""
        cost = self.iteration
        if isinstance(cost, LinearIterationCost):
            token_s = cost.prompt_token_s
        else:
            token_s = (cost.prompt.seconds[-1] - cost.prompt.seconds[0]) / (cost.prompt.at[-1] - cost.prompt.at[0])
        return token_s / cost.prompt_context_s if token_s > 0 and cost.prompt_context_s > 0 else math.inf


#: About a DGX-H100 that serves Llama2-70B: TTFT 95 ms at 1,500 tokens, TBT 31 ms (Splitwise, table IV), an InfiniBand link of
#: 400 Gb/s, KV of 80 layers with 8 heads of 128 in 16 bits. The KV cache is smaller than the machine's, to save
#: memory in the simulator, and holds more than a few hundred sequences need.
BUILT_IN = CostProfile(
    name="about Llama2-70B on a DGX-H100",
    iteration=LinearIterationCost(
        fixed_s=0.028, prompt_token_s=4.4e-5, prompt_context_s=1.0e-9, decode_s=2.0e-4, decode_context_s=6.0e-8
    ),
    link=LinkCost(latency_s=0.001, bytes_per_s=50e9),
    kv_bytes_per_token=327_680,
    kv_tokens=262_144,
)


def at_speed(cost: LinearIterationCost | TableIterationCost, speed: float) -> LinearIterationCost | TableIterationCost:
    """Return an iteration's cost at `speed` times the speed, for simulated workers faster than real time.

    Raises:
        ValueError: `speed` is not above 0 and finite.
    """
    if not 0.0 < speed < math.inf:
        raise ValueError(f"speed is {speed}; it must be above 0 and finite")
    if isinstance(cost, LinearIterationCost):
        return LinearIterationCost(*(getattr(cost, field.name) / speed for field in dataclasses.fields(cost)))
    prompt, decode = (
        PiecewiseLinear(table.at, tuple(each / speed for each in table.seconds)) for table in (cost.prompt, cost.decode)
    )
    contexts = cost.prompt_context_s / speed, cost.decode_context_s / speed
    return TableIterationCost(prompt, decode, *contexts, cost.mixed_factor)


def profile_as_dict(profile: CostProfile) -> dict[str, Any]:
    """Return the profile as a JSON object."""
    kind = "linear" if isinstance(profile.iteration, LinearIterationCost) else "table"
    return {
        "format": FORMAT,
        "name": profile.name,
        "iteration": {"kind": kind, **dataclasses.asdict(profile.iteration)},
        "link": None if profile.link is None else dataclasses.asdict(profile.link),
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "kv_tokens": profile.kv_tokens,
        "message_s": profile.message_s,
        "host_link": None if profile.host_link is None else dataclasses.asdict(profile.host_link),
    }


def profile_from_json(text: bytes) -> CostProfile:
    """Parse the profile in a file of `spotwise profile`.

    Raises:
        ValueError: it is none; names the field, or the place where it is no JSON.
    """
    return profile_from_dict(json.loads(text))


def profile_from_dict(document: Any) -> CostProfile:
    """Return the profile in a document; other fields (quality of the fit, origin) are ignored.

    Raises:
        ValueError: it is none; names the field.
    """
    fields = _mapping(document, "the profile")
    if fields.get("format") != FORMAT:
        raise ValueError(f"its format is {fields.get('format')!r}, not {FORMAT!r}")
    iteration = dict(_mapping(fields.get("iteration"), "iteration"))
    kind = iteration.pop("kind", None)
    return CostProfile(
        name=str(fields.get("name", "")),
        iteration=_iteration(kind, iteration),
        link=_link(fields, "link"),
        kv_bytes_per_token=_count(fields, "kv_bytes_per_token"),
        kv_tokens=_count(fields, "kv_tokens"),
        message_s=_number(fields.get("message_s", USUAL_MESSAGE_S), "message_s"),
        host_link=_link(fields, "host_link"),
    )


def _link(fields: Mapping[str, Any], name: str) -> LinkCost | None:
    link = fields.get(name)
    return None if link is None else LinkCost(**_numbers(_mapping(link, name), name, LinkCost))


def _iteration(kind: object, fields: dict[str, Any]) -> LinearIterationCost | TableIterationCost:
    if kind == "linear":
        return LinearIterationCost(**_numbers(fields, "iteration", LinearIterationCost))
    if kind != "table":
        raise ValueError(f"iteration.kind is {kind!r}; it is 'linear' or 'table'")
    mixed_factor = fields.pop("mixed_factor", None)
    prompt, decode = (_table(fields.pop(name, None), f"iteration.{name}") for name in ("prompt", "decode"))
    rest = _numbers(fields, "iteration", TableIterationCost, without=("prompt", "decode", "mixed_factor"))
    factor = None if mixed_factor is None else _number(mixed_factor, "iteration.mixed_factor")
    return TableIterationCost(prompt, decode, rest["prompt_context_s"], rest["decode_context_s"], factor)


def _table(value: object, where: str) -> PiecewiseLinear:
    points = _mapping(value, where)
    columns = []
    for name in ("at", "seconds"):
        column = points.get(name)
        if not isinstance(column, list | tuple):
            raise ValueError(f"{where}.{name} is no list of numbers")
        columns.append(tuple(_number(each, f"{where}.{name}") for each in column))
    return PiecewiseLinear(*columns)


def _numbers(fields: Mapping[str, Any], where: str, made: type, without: tuple[str, ...] = ()) -> dict[str, float]:
    """Return the float fields of a cost; no other fields are allowed."""
    names = [field.name for field in dataclasses.fields(made) if field.name not in without]
    if unknown := sorted(set(fields) - set(names)):
        raise ValueError(f"{where} has no field {unknown[0]!r}")
    return {name: _number(fields.get(name), f"{where}.{name}") for name in names}


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} is {value!r}, no number")
    # JSON has whole numbers of any size, and its reader takes NaN and Infinity.
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{where} is no finite number")
    return float(value)


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, no whole number")
    return value


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is no object")
    return value
