"""What the objects of the API's bodies have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictBody(BaseModel):
    """An object of the API: no coercion of types, unknown members ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")
