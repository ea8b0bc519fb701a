"""docs/fleet.md: the fleet file that it links is one, and its tables have every key."""

from __future__ import annotations

import re

from spotwise.core.messages.fleet import Market
from spotwise.files.fleet_file import PROVIDERS, FleetFile, TypeTerms, read_fleet
from spotwise.files.spot_traces import read_spot_trace
from tests.unit.docs.docs_pages import ROOT, quoted, require_rows, section

PAGE = (ROOT / "docs" / "fleet.md").read_text()
EXAMPLE = ROOT / "docs" / "examples" / "fleet"


def test_the_example_is_read() -> None:
    assert "(examples/fleet/fleet.toml)" in PAGE
    fleet = read_fleet(EXAMPLE / "fleet.toml")
    assert [each.name for each in fleet.types] == ["small", "wide"]
    prices = fleet.price_list()
    assert prices is not None and prices.of("small", None, Market.SPOT, 0.0).at(900.0) == 0.9
    assert read_spot_trace(EXAMPLE / "trace.csv").end_s == 420.0


def test_the_tables_have_every_key() -> None:
    text = section(PAGE, "The fleet file")
    rows = [line.split("|")[1] for line in text.splitlines() if re.match(r"\| `", line)]
    listed = {key for row in rows for key in quoted(row)}
    require_rows(listed, set(FleetFile.model_fields) | set(TypeTerms.model_fields), "docs/fleet.md, The fleet file")
    running = set(quoted(text.partition("`[local]` has")[2].partition("\n\n")[0]))
    missing = {key for terms in PROVIDERS.values() for key in terms.model_fields} - running
    assert not missing, f"docs/fleet.md, The fleet file: say below its table what {', '.join(sorted(missing))} mean"
