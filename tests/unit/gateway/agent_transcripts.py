"""What coding agents send, request by request: bodies in the forms that their programs have, with texts of our own.

Codex 0.169 over responses, Claude Code 2.1 over messages, Cline 3.0 over chats. In each session the
model calls a tool, gets its result, and answers.
"""

from __future__ import annotations

from typing import Any

from tests.unit.gateway.fake_mesh import MODEL

_COMMAND = {
    "type": "object",
    "properties": {"cmd": {"type": "string"}},
    "required": ["cmd"],
    "additionalProperties": False,
}
_PATCH_GRAMMAR = 'start: "*** Begin Patch" /(.|\\n)*/ "*** End Patch"'

#: Tools as Codex has them: functions, some of a namespace, a text of the client's own grammar, a shell, and one of servers.
CODEX_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "exec", "description": "Run it.", "strict": False, "parameters": _COMMAND},
    {
        "type": "namespace",
        "name": "agents_v1",
        "description": "Other agents.",
        "tools": [
            {"type": "function", "name": "spawn", "description": "One more.", "strict": False, "parameters": _COMMAND}
        ],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Change files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": _PATCH_GRAMMAR},
    },
    {"type": "local_shell"},
    {"type": "web_search", "external_web_access": False},
]
#: What it wishes in vain of a model that does not think.
CODEX_WARNING = (
    "ignored: client_metadata, prompt_cache_key, reasoning.effort, reasoning.summary, service_tier, text.verbosity, "
    "tools.format, tools.web_search"
)


def _said(role: str, words: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": words}], **more}


def codex_request(*items: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A request of Codex's; `items` follow its first question."""
    return {
        "model": MODEL,
        "stream": True,
        "instructions": "You are an agent.",
        "input": [
            _said("developer", "Be brief.", id="msg_1"),
            _said("user", "<cwd>/x</cwd>"),
            _said("user", "What is here?"),
            *items,
        ],
        "tools": CODEX_TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"verbosity": "low"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "service_tier": "priority",
        "prompt_cache_key": "01a2",
        "client_metadata": {"session_id": "01a2"},
    } | changes


#: Reasoning as another server gives it: it cannot be read here.
CODEX_REASONING: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "I look."}],
    "content": None,
    "encrypted_content": "gAAAA",
}

CLAUDE_TOOLS: list[dict[str, Any]] = [
    {
        "name": "Bash",
        "description": "Runs it.",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
            "additionalProperties": False,
        },
        "cache_control": {"type": "ephemeral"},
    },
    {"name": "Later", "description": "Loaded later.", "input_schema": {"type": "object"}, "defer_loading": True},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
]
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-api-key": "none",
    "x-app": "cli",
}
#: What it wishes in vain of a model that does not think.
CLAUDE_WARNING = "ignored: context_management, output_config.effort, thinking, tools.web_search_20250305"
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def claude_request(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A request of Claude Code's; `messages` follow its first question."""
    return {
        "model": MODEL,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>None.</system-reminder>"},
                    {"type": "text", "text": "What is here?", **EPHEMERAL},
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "# Environment", **EPHEMERAL}]},
            *messages,
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1;"},
            {"type": "text", "text": "You are an agent.", **EPHEMERAL},
        ],
        "tools": CLAUDE_TOOLS,
        "metadata": {"user_id": '{"device_id":"b6"}'},
        "max_tokens": 32_000,
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    } | changes


def chat_request(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A request of a chat client's, as Cline is one; `messages` follow its first question."""
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": [{"type": "text", "text": "What is here?"}]},
            *messages,
        ],
        "tools": [{"type": "function", "function": {"name": "run", "description": "Run it.", "parameters": _COMMAND}}],
        "tool_choice": "auto",
        "reasoning_effort": "medium",
        "verbosity": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
    } | changes
