"""docs/tour.md: a recorded chat enters its stops in their order, and as many files as the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotwise.engine.model.model_store import resolve_model
from tests.integration import traced_mesh
from tests.unit.docs.docs_pages import ROOT, quoted, section, table

pytestmark = [pytest.mark.mesh, pytest.mark.paired]

PAGE = (ROOT / "docs" / "tour.md").read_text()
#: Heartbeats and ticks enter some files or not.
TOLERANCE = 12


def test_the_tour_is_a_recorded_chats(nats_url: str, redis_url: str) -> None:
    """Stops 1 to 7 are entered in their order, the first five and the gateway's last one before the first token."""
    cache = Path(os.environ.get("SPOTWISE_CACHE") or Path.home() / ".cache" / "spotwise")
    model = str(resolve_model(None, cache).path)
    command = [sys.executable, "-m", traced_mesh.__name__, nats_url, redis_url, model]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    trace = json.loads(done.stdout.splitlines()[-1])
    first, last = ([(path, name) for path, name in trace[until]] for until in ("first token", "last token"))

    stops = [
        (quoted(file)[0], quoted(function)[0])
        for *_, file, function in table(section(PAGE, "One request, eight stops"))
    ]
    assert {*stops[:5], stops[7]} <= set(first)
    assert sorted(stops[:7], key=last.index) == stops[:7]

    (files,) = re.findall(r"enters (\d+) files until its first token", " ".join(PAGE.split()))
    assert abs(len({path for path, _ in first}) - int(files)) <= TOLERANCE
