"""What tests of the studies share."""

from __future__ import annotations

from tests.unit.cli.conftest import spotwise as spotwise
