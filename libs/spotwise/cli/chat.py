"""`spotwise chat`: talk to the mesh from a terminal, or ask one question from a script."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from spotwise.cli.client.chat_stream import AnswerFigures, ChatClient
from spotwise.cli.client.gateway_access import CaFile, GatewayUrl, find_gateway
from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.options import MeshName

_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def chat(
    prompt: Annotated[str | None, typer.Argument(help="Ask this and leave; without it, a conversation.")] = None,
    url: GatewayUrl = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(help="A further gateway, where an answer goes on if the first is gone; repeatable."),
    ] = None,
    name: MeshName = DEFAULT_NAME,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.7,
    ca: CaFile = None,
) -> None:
    """Chat with the mesh, or ask it one question: the argument, or the text piped in."""
    urls = (find_gateway(name, url), *(find_gateway(name, each) for each in gateway or ()))
    client = ChatClient(*urls, ca_file=ca)
    with contextlib.closing(client):
        question = _question(prompt)
        conversation = Conversation(client, system, max_tokens, temperature)
        if question is None:
            conversation.talk()
        else:
            conversation.answer_once(question)


class Conversation:
    """A conversation with one mesh; the mesh keeps no history between questions."""

    def __init__(self, client: ChatClient, system: str | None, max_tokens: int | None, temperature: float) -> None:
        self._client = client
        self._model = client.model()
        self._options: dict[str, Any] = {"temperature": temperature}
        if max_tokens is not None:
            self._options["max_tokens"] = max_tokens
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._system)
        self._console = Console(highlight=False)
        # So that a script reads the answer alone from stdout.
        self._margin = Console(stderr=True, highlight=False)

    def answer_once(self, question: str) -> None:
        """Print the answer; raises `CommandError` where there is none or only a part, `KeyboardInterrupt` at Ctrl-C."""
        self._answer(question)

    def talk(self) -> None:
        """Ask and answer until Ctrl-D or /exit."""
        # Line editing and history for `input`, where this Python has it.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401
        self._console.print(f"[bold]{self._model}[/]: {_HELP}")
        while True:
            try:
                question = input("> ").strip()
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                self._console.print()
                continue
            if question == "/exit":
                return
            if question == "/reset":
                self._messages = list(self._system)
                self._console.print("forgotten", style="dim")
            elif question.startswith("/"):
                self._console.print(_HELP, style="dim")
            elif question:
                self._ask_and_go_on(question)

    def _ask_and_go_on(self, question: str) -> None:
        try:
            self._answer(question)
        except KeyboardInterrupt:
            self._console.print("\nstopped", style="dim")
        except CommandError as error:
            self._margin.print(f"error: {error}", style="red", markup=False)

    def _answer(self, question: str) -> None:
        messages = [*self._messages, {"role": "user", "content": question}]
        figures = AnswerFigures()
        pieces: list[str] = []
        try:
            body = {"model": self._model, "messages": messages, **self._options}
            with contextlib.closing(self._client.stream(body, figures)) as stream:
                for text in stream:
                    pieces.append(text)
                    self._console.print(text, end="", markup=False, soft_wrap=True)
        finally:
            # The part that the user read belongs to the history, even when the rest was stopped.
            if pieces:
                self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        self._console.print()
        self._margin.print(figures.line(), style="dim", markup=False)


def _question(prompt: str | None) -> str | None:
    # With an argument stdin is left alone: in a script it may be a pipe that never ends, or belong to the script's loop.
    if prompt is None and sys.stdin.isatty():
        return None
    try:
        question = sys.stdin.read().strip() if prompt is None else prompt
        question.encode()  # Python lets bytes through that are no text, as lone surrogates.
    except UnicodeError as error:
        raise CommandError("the question is not UTF-8 text") from error
    if not question.strip():
        raise CommandError("there is no question: give one as an argument or on stdin")
    return question
