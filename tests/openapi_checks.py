"""How schemathesis tests the API, in the process or over a socket."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from schemathesis import BaseSchema, Case, CheckFunction, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.example_budget import BUDGET_S

#: No file of the folder that the tests run in is read. A body that no schema allows may be too large as well: any 4xx will do.
CONFIG = SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}})
#: No schema says that ids are in the vocabulary, that the prompt fits, that one parameter goes with another.
_NOT_SAID: list[CheckFunction] = [positive_data_acceptance]


def does_what_it_says(described: BaseSchema, label: str, mode: GenerationMode, max_examples: int) -> None:
    """Send requests that the description allows, or forbids, and check the answers; a quarter of them where a run has to end
    in time.
    """
    method, path = label.split()
    cases = described[path][method].as_strategy(generation_mode=mode)

    @settings(max_examples=max_examples // 4 if BUDGET_S else max_examples, suppress_health_check=list(HealthCheck))
    @given(cases)
    def does(case: Case[Any]) -> None:
        case.call_and_validate(excluded_checks=_NOT_SAID)

    does()
