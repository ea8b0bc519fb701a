"""Orders from a group's leader to its devices, and their reports, over one stream a device.

Law: orders are carried out in the order of the stream, and steps end in it. A step computes one batch in all devices.
Control runs ahead of the data: a device receives a step before the activations that it needs (Orca, section 4.2).
Every group has an epoch; a report of an earlier one is ignored. Orders and reports of KV hand-offs are those of a worker's
role, each for the device's part.
"""

from __future__ import annotations

from enum import StrEnum

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages.reshape import PlannedWeights
from spotwise.core.requests.record import KvHandoff, KvShare, RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.core.values import value

#: A member of a group that shows no sign of life for so long is gone, unless a process is told otherwise.
GROUP_PATIENCE_S = 0.6


class GroupExchange(StrEnum):
    """What the members of a leader's groups exchange activations through: `AUTO` is memory where they share a machine."""

    AUTO = "auto"
    MEMORY = "memory"
    TCP = "tcp"


@value
class FormGroup:
    """Be the device of one position of a group; drops the sequences of the group before.

    Attributes:
        epoch: number of the group, higher than that of any before.
        stages, shards: P and M; `stage` and `shard` are the device's, from 0.
        exchange: path of the shared memory of all members; with `addresses`, the secret that their connections prove to know.
        num_blocks: blocks of the KV cache, and `host_blocks` of the host's memory for swapped KV, the same for all members.
        dtype: the model's number format, as a worker's setting.
        model_digest: digest of the leader's weights; `None`: unknown.
        addresses: where each member takes connections, `host:port`, by position; empty where they share memory.
        serves_early: the group need not wait for weights of later stages that other processes send: steps wait for them.
        weights: where the plan has its devices get theirs from.
        numerics_class: class of the leader, which all its devices must have.
    """

    epoch: int
    leader_id: str
    stages: int
    shards: int
    stage: int
    shard: int
    exchange: str
    num_blocks: int
    host_blocks: int
    block_size: int
    dtype: str
    model_digest: str | None
    addresses: tuple[str, ...] = ()
    serves_early: bool = False
    weights: tuple[PlannedWeights, ...] = ()
    numerics_class: str = ""


@value
class AddGroupSequence:
    """Add a sequence."""

    record: RequestRecord


@value
class DropGroupSequence:
    """Forget a sequence; idempotent."""

    sequence_id: str


@value
class AppendGroupTokens:
    """Append tokens that another device sampled, one to each sequence."""

    sequence_ids: tuple[str, ...]
    token_ids: tuple[int, ...]


@value
class StepRow:
    """A row of a batch; its blocks are the first `kept_blocks` of the sequence's last row, and `new_block_ids`."""

    sequence_id: str
    first_position: int
    num_tokens: int
    kept_blocks: int
    new_block_ids: tuple[int, ...]


@value
class RunStep:
    """Compute a batch; `number` counts a group's steps from 1."""

    number: int
    rows: tuple[StepRow, ...]


@value
class SwapGroupKv:
    """Copy blocks of the KV cache to the host's blocks, or back; `number` counts a group's swaps from 1."""

    number: int
    block_ids: tuple[int, ...]
    host_block_ids: tuple[int, ...]
    to_host: bool


@value
class ClearGroupKv:
    """Make zeros of what is no number in blocks of a sequence that failed for it: their next owner would fail, too."""

    block_ids: tuple[int, ...]


@value
class DissolveGroup:
    """Be in no group, and end what runs; weights stay.

    Attributes:
        is_last: the leader forms no further group, so that the device need not keep its part.
        for_good: the device leaves the mesh.
    """

    reason: str
    is_last: bool = False
    for_good: bool = False


GroupOrder = (
    FormGroup
    | AddGroupSequence
    | DropGroupSequence
    | AppendGroupTokens
    | RunStep
    | SwapGroupKv
    | ClearGroupKv
    | DissolveGroup
    | h.ExpectKv
    | h.ForgetKv
    | h.OpenPush
    | h.CommitPush
    | h.AbortPush
)


@value
class DeviceOffered:
    """What a process has for a group; a device's first report of a stream.

    Attributes:
        machine: processes that name the same can share memory.
        exchange_address: where it takes the connections of a group's members, `host:port`.
    """

    device_id: str
    kv_cache_bytes: int
    kv_host_bytes: int
    machine: str
    exchange_address: str


@value
class LoadedWeights:
    """What a device did for its part: bytes of weights that it has got from other devices, of them from others than were
    planned, and read from its folder. All 0: it had the part already, or gets it while the group serves.
    """

    fetched_bytes: int = 0
    unplanned_bytes: int = 0
    read_bytes: int = 0


@value
class GroupJoined:
    """The device has loaded its part of the model, and knows that all others have joined the exchange.

    Attributes:
        loaded: the weights that it got for that.
        computes_with: number format, device and kernels, for people.
        share: this device's part of the group's KV.
    """

    epoch: int
    loaded: LoadedWeights
    computes_with: str
    share: KvShare


@value
class StepEnded:
    """The device that samples has computed a step."""

    epoch: int
    number: int
    sampled: tuple[SampledToken, ...]


@value
class StepFailed:
    """A step could not be computed, and no later one can be: the group is broken."""

    epoch: int
    number: int
    reason: str


@value
class GroupSwapEnded:
    """A swap is complete, or `error` says why not."""

    epoch: int
    number: int
    error: str


@value
class GroupRefused:
    """The device cannot be part of the group, as long as the order stays the same."""

    epoch: int
    reason: str


@value
class GroupBroken:
    """The device has left the group: a member was lost, or could not be reached. The same members may form another."""

    epoch: int
    reason: str


@value
class PartArrived:
    """The device's part of a hand-off is complete and verified in its reserved blocks."""

    handoff: KvHandoff
    kv_bytes: int
    transfer_s: float
    transport: str


KvReport = PartArrived | h.PushCaughtUp | h.HandoffDelivered | h.HandoffFailed
GroupReport = (
    DeviceOffered | GroupJoined | StepEnded | StepFailed | GroupSwapEnded | GroupRefused | GroupBroken | KvReport
)
