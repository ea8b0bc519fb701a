"""Runs a service: settings, logs, event loop, exit code."""

from __future__ import annotations

import resource
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
import uvloop
from pydantic import ValidationError

from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.garbage import collect_rarely, leave_to_the_system
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.mesh.service.telemetry import configure_logging

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def run_service(settings_type: type[SettingsT], serve: Callable[[SettingsT], Awaitable[None]]) -> int:
    """Read the settings from the environment, serve until a stop signal, and return the exit code: 0: stopped in order; 1: the
    mesh could not be joined; 2: a setting is wrong or missing.
    """
    try:
        settings = settings_type()
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(str(part) for part in problem["loc"]).upper()
            named = f"SPOTWISE_{name}: " if name else ""  # what is wrong with several names them itself
            sys.stderr.write(f"{named}{problem['msg'].removeprefix('Value error, ')}\n")
        return 2
    configure_logging(settings)
    _allow_files()
    collect_rarely()

    async def main() -> None:
        await serve(settings)

    try:
        uvloop.run(main())
    except MeshError as error:
        structlog.get_logger(__name__).error("cannot_serve", error=str(error))
        return 1
    finally:
        leave_to_the_system()
    return 0


def _allow_files() -> None:
    """Raise the soft limit of open files to the hard one: every connection is one, and the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
