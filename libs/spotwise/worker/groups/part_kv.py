"""The KV of a group's leader, as long as groups hand over nothing: a part of it is no hand-off."""

from __future__ import annotations

from typing import Any

from spotwise.mesh.ports import KvMemory


class PartKv:
    """A `KvMemory` whose layout no other worker has, so that hand-offs from and to it are refused."""

    def __init__(self, memory: KvMemory, worker_id: str) -> None:
        self._memory = memory
        #: See `KvMemory`.
        self.layout = f"a part of {memory.layout}, of {worker_id}"

    @property
    def num_layers(self) -> int:
        """Layers of the model that hold KV."""
        return self._memory.num_layers

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer, K and V together."""
        return self._memory.layer_block_bytes

    def export_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None) -> Any:
        """See `KvMemory`."""
        return self._memory.export_layers(first_layer, num_layers, block_ids, into)

    def import_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: Any) -> None:
        """See `KvMemory`."""
        self._memory.import_layers(first_layer, num_layers, block_ids, data)
