"""Options that say which mesh a command is about: one of this machine, or another by its servers."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

MeshName: TypeAlias = Annotated[str, typer.Option("--name", help="Which of this machine's meshes.")]
NatsUrl: TypeAlias = Annotated[str | None, typer.Option("--nats-url", help="NATS URL of a mesh on other machines.")]
RedisUrl: TypeAlias = Annotated[str | None, typer.Option("--redis-url", help="Redis URL of a mesh on other machines.")]
