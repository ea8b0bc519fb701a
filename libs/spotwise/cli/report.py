"""Progress of `spotwise up`: a live table on a terminal, else plain lines; a closed terminal silences it, and stops no mesh."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from spotwise.cli.launch.gateway_options import has_configured_keys
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.run_folder import RunFolder
from spotwise.cli.launch.supervision.run_state import ServiceState
from spotwise.mesh.process.addresses import is_loopback
from spotwise.mesh.process.server_urls import without_passwords

_STYLES = {ServiceState.HEALTHY: "green", ServiceState.RESTARTING: "yellow", ServiceState.LEFT: "dim"}


class Report:
    """Writes to one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._shown: dict[str, ServiceState] = {}
        self._started_s = time.monotonic()
        self._spinner = Spinner("dots")

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Show a live table of `progress` during the block; on a terminal the table stays on the screen."""
        self._started_s = time.monotonic()
        if self._console.is_terminal:
            # Refreshed by hand: a refreshing thread would only redraw the supervisor loop's own updates.
            self._live = Live(console=self._console, auto_refresh=False)
        try:
            with self._quiet_when_unread():
                if self._live is not None:
                    self._live.start()
            yield
        finally:
            with self._quiet_when_unread():
                if self._live is not None:
                    self._live.stop()
            self._live = None

    def progress(self, states: Mapping[str, ServiceState]) -> None:
        """Show the state of each process."""
        elapsed_s = time.monotonic() - self._started_s
        with self._quiet_when_unread():
            if self._live is not None:
                self._live.update(self._table(states, elapsed_s), refresh=True)
            else:
                for service_id, state in states.items():
                    if state is ServiceState.HEALTHY and self._shown.get(service_id) is not state:
                        self._console.print(f"{service_id} is up ({elapsed_s:.1f} s)", markup=False, highlight=False)
        self._shown = dict(states)

    def say(self, line: str, style: str | None = None) -> None:
        """Show one line."""
        with self._quiet_when_unread():
            self._console.print(without_passwords(line), style=style, markup=False, highlight=False, soft_wrap=True)

    def log_lines(self, lines: Iterable[tuple[str, str]]) -> None:
        """Show lines of the services' logs, each after its service's id."""
        for service_id, line in lines:
            self.say(f"{service_id:>14} | {line}", style="dim")

    def log_end(self, title: str, lines: Iterable[str]) -> None:
        """Show the end of a log."""
        self.say(title, style="bold")
        for line in lines:
            self.say(f"  {line}")

    def _table(self, states: Mapping[str, ServiceState], elapsed_s: float) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for service_id, state in states.items():
            mark: RenderableType = Text("✓", "green") if state is ServiceState.HEALTHY else self._spinner
            table.add_row(mark, service_id, Text(state, _STYLES.get(state, "")))
        table.add_row("", Text(f"{elapsed_s:.0f} s", "dim"))
        return table

    @contextmanager
    def _quiet_when_unread(self) -> Iterator[None]:
        # rich turns a broken pipe into SystemExit, and stops writing by itself.
        try:
            yield
        except OSError as error:
            # A full disk may have space again later.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._console.quiet = True
        except SystemExit:
            self._console.quiet = True


def welcome_lines(options: MeshOptions, folder: RunFolder) -> list[str]:
    """Instructions for using a mesh that is up."""
    command = _own_command()
    body = {"model": options.model_name, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    ca = " --cacert $SPOTWISE_CA_FILE" if options.tls_cert is not None else ""
    key = ' -H "Authorization: Bearer $SPOTWISE_API_KEY"' if os.environ.get("SPOTWISE_API_KEYS") else ""
    return [
        "",
        f"The mesh is up: {options.url}/v1 serves {options.model_name}",
        *([f"and so do {', '.join(f'{url}/v1' for url in options.urls[1:])}"] if options.further_ports else []),
        "",
        f"  curl{ca} {options.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{json.dumps(body)}'",
        f"  {command} chat{folder.name_option}",
        f"  {command} status{folder.name_option}",
        f"  {command} down{folder.name_option}",
        "",
        f"Logs: {folder.logs_folder}",
    ]


def public_access_warning(options: MeshOptions) -> str | None:
    """A warning for a gateway that other machines reach without a key; None with a key, or on loopback."""
    if not options.allow_anonymous or has_configured_keys(options.api_keys_file) or is_loopback(options.host):
        return None
    ports = ", ".join(map(str, options.ports))
    return (
        f"\nNo API keys are set: any client that reaches port {ports} of this machine ({options.host}) can use this "
        "mesh and read its metrics. Set SPOTWISE_API_KEYS=KEY before `spotwise up`, or leave --host at 127.0.0.1"
    )


def _own_command() -> str:
    # As the user can type it: the plain name where PATH leads to this environment, else the path of this call.
    own = Path(sys.executable).with_name("spotwise")
    found = shutil.which("spotwise")
    if found is not None and Path(found) == own:
        return "spotwise"
    with contextlib.suppress(ValueError):
        return str(own.relative_to(Path.cwd()))
    return str(own)
