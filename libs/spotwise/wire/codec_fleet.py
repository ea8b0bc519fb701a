"""Reports and orders of the fleet, to protobuf and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.wire.field_codec import Codec, codec_of, each_of, same
from spotwise.wire.v1 import fleet_pb2 as fleet

_MARKET: Codec = (same, Market)
_INSTANCE = codec_of(
    m.FleetInstance,
    fleet.FleetInstance,
    *("id", "type_name", "launched_s", "token", "zone", "price_per_h", "why_leaving"),
    optional=("leaves_at_s",),
    market=_MARKET,
    state=(same, InstanceState),
)
_OFFER = codec_of(
    m.InstanceOffer,
    fleet.InstanceOffer,
    *("type_name", "price_per_h", "most", "zone", "refused_until_s", "refusal", "failed_starts"),
    market=_MARKET,
)
_HAZARD = codec_of(PiecewiseHazard, fleet.Hazard, from_s=(same, tuple), per_s=(same, tuple))
_LIVES = codec_of(m.LearnedLives, fleet.LearnedLives, "type_name", "zone", "lives", "ends", hazard=_HAZARD)
_PURCHASE = codec_of(m.Purchase, fleet.Purchase, "token", "count", "zone", type_names=(same, tuple), market=_MARKET)
_STATUS = codec_of(
    m.PurchaseStatus, fleet.PurchaseStatus, "since_s", "is_answered", "got", "problem", purchase=_PURCHASE
)
_RELEASE = codec_of(m.InstanceRelease, fleet.InstanceRelease, "instance_id", "deadline_s", "reason")
_REASON = codec_of(m.InstanceReason, fleet.InstanceReason, "instance_id", "reason")
_WANTED = codec_of(m.WantedInstances, fleet.WantedInstances, "type_name", "spot", "on_demand", "spares")

LOAD: Codec = codec_of(
    m.LoadReported,
    fleet.LoadReported,
    *("gateway_id", "incarnation", "number", "prompt_tokens", "finished", "output_tokens", "late"),
    arrivals_s=(same, tuple),
)
REPORT: Codec = codec_of(
    m.FleetReported,
    fleet.FleetReported,
    *("watcher_id", "incarnation", "at_s", "provider", "spent", "problem"),
    instances=each_of(_INSTANCE),
    offers=each_of(_OFFER),
    purchases=each_of(_STATUS),
    lives=each_of(_LIVES),
)
ORDER: Codec = codec_of(
    m.FleetOrder,
    fleet.FleetOrder,
    *("planner_id", "term", "number"),
    purchases=each_of(_PURCHASE),
    releases=each_of(_RELEASE),
)
SHOW: Codec = codec_of(m.ShowFleet, fleet.ShowFleet)
_VIEW_FIELDS = (
    *("rate", "cv", "input_tokens", "output_tokens", "config", "serving"),
    *("throughput", "price_per_h", "why"),
)
_VIEW = codec_of(
    m.FleetView,
    fleet.FleetView,
    *_VIEW_FIELDS,
    optional=("budget_per_h", "request_s"),
    report=(lambda report: None if report is None else REPORT[0](report), same),
    wanted=each_of(_WANTED),
    reasons=each_of(_REASON),
)


def view_from(proto: Any) -> m.FleetView:
    """Return the view that `view_to` turned into `proto`."""
    view: m.FleetView = _VIEW[1](proto)
    return replace(view, report=REPORT[1](proto.report) if proto.HasField("report") else None)


view_to = _VIEW[0]
