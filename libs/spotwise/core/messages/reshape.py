"""Messages that change which groups serve: an operator's order, the planner's survey of devices, and its orders to lead.

Law: a group is formed by the device at its first position, which leads it and joins the mesh as a worker for it.
A device carries out orders of the latest term and change that it knows, or of later ones; a repetition changes nothing. Terms
grow with the clock, also where the store has lost its changes.
"""

from __future__ import annotations

from spotwise.core.messages.members import DevicePlace, Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.values import value


@value
class ReshapeMesh:
    """Serve with another configuration (its batch size is ignored); `dry_run`: only say what that would do."""

    config: ParallelConfig
    dry_run: bool = False


@value
class DeviceGroup:
    """A group of P stages of M shards that serves as a worker; its devices by position, stage by stage, the leader first."""

    worker_id: str
    pool: Pool
    stages: int
    shards: int
    device_ids: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every position has a device."""
        return 0 < len(self.device_ids) == self.stages * self.shards


@value
class PlannedWeights:
    """Weights that `device_id` lacks and `source_id` has: of `layers` layers from `first_layer` on. The embedding counts as
    layer -1, the head as one more than there are.
    """

    device_id: str
    source_id: str
    first_layer: int
    layers: int


@value
class PredictedReshape:
    """What a re-shape changes, and what it is expected to cost.

    Attributes:
        groups: all that serve afterwards, unchanged ones first.
        new_ids: workers of the groups that are formed; `retiring_ids`: workers that leave.
        kept_bytes: weights that are on their device already; `moved_bytes`: those that a device has to get, and `storage_bytes`
            of them those that no other device has.
        kv_bytes: bytes of KV of the requests that move.
        forming_s: until the new groups have their weights; the old ones serve meanwhile.
        pause_s: pause of each request that moves.
    """

    groups: tuple[DeviceGroup, ...]
    new_ids: tuple[str, ...]
    retiring_ids: tuple[str, ...]
    kept_bytes: int
    moved_bytes: int
    forming_s: float
    pause_s: float
    storage_bytes: int = 0
    kv_bytes: int = 0


@value
class ReshapeReply:
    """The planner's answer to `ReshapeMesh`.

    Attributes:
        detail: why it was refused; else what is planned, for people.
        change: number of the change that carries it out, which the plan in the store has, too; 0: none.
        prediction: where it was accepted, or would be.
    """

    accepted: bool
    detail: str
    change: int = 0
    prediction: PredictedReshape | None = None


@value
class SurveyDevice:
    """Report what the device holds; `number` is echoed."""

    sender_id: str
    number: int


@value
class GroupMembership:
    """A device's place in a group of a worker."""

    worker_id: str
    place: DevicePlace


@value
class DeviceSurveyed:
    """What a device holds: its places in groups, and the shape of the model that it serves."""

    device_id: str
    incarnation: int
    number: int
    model: ModelShape
    groups: tuple[GroupMembership, ...] = ()


@value
class LeadGroup:
    """Form a group of these devices, by position, and serve it as a worker; the first of them is the addressee.

    Attributes:
        worker_id: new in the mesh, or that of the same group before its leader was lost.
        stages, shards: P and M.
        change: number of the fleet's change, which the order is part of; `term`: the planner's.
        planner_id: hears what the devices got; empty: no planner does.
        weights: weights that its devices have to get, in the order of the plan. For weights that it leaves out, or that
            can no longer be had like this, each device chooses a source itself.
        serves_early: nothing else serves: the group need not wait for the weights of its later stages.
    """

    worker_id: str
    pool: Pool
    stages: int
    shards: int
    device_ids: tuple[str, ...]
    term: int
    change: int
    planner_id: str = ""
    weights: tuple[PlannedWeights, ...] = ()
    serves_early: bool = False


@value
class GroupFormed:
    """What the devices of a group that formed for the first time got, told by its leader; bytes of weights.

    Attributes:
        fetched_bytes: from other devices; `unplanned_bytes` of them from others than the plan says.
        read_bytes: from model folders.
    """

    worker_id: str
    change: int
    fetched_bytes: int
    unplanned_bytes: int
    read_bytes: int
