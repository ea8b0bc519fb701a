"""The engine of a simulated group: a simulated worker's, which is lost with a member of the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotwise.core.costs.batching import Batch
from spotwise.core.messages.groups import GroupReport
from spotwise.core.requests.record import KvShare, RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.mesh.grpc.device_control import DeviceLink
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.simulated.engine import SimulatedEngine


class SimulatedGroupEngine(SimulatedEngine):
    """A `FormedEngine` that takes the time of a cost profile; only the leader has it, and its devices get no steps."""

    _is_whole = False
    _on_lost: Callable[[str], None] = staticmethod(lambda reason: None)
    _on_restored: Callable[[], None] = staticmethod(lambda: None)

    def watch(self, on_lost: Callable[[str], None], on_restored: Callable[[], None]) -> None:
        """See `WorkerEngine`."""
        self._on_lost, self._on_restored = on_lost, on_restored
        if self._is_whole:
            on_restored()
        else:
            on_lost("its group is not whole")

    def formed(self, links: Sequence[DeviceLink], epoch: int, shares: tuple[KvShare, ...]) -> None:
        """See `FormedEngine`."""
        self._is_whole = True
        self._on_restored()

    def lose(self, reason: str) -> None:
        """See `FormedEngine`."""
        if self._is_whole:
            self._is_whole = False
            self._on_lost(reason)
            self.drop_all(reason)

    def reported(self, report: GroupReport) -> None:
        """Nothing: devices report no work."""

    async def add_sequence(self, record: RequestRecord, prepared: None = None) -> None:
        """Add a sequence; raises `ValueError` where the engine refuses it, `MeshError` where the group is not whole."""
        if not self._is_whole:
            raise MeshError("the group is not whole")
        await super().add_sequence(record)

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        """Run a batch, unless the group is not whole: the role learns that at the same time."""
        if self._is_whole:
            super().run_iteration(batch, on_finished, on_failed, on_layers)
