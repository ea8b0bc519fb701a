"""Options of prices over time, and their parsing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.errors import OptionError
from spotwise.files.prices import PriceList, read_prices

PricesOption = Annotated[
    Path | None,
    typer.Option(help="CSV of prices over time: time_s,instance_type,zone,market,price_per_h (zone optional)."),
]
InstanceTypeOption = Annotated[
    str | None, typer.Option(help="The machines' type in --prices; needed where the file has several.")
]
ZoneOption = Annotated[str | None, typer.Option(help="The machines' zone in --prices, where prices differ by zone.")]


def parse_prices(path: Path | None, instance_type: str | None, zone: str | None) -> tuple[PriceList, str] | None:
    """Return a file's prices and the machines' type, `None` without a file. An unknown type, none where there are several,
    or options without a file raise `OptionError`; a wrong file raises `TraceError`.
    """
    if path is None:
        for option, given in (("--instance-type", instance_type), ("--zone", zone)):
            if given is not None:
                raise OptionError(f"{option}: there are no prices; give a file with --prices, or leave it out")
        return None
    prices = read_prices(path)
    if instance_type is None and len(prices.types) > 1:
        raise OptionError(f"--prices {path}: choose one of its types with --instance-type: {', '.join(prices.types)}")
    if instance_type is not None and instance_type not in prices.types:
        raise OptionError(f"--instance-type {instance_type!r}: {path} has prices of {', '.join(prices.types)}")
    return prices, instance_type or prices.types[0]
