"""docs/agents.md says what the tests of coding agents do: their versions, their settings and their flags."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from spotwise.gateway.schema.parameters import WARNING_HEADER
from tests.clients.agent_programs import AGENTS, CODEX_CONFIG
from tests.unit.docs.docs_pages import README, ROOT, fenced, section

PAGE = ROOT / "docs" / "agents.md"
LOCK = ROOT / "tests" / "clients" / "agents" / "package-lock.json"
PACKAGES = {"Codex": "@openai/codex", "Claude Code": "@anthropic-ai/claude-code", "Cline": "cline"}


@pytest.mark.parametrize("title", PACKAGES)
def test_each_agent_has_its_section_with_the_tested_version(title: str) -> None:
    version = json.loads(LOCK.read_text())["packages"][f"node_modules/{PACKAGES[title]}"]["version"]
    assert f"`{PACKAGES[title]} {version}`" in section(PAGE.read_text(), title)


def test_every_agent_of_the_tests_is_there() -> None:
    assert len(AGENTS) == len(PACKAGES)
    assert "(docs/agents.md)" in README.read_text()
    assert f"`{WARNING_HEADER}`" in PAGE.read_text()


def test_codexs_settings_are_the_tested_ones() -> None:
    """Both examples together have every table and key of the tests' configuration, but those of tests alone."""
    tested = tomllib.loads(CODEX_CONFIG.format(model="MODEL", home="/path/to", url="http://HOST:8000"))
    shown: dict[str, object] = {}
    for example in fenced(section(PAGE.read_text(), "Codex"), "toml"):
        shown |= tomllib.loads(example)
    for name in ("analytics", "check_for_update_on_startup"):
        del tested[name]
    assert set(shown) == set(tested)
    provider = {key: value for key, value in shown["model_providers"]["spotwise"].items() if key != "env_key"}  # type: ignore[index]
    assert provider == tested["model_providers"]["spotwise"]
    assert all(shown[name] == tested[name] for name in ("agents", "features", "skills", "web_search"))


@pytest.mark.parametrize(("title", "name"), [("Claude Code", "claude"), ("Cline", "cline")])
def test_flags_and_variables_are_the_tested_ones(title: str, name: str, tmp_path: Path) -> None:
    text = section(PAGE.read_text(), title)
    source = (ROOT / "tests" / "clients" / "agent_programs.py").read_text()
    example = "\n".join(fenced(text, "sh"))
    flags = set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", example))
    assert flags
    command = AGENTS[name].command(tmp_path, "?")
    assert all(flag in command or f'"{flag}"' in source for flag in flags), flags
    for variable in set(re.findall(r"export (\w+)=", example)) - {"ANTHROPIC_DEFAULT_HAIKU_MODEL"}:
        assert f'"{variable}"' in source
