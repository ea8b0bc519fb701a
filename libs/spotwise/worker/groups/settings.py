"""Settings of a device, in addition to a worker's: its memory is what it offers to its leader's groups."""

from __future__ import annotations

from pydantic import Field

from spotwise.worker.settings import WorkerSettings


class DeviceSettings(WorkerSettings):
    """One device of a worker's groups."""

    leader_id: str = Field(min_length=1, description="id of the worker for whose groups this process computes")
