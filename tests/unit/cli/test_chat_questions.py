"""What `spotwise chat` refuses before it connects."""

from __future__ import annotations

import io
import sys

import pytest

from tests.unit.cli.command_line import CommandLine, RefusalOf

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("url", ["notaurl", "ftp://h:1", "http://", "http://h:port", "http://[::1"])
@pytest.mark.parametrize("command", ["chat hi", "bench load"])
def test_what_is_no_gateways_url_is_refused_by_the_options_name(refusal_of: RefusalOf, command: str, url: str) -> None:
    refusal = refusal_of(f"{command} --url {url}")
    assert "--url" in refusal
    assert "http://127.0.0.1:8000" in refusal


@pytest.mark.parametrize("question", ["", "  \n"])
def test_a_blank_question_is_no_question(spotwise: CommandLine, question: str) -> None:
    ended = spotwise("chat", question, "--url", NOBODY)
    assert ended.status == 1
    assert "there is no question" in ended.stderr


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_question_that_is_no_text_is_refused(
    spotwise: CommandLine, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    """Bytes that are no UTF-8, however Python reads them in this locale."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8", errors))
    ended = spotwise("chat", "--url", NOBODY)
    assert ended.status == 1
    assert "not UTF-8" in ended.stderr
    as_argument = spotwise("chat", "\udcff", "--url", NOBODY)
    assert as_argument.status == 1
    assert "not UTF-8" in as_argument.stderr
