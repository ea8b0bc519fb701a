"""One fetch of the weights that a part lacks, from the devices that have them: as the plan says, where there is one.

Panels are requested in the plan's order, then in the model's; from the holder that the plan names, if it has them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from spotwise.core.messages.reshape import PlannedWeights
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.weights.fetch_order import FetchOrder, PanelRequest
from spotwise.core.weights.inventory import PanelRange, WeightInventory
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.links.ucx_weights import UcxWeights
from spotwise.mesh.ports.weights import WeightTransferError

_log = structlog.get_logger(__name__)

#: Bytes of a request, at most, unless a panel is larger.
PIECE_BYTES = 2 << 20
#: Rank of what is in no plan.
_LAST = 1 << 30


@dataclass(frozen=True, slots=True)
class FetchedWeights:
    """What a device has got from others for a part: bytes, by holder, and seconds; `unplanned_bytes`: from others than the plan
    says; `put_off_bytes`: what no device gave.
    """

    bytes_from: Mapping[str, int]
    seconds: float
    put_off_bytes: int
    unplanned_bytes: int = 0

    @property
    def byte_count(self) -> int:
        """Bytes of all."""
        return sum(self.bytes_from.values())


class WeightFetch:
    """What is missing for a share, and who has it.

    Args:
        end: the end of this device's links.
        store: the device's weights.
        share: share of the model.
        holders: what others keep in the same layout, by address.
        buffer_bytes: U_max.
        planned: what the plan has this device get, in its order.
    """

    def __init__(
        self,
        end: UcxWeights,
        store: WeightStore,
        share: ModelShare,
        holders: Mapping[str, WeightInventory],
        buffer_bytes: int,
        planned: Sequence[PlannedWeights] = (),
    ) -> None:
        self._end = end
        self._store = store
        self._layers = share.layers
        self._holders = holders
        self._planned = _by_matrix(planned, store.layer_numbers(share))
        self._missing = sorted(store.missing(share), key=self._rank)  # stable
        panels = {address: inventory.panels for address, inventory in holders.items()}
        addresses = {inventory.device_id: address for address, inventory in holders.items()}
        named = {
            matrix: [addresses[source_id] for source_id in sources if source_id in addresses]
            for matrix, sources in self._planned.items()
        }
        self._order = FetchOrder(self._missing, panels, buffer_bytes, PIECE_BYTES, named)
        self._bytes_from = dict.fromkeys(addresses, 0)
        self._unplanned_bytes = 0

    def _rank(self, missing: PanelRange) -> int:
        """Where the plan has it; what the plan does not say comes last."""
        return min(self._planned.get(missing.matrix, {}).values(), default=_LAST)

    @property
    def missing_bytes(self) -> int:
        """Bytes that the part lacked before."""
        return sum(each.byte_count for each in self._missing)

    @property
    def gives_all(self) -> bool:
        """Whether others have all that is missing, and the store knows how each layer is computed."""
        is_known = all(index in self._store.fused_layers for index in self._layers)
        return is_known and all(map(self._is_held, self._missing))

    def _is_held(self, missing: PanelRange) -> bool:
        spans = [span for each in self._holders.values() for span in each.panels.get(missing.matrix, ())]
        return set(missing.panels) <= {panel for span in spans for panel in span}

    async def run(self, on_arrival: Callable[[], None] = lambda: None) -> FetchedWeights:
        """Get it, as far as others give it; `on_arrival` is called after each piece."""
        began_s = time.monotonic()
        asked: dict[asyncio.Task[WeightTransferError | None], PanelRequest] = {}
        layout = self._store.layout
        try:
            while True:
                for request in self._order.next_requests():
                    asked[asyncio.create_task(self._get(request, layout), name="get-panels")] = request
                if not asked:
                    break
                done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._answered(asked.pop(task), task.result())
                on_arrival()
        finally:
            for task in asked:
                task.cancel()
            if asked:
                await asyncio.wait(asked)
        put_off = sum(each.byte_count for each in self._order.put_off)
        given = {name: count for name, count in self._bytes_from.items() if count}
        fetched = FetchedWeights(given, time.monotonic() - began_s, put_off, self._unplanned_bytes)
        if fetched.byte_count:
            _log.info(
                "weights_fetched",
                megabytes=round(fetched.byte_count / 1e6, 1),
                put_off_megabytes=round(put_off / 1e6, 1),
                unplanned_megabytes=round(self._unplanned_bytes / 1e6, 1),
                seconds=round(fetched.seconds, 3),
                holders=sorted(given),
            )
        return fetched

    def _answered(self, request: PanelRequest, error: WeightTransferError | None) -> None:
        holder_id = self._holders[request.holder].device_id
        if error is None:
            self._order.arrived(request)
            self._bytes_from[holder_id] += request.range.byte_count
            if holder_id not in self._planned.get(request.range.matrix, ()):
                self._unplanned_bytes += request.range.byte_count
        else:
            _log.warning("weights_not_sent", holder=holder_id, reason=str(error))
            self._order.failed(request, holder_is_lost=error.holder_is_lost)

    async def _get(self, request: PanelRequest, layout: int) -> WeightTransferError | None:
        """Get panels into the store; return why they did not arrive."""
        into = self._store.expect_panels(request.range)
        try:
            await self._end.get(request.holder, layout, request.range, into)
        except WeightTransferError as error:
            self._store.give_up_panels(request.range)
            return error
        except BaseException:
            self._store.give_up_panels(request.range)
            raise
        self._store.panels_arrived(request.range)
        return None


def _by_matrix(planned: Sequence[PlannedWeights], layers: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return who gives each matrix by the plan, and as which of its steps."""
    steps = list(enumerate(planned))
    return {
        matrix: {
            each.source_id: step for step, each in steps if each.first_layer <= layer < each.first_layer + each.layers
        }
        for matrix, layer in layers.items()
    }
