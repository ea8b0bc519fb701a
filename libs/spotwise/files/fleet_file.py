"""The fleet file: which machines a mesh may buy, for how much, and how they are started (TOML; docs/fleet.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ByteSize, Field, ValidationError, model_validator

from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.fleet.keeper.failed_starts import SHORTEST_S
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import Market
from spotwise.files.prices import PriceList, read_prices
from spotwise.files.tables import FileTable, TraceError, first_fault, read_tables

#: It documents the file.
_PAGE = "docs/fleet.md"


class FleetFileError(ValueError):
    """A fleet file is wrong; the message names file, key and what to do."""


class MarketTerms(FileTable):
    """A type's terms in one market: dollars an hour, and instances of it (in each zone) at once."""

    price_per_h: float = Field(ge=0, allow_inf_nan=False)
    most: int = Field(ge=1)


class TypeTerms(FileTable):
    """A type of instance.

    Attributes:
        devices: processes that compute, or GPUs, of an instance.
        memory: bytes of a device, "2GiB" in the file; `None`: as profiled.
        profile: cost profile of a device, an absolute path.
        spot, on_demand: `None`: not bought there.
        start_s: seconds from the purchase until its devices are ready.
        zones: local: each is an offer of its own; aws: those of the subnets, whose prices count.
        command: program and arguments of a local instance; empty: the watcher's default.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    devices: int = Field(1, ge=1, le=64)
    memory: ByteSize | None = Field(None, gt=0)
    profile: Path | None = None
    spot: MarketTerms | None = None
    on_demand: MarketTerms | None = None
    start_s: float = Field(30.0, gt=0, allow_inf_nan=False)
    zones: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_sold(self) -> TypeTerms:
        if self.spot is None and self.on_demand is None:
            raise ValueError(f"type {self.name} has neither spot nor on_demand; give one a price_per_h and most")
        return self

    def terms(self, market: Market) -> MarketTerms | None:
        """Return the terms in a market; `None`: it is not bought there."""
        return self.spot if market is Market.SPOT else self.on_demand

    def fleet_type(self, profile: CostProfile) -> FleetType:
        """Return the type as the planner chooses from it; `profile`: what `profile` names."""
        memory = None if self.memory is None else int(self.memory)
        return FleetType(self.name, self.devices, memory, self.start_s, profile)


class ProviderTerms(FileTable):
    """The table of a provider: how it starts instances.

    Class attributes:
        needs: the key without which it cannot.
        notice_s: seconds of notice before a spot instance ends, where the file has none.
        list_s: seconds between two listings of the instances, where the watcher's settings have none.
        chooses_zone: it chooses among zones itself; else each of a type is an offer of its own.
    """

    needs: ClassVar[str]
    notice_s: ClassVar[float]
    list_s: ClassVar[float]
    chooses_zone: ClassVar[bool] = False


class LocalFleet(ProviderTerms):
    """Instances of this computer; `limit`: of all types at once."""

    needs = "limit"
    notice_s = 30.0
    list_s = 1.0

    limit: int = Field(ge=0)


class AwsFleet(ProviderTerms):
    """How instances of EC2 are launched: see `Ec2Options` in libs/spotwise/cloud/ec2_client.py."""

    needs = "launch_template"
    notice_s = 120.0
    list_s = 10.0
    chooses_zone = True

    launch_template: str = Field(min_length=1)
    launch_template_version: str = "$Default"
    subnets: tuple[str, ...] = ()
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    spot_strategy: Literal[
        "price-capacity-optimized", "capacity-optimized", "capacity-optimized-prioritized", "lowest-price"
    ] = "price-capacity-optimized"
    use_fleet: bool = True
    attempts: int = Field(5, ge=1)
    alone_s: float = Field(7200.0, ge=600, le=86_400)


class FleetFile(FileTable):
    """A fleet file.

    Attributes:
        notice_s: `grace_s` in the file: seconds from the notice to the end of a spot instance; local instances that are given
            back have as long to end.
        refused_s: an offer that was refused is not asked for again for so long, twice as long after each further refusal.
        prices: CSV of prices (`files/prices.py`), an absolute path; it has precedence over the types' own.
    """

    provider: Literal["local", "aws"]
    grace_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    refused_s: float = Field(SHORTEST_S, gt=0, allow_inf_nan=False)
    types: tuple[TypeTerms, ...] = Field(min_length=1)
    prices: Path | None = None
    local: LocalFleet | None = None
    aws: AwsFleet | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> FleetFile:
        names = [each.name for each in self.types]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"types: {twice[0]} is there twice; give each a name of its own")
        if getattr(self, self.provider) is None:
            raise ValueError(f"there is no table [{self.provider}]; add one with {PROVIDERS[self.provider].needs}")
        return self

    @property
    def notice_s(self) -> float:
        """Seconds from the notice to the end of a spot instance."""
        return PROVIDERS[self.provider].notice_s if self.grace_s is None else self.grace_s

    def type(self, name: str) -> TypeTerms | None:
        """Return a type by its name."""
        return next((each for each in self.types if each.name == name), None)

    def price_list(self) -> PriceList | None:
        """Read the file of prices, if there is one.

        Raises:
            FleetFileError: it cannot be read, or a line is wrong.
        """
        try:
            return None if self.prices is None else read_prices(self.prices)
        except TraceError as error:
            raise FleetFileError(str(error)) from error


#: By the names that a fleet file has for them.
PROVIDERS: Mapping[str, type[ProviderTerms]] = {"local": LocalFleet, "aws": AwsFleet}


def read_fleet(path: Path) -> FleetFile:
    """Read a fleet file; the paths in it are relative to its folder.

    Raises:
        FleetFileError: it cannot be read, or a key is wrong or missing.
    """
    tables = read_tables(path, "fleet", _PAGE, FleetFileError)
    try:
        fleet = FleetFile.model_validate(tables)
    except ValidationError as error:
        raise FleetFileError(f"{path}: {first_fault(error, _PAGE)}") from error
    folder = path.absolute().parent
    types = tuple(
        each if each.profile is None else each.model_copy(update={"profile": folder / each.profile})
        for each in fleet.types
    )
    prices = None if fleet.prices is None else folder / fleet.prices
    fleet = fleet.model_copy(update={"types": types, "prices": prices})
    for each in fleet.types:
        if each.profile is not None and not each.profile.is_file():
            raise FleetFileError(
                f"{path}: types.{each.name}.profile: there is no file {each.profile}; make one with spotwise profile"
            )
    fleet.price_list()
    return fleet
