"""Weights between processes' ends over real UCX: inventories, panels in place, refusals, damage, lost and silent holders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest

from spotwise.core.weights.inventory import FilePiece, ModelSketch, PanelRange, SketchFile, WeightInventory
from spotwise.mesh.links.ucx_weights import UcxWeights
from spotwise.mesh.ports.weights import WeightTransferError
from spotwise.mesh.security.link_security import LinkEncryption, LinkSecurity
from spotwise.mesh.security.secrets import MeshSecret

pytestmark = [pytest.mark.mesh, pytest.mark.paired]

ENCRYPTED = LinkSecurity(MeshSecret(b"s" * 32), LinkEncryption.ON)
LAYOUT, PANELS, PANEL_BYTES = 77, 8, 64 << 10
SKETCH = ModelSketch("model", "d1", (SketchFile("config.json", 10, (FilePiece(2, b"abc"),)),))


class Source:
    """One matrix, of which some panels are here."""

    def __init__(self, name: str = "holder", held: range = range(PANELS)) -> None:
        self.name = name
        self.held = held
        self.layout = LAYOUT
        random = np.random.default_rng(len(name))
        self.data = random.integers(0, 255, PANELS * PANEL_BYTES, np.uint8)
        self.exports = 0
        self.drops = 0

    def inventory(self) -> WeightInventory:
        return WeightInventory(self.name, self.layout, {0: True, 1: False}, {"w": (self.held,)})

    def sketch(self) -> ModelSketch:
        return SKETCH

    def export_panels(self, matrix: str, panels: range) -> memoryview:
        self.exports += 1
        if matrix != "w" or not (self.held.start <= panels.start and panels.stop <= self.held.stop):
            raise ValueError(f"panels {panels} of {matrix} are not here")
        return self.data.data[panels.start * PANEL_BYTES : panels.stop * PANEL_BYTES].toreadonly()

    def times_dropped(self, matrix: str, panels: range) -> int:
        return self.drops


def wanted(panels: range, matrix: str = "w") -> PanelRange:
    return PanelRange(matrix, panels, PANEL_BYTES)


@contextlib.asynccontextmanager
async def ends(
    *sources: Source, patience_s: float = 5.0, security: LinkSecurity | None = None
) -> AsyncIterator[list[UcxWeights]]:
    opened = [UcxWeights(source, source.name, 1, patience_s=patience_s, security=security) for source in sources]
    try:
        for end in opened:
            await end.start()
        yield opened
    finally:
        for end in opened:
            await end.close()


@pytest.mark.parametrize("security", [None, ENCRYPTED], ids=["plain", "encrypted"])
async def test_what_a_holder_has_is_listed_described_and_sent(security: LinkSecurity | None) -> None:
    """Inventory and sketch as they are; panels byte for byte, in the memory that was named."""
    source = Source()
    async with ends(source, Source("asking"), security=security) as (holder, asking):
        assert await asking.inventory(holder.address) == source.inventory()
        assert await asking.sketch(holder.address) == SKETCH
        into = bytearray(PANELS * PANEL_BYTES)
        cuts = [range(3), range(3, 4), range(4, 8)]
        await asyncio.gather(
            *(
                asking.get(
                    holder.address,
                    LAYOUT,
                    wanted(panels),
                    memoryview(into)[panels.start * PANEL_BYTES : panels.stop * PANEL_BYTES],
                )
                for panels in cuts
            )
        )
        assert bytes(into) == source.data.tobytes()


@pytest.mark.parametrize(
    ("layout", "request_", "reason"),
    [
        (LAYOUT, wanted(range(2, 6)), "are not here"),
        (LAYOUT, wanted(range(1), "v"), "are not here"),
        (LAYOUT + 1, wanted(range(1)), "another layout"),
    ],
)
@pytest.mark.parametrize("security", [None, ENCRYPTED], ids=["plain", "encrypted"])
async def test_what_it_does_not_have_is_refused(
    layout: int, request_: PanelRange, reason: str, security: LinkSecurity | None
) -> None:
    """With a reason; the link serves on, and the holder is not taken for lost."""
    source = Source(held=range(4))
    async with ends(source, Source("asking"), security=security) as (holder, asking):
        into = memoryview(bytearray(request_.byte_count))
        with pytest.raises(WeightTransferError, match=reason) as caught:
            await asking.get(holder.address, layout, request_, into)
        assert not caught.value.holder_is_lost
        await asking.get(holder.address, LAYOUT, wanted(range(1)), into[:PANEL_BYTES])


async def test_panels_that_change_while_they_are_sent_are_noticed() -> None:
    """As where their memory is given back: the checksum is that of the panels."""
    source = Source()
    async with ends(source, Source("asking")) as (holder, asking):
        into = memoryview(bytearray(PANEL_BYTES))
        await asking.get(holder.address, LAYOUT, wanted(range(1)), into)
        source.data[:PANEL_BYTES] = 0
        with pytest.raises(WeightTransferError, match="damaged") as caught:
            await asking.get(holder.address, LAYOUT, wanted(range(1)), into)
        assert not caught.value.holder_is_lost


@pytest.mark.parametrize("security", [None, ENCRYPTED], ids=["plain", "encrypted"])
async def test_panels_that_are_given_back_before_their_checksum_is_known_are_refused(
    security: LinkSecurity | None,
) -> None:
    """Their zeros would have the right checksum; once the panels are here again they are sent."""

    class Dropping(Source):
        def export_panels(self, matrix: str, panels: range) -> memoryview:
            found = super().export_panels(matrix, panels)
            if self.exports == 1:
                self.drops += 1
                self.data[:PANEL_BYTES] = 0
            return found

    source = Dropping()
    data = source.data[:PANEL_BYTES].tobytes()
    async with ends(source, Source("asking"), security=security) as (holder, asking):
        into = memoryview(bytearray(PANEL_BYTES))
        with pytest.raises(WeightTransferError, match="given back") as caught:
            await asking.get(holder.address, LAYOUT, wanted(range(1)), into)
        assert not caught.value.holder_is_lost
        source.data[:PANEL_BYTES] = np.frombuffer(data, np.uint8)
        await asking.get(holder.address, LAYOUT, wanted(range(1)), into)
        assert bytes(into) == data


@pytest.mark.parametrize("security", [None, ENCRYPTED], ids=["plain", "encrypted"])
async def test_a_holder_that_closes_is_lost(security: LinkSecurity | None) -> None:
    """Also for requests under way, whose memory is not written any more; and one that cannot be reached."""
    async with ends(Source(), Source("asking"), security=security) as (holder, asking):
        into = [memoryview(bytearray(PANELS * PANEL_BYTES)) for _ in range(6)]
        asked = [asyncio.create_task(asking.get(holder.address, LAYOUT, wanted(range(PANELS)), each)) for each in into]
        await asyncio.sleep(0)
        await holder.close()
        results = await asyncio.gather(*asked, return_exceptions=True)
        lost = [each for each in results if isinstance(each, WeightTransferError)]
        assert all(each.holder_is_lost for each in lost)
        assert all(each is None or isinstance(each, WeightTransferError) for each in results)
        with pytest.raises(WeightTransferError) as caught:
            await asking.inventory(holder.address)
        assert caught.value.holder_is_lost


async def test_a_holder_that_says_nothing_is_lost() -> None:
    class Silent(Source):
        def sketch(self) -> ModelSketch:
            import time

            time.sleep(1.5)
            return SKETCH

    async with ends(Silent(), Source("asking"), patience_s=0.5) as (holder, asking):
        for _ in range(20):  # until they are connected, which may take longer on a busy machine
            with contextlib.suppress(WeightTransferError):
                await asking.inventory(holder.address)
                break
        with pytest.raises(WeightTransferError, match="said nothing") as caught:
            await asking.sketch(holder.address)
        assert caught.value.holder_is_lost
