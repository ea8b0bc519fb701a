from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.compose.project import SERVICES, Project, engine_answers


@pytest.fixture(scope="session")
def project() -> Iterator[Project]:
    """The mesh of docker-compose.yml, running and healthy."""
    if not engine_answers():
        pytest.skip("no Docker engine answers")
    project = Project()
    project.compose("down", "--volumes", "--remove-orphans")  # of a run that was killed
    try:
        project.compose("up", "--detach", timeout_s=1200)
        for service in ("nats", "redis", *sorted(SERVICES)):
            project.wait_healthy(service)
        yield project
    finally:
        project.compose("down", "--volumes", "--remove-orphans")


@pytest.fixture
def client(project: Project) -> Iterator[OpenAI]:
    """The `openai` client, which does not try again by itself."""
    base_url = f"http://{project.address_of_api()}/v1"
    with OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=90) as client:
        yield client
