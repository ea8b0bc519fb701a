"""Headlines as a table, and as a part of a document."""

from __future__ import annotations

from rich.console import Console

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.clusters import DESIGNS, Split
from spotwise.simulator.searches.provisioning import Provisioned
from spotwise.simulator.searches.search import Limit
from spotwise.studies.splitwise.headlines import headlines
from spotwise.studies.splitwise.paper import AA_COST, HH_CODE, HHCAP_POWER, ClusterFindings, clusters
from spotwise.studies.splitwise.tables import headlines_document, headlines_table, limits_table


def findings(rate: float) -> ClusterFindings:
    """All clusters but Baseline-A100's carry so much, with two seeds; that one carries 100 requests a second."""
    limits = {
        cluster: Limit((100.0, 100.0) if cluster.design == "Baseline-A100" else (rate, rate), ())
        for cluster in clusters()
    }
    provisioned = Provisioned(Split(27, 3), ())
    return ClusterFindings(
        limits, dict.fromkeys(DESIGNS, rate), dict.fromkeys((HHCAP_POWER, AA_COST, HH_CODE), provisioned)
    )


def shown(table: object) -> str:
    console = Console(width=250)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


FOUND = {DecodeModel.PUBLISHED: findings(215.0), DecodeModel.HONEST: findings(150.0)}


def test_a_headline_has_the_papers_number_both_of_ours_and_a_reason() -> None:
    text = shown(headlines_table(headlines(FOUND), list(FOUND)))
    for heading in ("headline", "paper", "ours, published", "ours, honest", "where they differ, why"):
        assert heading in text
    row = next(line for line in text.splitlines() if "throughput of AA over Baseline-A100" in line)
    assert "2.15" in row
    assert "1.5 (1.50–1.50)" in row
    assert "honest: decodes slow down" in row


def test_limits_show_their_model_of_time() -> None:
    text = shown(limits_table(FOUND[DecodeModel.HONEST].limits, DecodeModel.HONEST))
    assert "honest times" in text
    assert "iso-power, code; conv" in text


def test_a_document_has_every_figure_of_every_model() -> None:
    document = headlines_document(FOUND)
    first = document["headlines"][0]
    assert {model: ours["value"] for model, ours in first["ours"].items()} == {"published": 2.15, "honest": 1.5}
    assert first["ours"]["honest"]["about"] == "150 over 100 requests/s"
    assert {limit["decode_model"] for limit in document["limits"]} == {"published", "honest"}
