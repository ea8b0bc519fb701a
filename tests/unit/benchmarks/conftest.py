"""What tests of the benchmarks share."""

from __future__ import annotations

from tests.unit.cli.conftest import spotwise as spotwise
