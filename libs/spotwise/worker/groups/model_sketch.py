"""The model of a device that has no model folder: another device describes it, and gives the weights later."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from spotwise.core.weights.inventory import ModelSketch, WeightInventory
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.sketch_folder import write_sketch
from spotwise.mesh.links.ucx_weights import UcxWeights
from spotwise.mesh.ports.ports import MeshError, MeshStore
from spotwise.mesh.ports.weights import WeightTransferError
from spotwise.worker.groups.peer_weights import holders_in
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)

#: Interval at which devices that have the model are looked for.
_LOOK_S = 0.5


class _NothingYet:
    """The `WeightSource` of a device that does not know its model."""

    layout = 0

    def __init__(self, device_id: str) -> None:
        self._device_id = device_id

    def inventory(self) -> WeightInventory:
        return WeightInventory(self._device_id, 0, {}, {})

    def sketch(self) -> ModelSketch:
        raise ValueError("the process has no model yet")

    def export_panels(self, matrix: str, panels: range) -> memoryview:
        raise ValueError(f"panels {panels} of {matrix} are not here")

    def times_dropped(self, matrix: str, panels: range) -> int:
        return 0


@contextlib.asynccontextmanager
async def model_of_others(settings: WorkerSettings, store: MeshStore) -> AsyncIterator[WorkerSettings]:
    """Wait until a device of the mesh describes its model, and return settings with a folder that has its description.

    Raises:
        MeshError: devices serve several models, and `model_name` says not which; or the description cannot be kept.
    """
    sketch = await _described(settings, store)
    _log.info("model_described", model=sketch.name, digest=sketch.digest)
    with tempfile.TemporaryDirectory(prefix="spotwise-sketch-") as parent:
        folder = Path(parent) / "model"
        try:
            await asyncio.to_thread(write_sketch, sketch, folder)
        except ModelError as error:
            raise MeshError(str(error)) from error
        yield settings.model_copy(update={"model_dir": folder, "model_name": sketch.name})


async def _described(settings: WorkerSettings, store: MeshStore) -> ModelSketch:
    own_id = settings.service_id
    end = UcxWeights(_NothingYet(own_id), own_id, 0, settings.peer_host, security=settings.link_security())
    await end.start()
    try:
        is_told = False
        while True:
            holders = await holders_in(store, own_id, settings.model_name)
            if len(models := sorted({holder.model for holder in holders})) > 1:
                raise MeshError(f"devices serve {', '.join(models)}; SPOTWISE_MODEL_NAME says whose weights to get")
            for holder in holders:
                with contextlib.suppress(WeightTransferError):
                    return await end.sketch(holder.transfer_address)
            if not is_told:
                is_told = True
                _log.info("waiting_for_a_model", reason="no device of the mesh has described one yet")
            await asyncio.sleep(_LOOK_S)
    finally:
        await end.close()
