"""Workers with queues and no profile: they measure what their iterations cost before they serve, and once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh

pytestmark = pytest.mark.long  # a minute and a half; tests/integration/test_own_profile.py is its short form

OPTIONS = ("--policy", "mlfq", *ONE_MIXED)


@pytest.mark.timeout(400)
def test_a_mesh_with_queues_measures_itself_and_knows_it_the_next_time(tmp_path: Path) -> None:
    """The worker reports what a prompt token takes before it has computed one, and serves.

    The next start reads the same file.
    """
    cache = tmp_path / "cache"  # of its own: what is measured in a hurry is nothing to keep
    cache.mkdir()
    usual = Path(os.environ.get("SPOTWISE_CACHE", Path.home() / ".cache" / "spotwise"))
    for folder in ("models", "weights"):
        (usual / folder).mkdir(parents=True, exist_ok=True)
        (cache / folder).symlink_to(usual / folder)
    mesh = LiveMesh(tmp_path, *OPTIONS, env={"SPOTWISE_CACHE": str(cache), "SPOTWISE_PROFILE_SECONDS": "2"})
    for event in ("cost_profile_measured", "cost_profile_loaded"):
        with mesh:
            assert event in (tmp_path / "run" / "default" / "logs" / "mixed-0.log").read_text()
            (engine,) = (each.engine for each in mesh.members() if each.engine is not None)
            assert engine.member.load is not None
            assert (engine.member.load.prompt_token_s or 0.0) > 0.0
            answer = mesh.client().completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 5
            mesh.wait_until_idle()
    assert len(list((cache / "profiles").glob("*.json"))) == 1
