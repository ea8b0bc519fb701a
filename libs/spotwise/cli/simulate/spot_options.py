"""The options of `spotwise simulate spot`, and what they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import parse_size
from spotwise.cli.option_groups import OptionGroup
from spotwise.cli.simulate.market_options import InstanceTypeOption, PricesOption, ZoneOption, parse_prices
from spotwise.cli.simulate.options import LoadOptions, WorkloadOption
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.files.prices import PriceList
from spotwise.simulator.loads.workload import ArrivalKind, ClusterWorkload
from spotwise.simulator.spotserve.pricing import FleetPricing, NodePlace, PurchaseTerms
from spotwise.simulator.spotserve.systems import SpotSurroundings

#: The model of the built-in profile.
_BUILT_IN_MODEL = "llama2-70b"
_USUAL = SpotSurroundings()


class SpotLoadOptions(OptionGroup):
    """The options that say which instances there are, and which requests arrive."""

    trace: Annotated[
        Path, typer.Option(help="Availability: lines of milliseconds,add|remove,node, or SpotServe's JSON lists.")
    ]
    load: Annotated[Path | None, typer.Option(help="Requests of this trace, at their own times and sizes.")] = None
    rate: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Requests a second, at random; with --load, its gaps are scaled to this rate."),
    ] = None
    workload: WorkloadOption = "conv"

    def cluster_workload(self) -> ClusterWorkload:
        """Return the load; raises `OptionError` as `LoadOptions` does."""
        arrivals = ArrivalKind.POISSON if self.load is None else ArrivalKind.TRACE
        return LoadOptions(workload=self.workload, trace=self.load, arrivals=arrivals).cluster_workload()


class InstanceOptions(OptionGroup):
    """The options that say what an instance is, and which model it serves."""

    profile: Annotated[
        Path | None,
        typer.Option(help="Costs of one device, a file of `spotwise profile`; by default a built-in DGX-H100."),
    ] = None
    model: Annotated[
        str | None, typer.Option(help="The profiled model: a name that `spotwise plan` knows, or its folder.")
    ] = None
    devices: Annotated[
        int | None, typer.Option(min=1, max=8, help="Devices of an instance, each as profiled; by default 1.")
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(help="Of a device, for weights and KV, like 80GiB; by default as the profiled worker had."),
    ] = None
    max_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of a pipeline at once; by default up to 32, as fit its KV cache."),
    ] = None

    def model_of(self, described: Path | None) -> str:
        """Return the model's name or folder; `described`: the file that says what an instance costs; `None`: the built-in
        profile. Raises `OptionError` where it is not known which model was profiled."""
        if self.model is None and described is not None:
            raise OptionError(f"{described}: say which model was profiled with --model, its folder or its name")
        return self.model or _BUILT_IN_MODEL

    def device_bytes(self, market: PurchaseTerms | None) -> int | None:
        """Return a device's bytes for weights and KV; `None`: as the profiled worker had."""
        if market is not None:
            return market.kind.memory_bytes
        return None if self.memory is None else parse_size(self.memory, "--memory")


class PriceOptions(OptionGroup):
    """The options that say what instances cost."""

    prices: PricesOption = None
    price: Annotated[
        float | None,
        typer.Option(min=0, help="One price for every instance, US dollars an hour, in place of --prices."),
    ] = None
    instance_type: InstanceTypeOption = None
    zone: ZoneOption = None
    nodes: Annotated[
        Path | None,
        typer.Option(help="CSV node,zone,market of the trace's nodes; others are spot instances in --zone."),
    ] = None

    def pricing(self, places: dict[str, NodePlace], begins_s: float) -> FleetPricing | None:
        """Return the prices of a trace from `begins_s`, whose nodes are at `places`; `None` without prices. Raises
        `OptionError` where options do not go together, `TraceError` where a file is wrong."""
        if self.prices is not None and self.price is not None:
            raise OptionError("--price: --prices has all prices; leave one of the two out")
        listed = parse_prices(self.prices, self.instance_type, self.zone)
        if listed is not None:
            return FleetPricing(*listed, self.zone, places, begins_s)
        return None if self.price is None else FleetPricing(PriceList.flat(self.price), "", None, places)


class SurroundingsOptions(OptionGroup):
    """The options that say how long what all systems share takes."""

    notice: Annotated[float, typer.Option(min=0, help="Seconds from an instance's notice until it is gone.")] = (
        _USUAL.grace_s
    )
    restart: Annotated[
        float, typer.Option(min=0, help="Seconds of an engine's restart, without the loading of weights.")
    ] = _USUAL.restart_s
    network: Annotated[
        str | None, typer.Option(help="Bytes a second of an instance's network; by default the profile's link, or 5GB.")
    ] = None
    within: Annotated[str, typer.Option(help="Bytes a second between devices of an instance.")] = "10GB"
    storage: Annotated[str, typer.Option(help="Bytes a second from storage into an instance.")] = "1GB"

    def surroundings(self, costs: CostProfile) -> SpotSurroundings:
        """Return what all systems share, on instances of these costs; raises `OptionError` where a size is wrong."""
        network_bytes_per_s = _USUAL.network_bytes_per_s if costs.link is None else costs.link.bytes_per_s
        if self.network is not None:
            network_bytes_per_s = parse_size(self.network, "--network")
        return SpotSurroundings(
            grace_s=self.notice,
            restart_s=self.restart,
            network_bytes_per_s=network_bytes_per_s,
            local_bytes_per_s=parse_size(self.within, "--within"),
            storage_bytes_per_s=parse_size(self.storage, "--storage"),
        )
