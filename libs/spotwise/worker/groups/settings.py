"""Settings of a device, in addition to a worker's: its memory is what it offers to groups."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from spotwise.mesh.service.settings import is_model_folder
from spotwise.worker.settings import WorkerSettings


class DeviceSettings(WorkerSettings):
    """One device."""

    model_dir: Path = Field(
        Path(),
        description="Hugging Face folder of the model; unset: the device gets the model from others that have it",
    )
    leader_id: str = Field(
        "", description="id of the worker for whose groups it computes first; unset: it waits for a re-shape"
    )

    @field_validator("model_dir")
    @classmethod
    def _is_model(cls, model_dir: Path) -> Path:
        return model_dir if model_dir == Path() else is_model_folder(model_dir)

    @property
    def is_device(self) -> bool:
        """It is one."""
        return True

    @property
    def has_folder(self) -> bool:
        """Whether it has a model folder."""
        return self.model_dir != Path()
