"""A mesh to which machines come and which they leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil

from spotwise.core.messages.members import MemberState
from spotwise.core.messages.reshape import DeviceGroup
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from tests.live.mesh import EXECUTED, LiveMesh, wait_for

#: Longer than a change takes on a busy machine.
CHANGES_S = 90.0
_JOINS_S = 150.0


class Fleet(LiveMesh):
    """A mesh, and devices of processes of their own, which are ended with it."""

    def __init__(self, home: Path, *options: str, env: dict[str, str] | None = None) -> None:
        super().__init__(home, *options, env={**EXECUTED, **(env or {})})
        self._acquired: dict[str, subprocess.Popen[bytes]] = {}
        self._device_env: dict[str, str] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._device_env = psutil.Process(self.pid("device-0")).environ()
        return self

    def down(self) -> None:
        """Stop it, and the devices that came."""
        while self._acquired:
            self.end(next(iter(self._acquired)))
        super().down()

    @property
    def acquired_ids(self) -> list[str]:
        """The devices that came and were not ended."""
        return list(self._acquired)

    def acquire(self, *device_ids: str) -> None:
        """New machines come, and join."""
        for device_id in device_ids:
            self._acquired[device_id] = subprocess.Popen(
                [sys.executable, "-m", "spotwise.worker.groups"],
                env=self._device_env | {"SPOTWISE_SERVICE_ID": device_id},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        wait_for(lambda: set(device_ids) <= self.ready_ids(), lambda: f"{device_ids} to join", _JOINS_S)

    def end(self, device_id: str) -> None:
        """Let a machine that came be gone."""
        process = self._acquired.pop(device_id)
        process.kill()
        process.wait()

    def change(self) -> int:
        """The number of the last change."""
        deployment = self.planned()
        return 0 if deployment is None else deployment.change

    def comes_to(self, after: int, *stages: ReshapeStage, using: frozenset[str] = frozenset()) -> PlannedDeployment:
        """Wait until a later change than `after`, whose last new group has one of these devices, is at one of these stages."""
        found: list[PlannedDeployment] = []

        def is_there() -> bool:
            deployment = self.planned()
            if deployment is None or deployment.change <= after or not deployment.new_ids:
                return False
            if using and not using & set(deployment.new[-1].device_ids):
                return False  # a stopgap, where a planner has not heard of the device yet
            found[:] = [deployment]
            return deployment.stage in stages

        wait_for(is_there, lambda: f"{stages} of a change after {after}: {found}", CHANGES_S)
        return found[0]

    def worker_ids(self) -> set[str]:
        """The workers that serve."""
        return {status.member.id for status in self.members() if status.member_now.load is not None}

    def device_pid(self, device_id: str) -> int:
        """The process of a device."""
        (pid,) = (status.member.pid for status in self.members() if status.member.id == device_id)
        return pid

    def member_ids(self) -> set[str]:
        """All that is in the mesh."""
        return {status.member.id for status in self.members()}

    def ready_ids(self) -> set[str]:
        """All that serves."""
        return {status.member.id for status in self.members() if status.member_now.state is MemberState.READY}

    def newest_group(self) -> DeviceGroup:
        """The newest group of the deployment."""
        deployment = self.planned()
        assert deployment is not None
        return deployment.groups[-1]

    def settled(self, *gone: str, after: int, within_s: float) -> PlannedDeployment:
        """Wait until the change is over and devices have left; what serves has none of them."""
        deployment = self.comes_to(after, ReshapeStage.DONE)
        wait_for(lambda: not set(gone) & self.member_ids(), lambda: f"{gone} to leave", within_s)
        wait_for(
            lambda: self.worker_ids() == {self.newest_group().worker_id},
            lambda: f"{self.newest_group()}, not {self.worker_ids()}",
            CHANGES_S,
        )
        assert not set(gone) & set(self.newest_group().device_ids)
        self.wait_until_idle()
        return deployment
