"""Coding agents against a mesh, headless: a question is answered, and a session calls a tool, reads its result, and ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.agent_programs import AGENTS, ENVIRONMENT, run_agent
from tests.clients.processes import why_not
from tests.clients.scripted_proxy import ScriptedProxy, calling, repeatable
from tests.live.mesh import LiveMesh

QUESTION = "What is the capital of France?"
#: What it prints does not stand in it.
COMMAND, PRINTED = "echo spotwise-$((40+2))", "spotwise-42"


@pytest.fixture(autouse=True)
def installed() -> None:
    """Requested before the mesh, which would start in vain."""
    if reason := why_not(ENVIRONMENT):
        pytest.skip(reason)


@pytest.mark.parametrize("name", AGENTS)
def test_a_question_is_answered(installed: None, name: str, mesh: LiveMesh, tmp_path: Path) -> None:
    """With what the program itself asks for; it prints what the model said, whatever a small one makes of the question."""
    with ScriptedProxy(mesh.url, [repeatable]) as proxy:
        said = run_agent(AGENTS[name], tmp_path / "home", proxy.url, QUESTION)
    assert set(proxy.statuses) == {200}
    answers = [text.strip().splitlines()[0] for text in proxy.texts if text.strip()]
    assert any(answer in said for answer in answers), (said, answers)


@pytest.mark.parametrize("name", AGENTS)
def test_a_session_calls_a_tool_and_ends(installed: None, name: str, mesh: LiveMesh, tmp_path: Path) -> None:
    """The command is run by the program, and what it printed is in the program's next request."""
    agent = AGENTS[name]
    with ScriptedProxy(mesh.url, [calling(agent.tool, agent.arguments(COMMAND)), repeatable]) as proxy:
        run_agent(agent, tmp_path / "home", proxy.url, "Say it.")
    assert set(proxy.statuses) == {200} and len(proxy.statuses) >= 2
    assert PRINTED not in json.dumps(proxy.asked[0])
    assert PRINTED in json.dumps(proxy.asked[1])
