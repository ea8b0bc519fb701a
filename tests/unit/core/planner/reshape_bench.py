"""A planner on a bench with devices: the test is its groups of devices, which form and leave as the planner orders."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import DevicePlace, Pool
from spotwise.core.messages.numerics import Numerics
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.planner import commands as c
from spotwise.core.planner.plan import Plan, PlannedDeployment, ReshapeStage
from spotwise.core.planner.policy import PlannerPolicy
from tests.unit.core.builders import plain_member, worker_member
from tests.unit.core.planner.bench import PlannerBench

MODEL = ModelShape("six", 6, 64, 6_000, 3_000, 3_000, 256)
#: A cut of it by 3 KV heads.
PARTITION = ModelDimensions(6, 6, 3, 32, 32, 192, 384, 960, 1.0, (LayerMatrix(192, 192, True),))


def group(worker_id: str, *device_ids: str, stages: int = 1, pool: Pool = Pool.MIXED) -> m.DeviceGroup:
    """A group of these devices."""
    return m.DeviceGroup(worker_id, pool, stages, len(device_ids) // stages, device_ids)


class ReshapeBench(PlannerBench):
    """Workers that are groups of devices; each device reports its places.

    Attributes:
        groups: that serve now, by worker.
        forms: whether a group serves when its leader is told to lead it; one of `refused` never does.
        drains_reach: whether workers receive their drains.
    """

    def __init__(
        self,
        *groups: m.DeviceGroup,
        spare: tuple[str, ...] = (),
        plan: Plan | None = None,
        term: int | None = 5,
        policy: PlannerPolicy | None = None,
        model: ModelShape = MODEL,
    ) -> None:
        super().__init__(policy, term=None)
        for member in list(self.workers.values()):
            self.leave(member.id)
        self.model = model
        self.groups: dict[str, m.DeviceGroup] = {}
        self.forms = True
        self.refused: set[str] = set()
        self.drains_reach = True
        self._seen = 0
        self._drained = 0
        self._requests = 0
        for device_id in [*(each for some in groups for each in some.device_ids), *spare]:
            self.join_device(device_id)
        for each in groups:
            self.serve(each)
        if term is not None:
            self.feed(c.TermHeld(term, 1e12, plan))

    def join_device(self, device_id: str, numerics: Numerics | None = None) -> None:
        """Let a device join that is in no group."""
        self.devices[device_id] = m.DeviceSurveyed(device_id, 1, 0, self.model)
        self.workers[device_id] = replace(plain_member(device_id, m.MemberKind.DEVICE), numerics=numerics)
        self.feed(self.workers[device_id])

    def serve(self, each: m.DeviceGroup, state: m.MemberState = m.MemberState.READY, incarnation: int = 1) -> None:
        """Let a group join the mesh as a worker."""
        self.groups[each.worker_id] = each
        for number, device_id in enumerate(each.device_ids):
            stage, shard = divmod(number, each.shards)
            place = DevicePlace(1, each.stages, each.shards, stage, shard, (0, 1), (0, 1))
            report = self.devices[device_id]
            self.devices[device_id] = replace(report, groups=(*report.groups, m.GroupMembership(each.worker_id, place)))
            self.workers[device_id] = replace(self.workers[device_id], leader_id=each.worker_id, place=place)
            self.feed(self.workers[device_id])
        member = worker_member(each.worker_id, each.pool, blocks=100_000, state=state, incarnation=incarnation)
        self.workers[each.worker_id] = member
        self.feed(member)

    def leave(self, worker_id: str, state: m.MemberState = m.MemberState.LEFT) -> None:
        """End a worker; its devices stay."""
        self.feed(replace(self.workers.pop(worker_id), state=state))
        for device_id, report in self.devices.items():
            left = tuple(each for each in report.groups if each.worker_id != worker_id)
            self.devices[device_id] = replace(report, groups=left)

    def reshape(self, config: str, *, dry_run: bool = False) -> m.ReshapeReply | None:
        """Order a configuration; return the answer, if it comes within two seconds."""
        self._requests += 1
        self.feed(c.ReshapeRequested(self._requests, m.ReshapeMesh(ParallelConfig.parse(config), dry_run)))
        for _ in range(20):
            if found := [each.reply for each in self.answers if each.number == self._requests]:
                return found[0]
            self.pass_time(0.1)
        return None

    def accepted(self, config: str, *, dry_run: bool = False) -> tuple[m.ReshapeReply, m.PredictedReshape]:
        """Order a configuration that is accepted; return the answer, and what it predicts."""
        reply = self.reshape(config, dry_run=dry_run)
        assert reply is not None and reply.accepted and reply.prediction is not None, reply
        return reply, reply.prediction

    def refusal(self, config: str) -> str:
        """Order a configuration that is refused; return why."""
        reply = self.reshape(config)
        assert reply is not None and not reply.accepted
        return reply.detail

    def pass_time(self, seconds: float) -> None:
        """Let time pass: leaders form their groups, workers drain, and those that hold nothing leave."""
        for _ in range(round(seconds * 10)):
            super().pass_time(0.1)
            for _, send in self.orders(m.LeadGroup)[self._seen :]:
                self._seen += 1
                assert isinstance(send.message, m.LeadGroup)
                self._lead(send.message)
            for _, drain in self.drains[self._drained :]:
                self._drained += 1
                if self.drains_reach and drain.worker_id in self.workers:
                    draining = replace(
                        self.workers[drain.worker_id], state=m.MemberState.DRAINING, leaves_at_s=drain.deadline_s
                    )
                    self.workers[drain.worker_id] = draining
                    self.held.setdefault(drain.worker_id, [])
            for worker_id, member in list(self.workers.items()):
                if member.state is m.MemberState.DRAINING and not self.held.get(worker_id):
                    self.leave(worker_id)

    def _lead(self, order: m.LeadGroup) -> None:
        can_form = all(device_id in self.devices for device_id in order.device_ids)
        if self.forms and can_form and order.worker_id not in {*self.refused, *self.workers}:
            formed = m.DeviceGroup(order.worker_id, order.pool, order.stages, order.shards, order.device_ids)
            self.serve(formed, incarnation=round(self.now))

    @property
    def led(self) -> list[tuple[float, str, str]]:
        """Orders to lead: when, to which device, which worker."""
        return [
            (at_s, send.recipient_id, send.message.worker_id)
            for at_s, send in self.orders(m.LeadGroup)
            if isinstance(send.message, m.LeadGroup)
        ]

    @property
    def deployment(self) -> PlannedDeployment:
        """As it was stored last."""
        deployment = self.plans[-1].deployment
        assert deployment is not None
        return deployment

    @property
    def stages(self) -> list[ReshapeStage]:
        """The stages that were logged."""
        return [each.stage for each in self.reshapes]

    def successor(self, term: int = 6) -> ReshapeBench:
        """Another planner, which has heard nothing yet, with the stored plan; workers and devices are as they are."""
        other = ReshapeBench(term=None, policy=self.role.policy, model=self.model)
        other.now = self.now
        other.workers, other.devices, other.groups = dict(self.workers), dict(self.devices), dict(self.groups)
        other.held, other.forms, other.refused = self.held, self.forms, self.refused
        other.feed(c.TermHeld(term, 1e12, self.plans[-1] if self.plans else None))
        return other
