"""Settings of a device, in addition to a worker's: its memory is what it offers to groups."""

from __future__ import annotations

from pydantic import Field

from spotwise.worker.settings import WorkerSettings


class DeviceSettings(WorkerSettings):
    """One device."""

    leader_id: str = Field(
        "", description="id of the worker for whose groups it computes first; unset: it waits for a re-shape"
    )
