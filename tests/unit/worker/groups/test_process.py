"""A process leads the workers that it is told to, once each, and says what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import DevicePlace, MemberKind, Pool
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.clock import SystemClock
from spotwise.worker.groups.formation import NotWantedError
from spotwise.worker.groups.process import DeviceProcess
from spotwise.worker.settings import WorkerSettings
from tests.contracts.waiting import until
from tests.unit.core.parallel.builders import MODEL

PLACE = DevicePlace(7, 1, 2, 0, 1, (0, 4), (2, 4))


class Host:
    """A device's membership."""

    id = "d0"

    def __init__(self) -> None:
        self.member: Any = SimpleNamespace(id="d0", incarnation=3, leader_id="")
        self.introduced: list[dict[str, Any]] = []
        self.sent: list[tuple[str, m.Message]] = []
        self.failures: list[str] = []
        self.stopped = False
        self.clock = SystemClock()

    def introduce(self, **fields: Any) -> None:
        self.introduced.append(fields)

    def describe_with(self, describe: Any) -> None: ...

    def beat_soon(self) -> None: ...

    def send(self, recipient_id: str, message: m.Message) -> None:
        self.sent.append((recipient_id, message))

    def spawn(self, work: Any, name: str) -> None:
        self.work = asyncio.ensure_future(work)

    def stop(self) -> None:
        self.stopped = True

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


class Lead:
    """Serves workers until a test ends them."""

    def __init__(self) -> None:
        self.led: list[tuple[WorkerSettings, MemberKind, m.LeadGroup | None]] = []
        self.ends: dict[str, asyncio.Future[bool]] = {}

    async def __call__(
        self, process: DeviceProcess, settings: WorkerSettings, kind: MemberKind, order: m.LeadGroup | None
    ) -> bool:
        self.led.append((settings, kind, order))
        self.ends[settings.service_id] = asyncio.get_running_loop().create_future()
        return await self.ends[settings.service_id]


class NoParts:
    """Parts of a device that computes nothing."""

    async def shape(self) -> ModelShape:
        return replace(MODEL, name="tiny")

    async def follow(self, device: Any, leader_id: str, orders: Any, report: Any) -> None: ...

    async def free(self, leader_id: str) -> None: ...

    async def give_back(self) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
async def lead() -> Lead:
    return Lead()


@pytest.fixture
async def host() -> Host:
    return Host()


@pytest.fixture
async def process(lead: Lead, host: Host, tmp_path: Any) -> AsyncIterator[DeviceProcess]:
    (tmp_path / "config.json").write_text("{}")
    settings = WorkerSettings(service_id="d0", model_dir=tmp_path, model_name="tiny", transfer_port=7000)
    made = DeviceProcess(cast(Any, None), cast(Any, host), settings, NoParts(), "d0:1", lead)
    made._shape = replace(MODEL, name="tiny")  # as `serve` finds it
    yield made
    await made.close()


def order(**changes: Any) -> m.LeadGroup:
    return replace(m.LeadGroup("mixed-c2-0", Pool.PROMPT, 2, 1, ("d0", "d1"), term=4, change=2), **changes)


async def _receive(process: DeviceProcess, *messages: m.Message) -> None:
    for message in messages:
        await process._on_message(message, cast(Any, None))
        await asyncio.sleep(0)


async def test_it_leads_a_worker_once_however_often_it_is_told(process: DeviceProcess, lead: Lead, host: Host) -> None:
    """With the worker's id, pool and shape, and a KV listener of its own."""
    await _receive(process, order(), order(), order(term=5))
    ((settings, kind, ordered),) = lead.led
    assert (settings.service_id, settings.pool, settings.stages, settings.shards) == ("mixed-c2-0", Pool.PROMPT, 2, 1)
    assert (settings.transfer_port, kind, ordered) == (0, MemberKind.PROMPT_WORKER, order())
    assert not host.stopped


@pytest.mark.parametrize(
    "refused", [order(change=1), order(term=3), order(device_ids=("d1", "d0"))], ids=["change", "term", "addressee"]
)
async def test_old_and_misdirected_orders_are_refused(refused: m.LeadGroup, process: DeviceProcess, lead: Lead) -> None:
    await _receive(process, order(), replace(refused, worker_id="other"))
    assert [settings.service_id for settings, _, _ in lead.led] == ["mixed-c2-0"]


@pytest.mark.parametrize("devices_stay", [True, False])
async def test_the_process_ends_with_a_worker_whose_machine_goes(
    devices_stay: bool, process: DeviceProcess, lead: Lead, host: Host
) -> None:
    """A re-shape ends the worker only, which may be led again."""
    await _receive(process, order())
    lead.ends["mixed-c2-0"].set_result(devices_stay)
    await until(lambda: not process._led)
    assert host.stopped != devices_stay
    await _receive(process, order())
    assert len(lead.led) == 2


async def test_a_process_under_notice_leaves_once_it_is_in_no_group(
    process: DeviceProcess, lead: Lead, host: Host
) -> None:
    """It takes no further position, and tells when it leaves at the latest; a later deadline changes nothing."""
    process.entered("old", PLACE)
    at_s = host.clock.now() + 60.0
    await _receive(process, m.Drain("another", at_s))
    await _receive(process, m.Drain("d0", at_s))
    await _receive(process, m.Drain("d0", at_s + 60.0))
    await _receive(process, order())
    member = m.Member("d0", MemberKind.DEVICE, 3, m.MemberState.READY, "host", 1, "")
    assert process._described(member) == replace(member, state=m.MemberState.DRAINING, leaves_at_s=at_s)
    await asyncio.sleep(0.3)
    assert (lead.led, host.stopped) == ([], False)
    process.left("old")
    await until(lambda: host.stopped)


async def test_a_process_under_notice_leaves_at_its_deadline(process: DeviceProcess, host: Host) -> None:
    """Whatever it computes: its machine is gone."""
    process.entered("old", PLACE)
    await _receive(process, m.Drain("d0", host.clock.now() + 60.0))
    await _receive(process, m.Drain("d0", host.clock.now()))
    await until(lambda: host.stopped)


async def test_a_group_that_cannot_be_formed_costs_the_device_nothing(
    process: DeviceProcess, lead: Lead, host: Host
) -> None:
    await _receive(process, order())
    lead.ends["mixed-c2-0"].set_exception(MeshError("the model cannot be cut into 2 x 5"))
    await until(lambda: not process._led)
    assert (host.stopped, host.failures) == (False, [])


async def test_a_worker_whose_group_is_not_formed_yet_hears_its_drain(
    process: DeviceProcess, lead: Lead, host: Host
) -> None:
    """No other member hears it for the worker; the device stays, and leads further ones."""
    await _receive(process, order())
    end = lead.ends["mixed-c2-0"]
    process.forms("mixed-c2-0", lambda: end.set_exception(NotWantedError("not formed")))
    await _receive(process, m.Drain("another", 0.0), m.Drain("mixed-c2-0", 0.0))
    assert end.done()
    await _receive(process, m.Drain("mixed-c2-0", 0.0), order(worker_id="mixed-c3-0", change=3))
    assert len(lead.led) == 2
    assert not host.stopped and not host.failures


async def test_a_worker_that_serves_hears_its_drain_itself(process: DeviceProcess, lead: Lead) -> None:
    given_up = list[str]()
    await _receive(process, order())
    process.forms("mixed-c2-0", lambda: given_up.append("mixed-c2-0"))
    process.serves("mixed-c2-0")
    await _receive(process, m.Drain("mixed-c2-0", 0.0))
    assert not given_up


async def test_an_error_that_was_not_foreseen_ends_the_process(process: DeviceProcess, lead: Lead, host: Host) -> None:
    """Nothing else would notice it: the supervisor starts the process again."""
    await _receive(process, order())
    lead.ends["mixed-c2-0"].set_exception(RuntimeError("a bug"))
    await until(lambda: bool(host.failures))
    assert host.failures == ["mixed-c2-0 cannot be led: a bug"]


async def test_it_reports_its_places_and_the_newest_in_its_heartbeat(process: DeviceProcess, host: Host) -> None:
    """A device may be in an old group and a new one."""
    newer = replace(PLACE, epoch=9, shard=0)
    process.entered("old", PLACE)
    process.entered("new", newer)
    assert host.introduced[-1] == {"place": newer, "leader_id": "new"}
    await _receive(process, m.SurveyDevice("planner-0", 5))
    ((recipient_id, report),) = host.sent
    assert recipient_id == "planner-0"
    assert report == m.DeviceSurveyed(
        "d0",
        3,
        5,
        replace(MODEL, name="tiny"),
        (m.GroupMembership("new", newer), m.GroupMembership("old", PLACE)),
    )
    process.left("new")
    assert host.introduced[-1] == {"place": PLACE, "leader_id": "old"}
    process.left("old")
    assert host.introduced[-1] == {"place": None, "leader_id": ""}
