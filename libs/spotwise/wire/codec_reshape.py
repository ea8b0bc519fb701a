"""Orders and reports of changes of groups, to protobuf and back."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.wire.codec_members import PLACE
from spotwise.wire.field_codec import Codec, codec_of, each_of, same
from spotwise.wire.v1 import reshape_pb2 as reshape

_MATRIX = codec_of(LayerMatrix, reshape.LayerMatrix, "columns", "inputs", "gathers")
_PARTITION = codec_of(
    ModelDimensions,
    reshape.ModelPartition,
    *("layers", "query_heads", "kv_heads", "key_dim", "value_dim"),
    *("hidden_size", "inner_size", "vocab_size", "head_layers"),
    optional=("stays_whole",),
    matrices=each_of(_MATRIX),
)
_GROUP = codec_of(m.GroupMembership, reshape.GroupMembership, "worker_id", place=PLACE)
_DEVICES = codec_of(
    m.DeviceGroup,
    reshape.DeviceGroup,
    *("worker_id", "stages", "shards"),
    pool=(same, m.Pool),
    device_ids=(same, tuple),
)
_PREDICTION = codec_of(
    m.PredictedReshape,
    reshape.PredictedReshape,
    *("kept_bytes", "moved_bytes", "storage_bytes", "kv_bytes", "forming_s", "pause_s"),
    groups=each_of(_DEVICES),
    new_ids=(same, tuple),
    retiring_ids=(same, tuple),
)
_SHAPE_FIELDS = (
    *("name", "layers", "hidden_size", "layer_bytes", "embedding_bytes", "head_bytes"),
    *("kv_layer_token_bytes", "value_bytes"),
)


def _shape_to(shape: ModelShape) -> reshape.ModelShape:
    partition = None if shape.partition is None else _PARTITION[0](shape.partition)
    return reshape.ModelShape(**{name: getattr(shape, name) for name in _SHAPE_FIELDS}, partition=partition)


def _shape_from(proto: reshape.ModelShape) -> ModelShape:
    partition = _PARTITION[1](proto.partition) if proto.HasField("partition") else None
    return ModelShape(**{name: getattr(proto, name) for name in _SHAPE_FIELDS}, partition=partition)


def mesh_to(message: m.ReshapeMesh) -> reshape.ReshapeMesh:
    """Return the protobuf message."""
    config = message.config
    return reshape.ReshapeMesh(
        data=config.data,
        stages=config.pipeline,
        shards=config.tensor,
        prompt_data=config.prompt_data,
        dry_run=message.dry_run,
    )


def mesh_from(proto: reshape.ReshapeMesh) -> m.ReshapeMesh:
    """Return the order that `mesh_to` turned into `proto`; raises `ValueError` where it is no configuration."""
    config = ParallelConfig(proto.data, proto.stages, proto.shards, prompt_data=proto.prompt_data)
    return m.ReshapeMesh(config, proto.dry_run)


def reply_to(message: m.ReshapeReply) -> reshape.ReshapeReply:
    """Return the protobuf message."""
    prediction = None if message.prediction is None else _PREDICTION[0](message.prediction)
    return reshape.ReshapeReply(
        accepted=message.accepted, detail=message.detail, change=message.change, prediction=prediction
    )


def reply_from(proto: reshape.ReshapeReply) -> m.ReshapeReply:
    """Return the answer that `reply_to` turned into `proto`."""
    prediction = _PREDICTION[1](proto.prediction) if proto.HasField("prediction") else None
    return m.ReshapeReply(proto.accepted, proto.detail, proto.change, prediction)


SURVEY: Codec = codec_of(m.SurveyDevice, reshape.SurveyDevice, "sender_id", "number")
SURVEYED: Codec = codec_of(
    m.DeviceSurveyed,
    reshape.DeviceSurveyed,
    *("device_id", "incarnation", "number"),
    model=(_shape_to, _shape_from),
    groups=each_of(_GROUP),
)
_PLANNED_WEIGHTS = codec_of(m.PlannedWeights, reshape.PlannedWeights, "device_id", "source_id", "first_layer", "layers")
#: Of a plan, in its order.
WEIGHTS: Codec = each_of(_PLANNED_WEIGHTS)
LEAD: Codec = codec_of(
    m.LeadGroup,
    reshape.LeadGroup,
    *("worker_id", "stages", "shards", "term", "change", "planner_id", "serves_early"),
    pool=(same, m.Pool),
    device_ids=(same, tuple),
    weights=WEIGHTS,
)
FORMED: Codec = codec_of(
    m.GroupFormed,
    reshape.GroupFormed,
    *("worker_id", "change", "fetched_bytes", "unplanned_bytes", "read_bytes"),
)
