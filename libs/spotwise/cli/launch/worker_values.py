"""Values of options that a worker's own settings check."""

from __future__ import annotations

import typer
from pydantic import ValidationError

from spotwise.cli.errors import OptionError
from spotwise.core.worker.scheduling.policies import served_policies
from spotwise.worker.settings import WorkerSettings


def policy_name(text: str) -> str:
    """Return `text` if it names a scheduling policy of live workers; raises `BadParameter` otherwise."""
    if text not in served_policies():
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, served_policies()))}.")
    return text


def require_worker_id(text: str, option: str) -> None:
    """Check that `text` is a valid worker id; raises `OptionError`, naming `option`, where it is not."""
    try:
        WorkerSettings.__pydantic_validator__.validate_assignment(WorkerSettings.model_construct(), "service_id", text)
    except ValidationError:
        raise OptionError(f"{option} {text!r} is no id; use letters, digits, '-' and '_'") from None
