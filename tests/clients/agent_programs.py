"""Coding agents as processes: their settings below a home of their own, and no way to anything but loopback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.clients.processes import INSTALLED
from tests.live.mesh import MODEL

#: In the environment of `make test-clients`.
ENVIRONMENT = "agents"
_PATIENCE_S = 420.0
#: Longer instructions and more tools than these do not fit into the test model's context.
INSTRUCTIONS = "You are a helpful assistant."
CODEX_CONFIG = """\
model = "{model}"
model_provider = "spotwise"
model_context_window = 8192
model_instructions_file = "{home}/instructions.md"
web_search = "disabled"
include_permissions_instructions = false
include_apps_instructions = false
include_environment_context = false
check_for_update_on_startup = false
[analytics]
enabled = false
[agents]
enabled = false
[features]
goals = false
[skills]
include_instructions = false
[model_providers.spotwise]
name = "spotwise"
base_url = "{url}/v1"
wire_api = "responses"
"""
_CODEX = ("exec", "--skip-git-repo-check", "--ephemeral", "--dangerously-bypass-approvals-and-sandbox")
_CLAUDE = ("--system-prompt", INSTRUCTIONS, "--tools", "Bash", "--allowedTools", "Bash", "--setting-sources", "")
_CLAUDE_ENV = {
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "256",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}


@dataclass(frozen=True, slots=True)
class Agent:
    """A program.

    Attributes:
        name: of its command.
        tool: of its tools the one that runs a command.
        arguments: of the tool's call, for a command.
        prepare: writes its settings: of a home and a URL. Returns its environment.
        command: its arguments, for a question.
    """

    name: str
    tool: str
    arguments: Callable[[str], dict[str, Any]]
    prepare: Callable[[Path, str], dict[str, str]]
    command: Callable[[Path, str], list[str]]

    def program(self) -> list[str]:
        """Return what starts it; packages' install scripts are not run."""
        modules = INSTALLED / ENVIRONMENT / "node_modules"
        if self.name == "claude":
            return ["node", str(modules / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs")]
        return [str(modules / ".bin" / self.name)]


def _prepare_codex(home: Path, url: str) -> dict[str, str]:
    (home / ".codex").mkdir()
    (home / "instructions.md").write_text(INSTRUCTIONS)
    (home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(model=MODEL, home=home, url=url))
    return {}


def _prepare_cline(home: Path, url: str) -> dict[str, str]:
    environment = _environment(home) | {"CLINE_TELEMETRY_DISABLED": "1"}
    key = ("-p", "openai", "-k", "none", "-m", MODEL, "-b", f"{url}/v1")
    command = [*AGENTS["cline"].program(), "auth", *key]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    return {"CLINE_TELEMETRY_DISABLED": "1"}


AGENTS = {
    agent.name: agent
    for agent in (
        Agent(
            "codex",
            "exec_command",
            lambda command: {"cmd": command},
            _prepare_codex,
            lambda home, question: [*_CODEX, question],
        ),
        Agent(
            "claude",
            "Bash",
            lambda command: {"command": command, "description": "Say it"},
            lambda home, url: _CLAUDE_ENV | {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_MODEL": MODEL},
            lambda home, question: ["-p", question, *_CLAUDE],
        ),
        Agent(
            "cline",
            "run_commands",
            lambda command: {"commands": [command]},
            _prepare_cline,
            lambda home, question: ["-s", INSTRUCTIONS, "--compaction", "off", question],
        ),
    )
}


def run_agent(agent: Agent, home: Path, url: str, question: str) -> str:
    """Ask an agent, which has a home and a working folder of its own, and reaches an API at a URL; return what it says.

    Raises:
        AssertionError: it failed; its output.
    """
    folder = home / "work"
    folder.mkdir(parents=True)
    try:
        env = _environment(home) | agent.prepare(home, url)
        done = subprocess.run(
            [*agent.program(), *agent.command(home, question)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    finally:
        _end_all_of(home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environment(home: Path) -> dict[str, str]:
    """Return an environment in which nothing but loopback is reached: all else goes to a proxy that is not there."""
    nowhere = "http://127.0.0.1:9"
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), nowhere)
    loopback = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    return {"PATH": os.environ["PATH"], "HOME": str(home), **proxies, **loopback}


def _end_all_of(home: Path) -> None:
    """End what a program has left running."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(home):
                process.kill()
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
