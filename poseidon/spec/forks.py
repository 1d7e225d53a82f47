"""Layers from forks of Caffe, in binary files: fields under foreign numbers are brought under ours.

Stock Caffe numbers the options of its layers up to 148. Forks took whatever number was free when they began, so that
one number means different things in different files: 143 is Input's shape in Caffe 1.0 and Interp's options in DeepLab,
137 Embed's options and SegNet's Upsample's, 149 is Upsample's in one YOLO port and Region's in another, 160 is PSPNet's
name for Scale's. In text there is no such trouble, since there fields have names.

What tells them apart is the type of the layer. In a layer of a type that has options of its own:

    a field under another number, shaped like these options      becomes these options
    a field of ours that is not shaped like what we know there   is left out: no layer of this type reads it

"Shaped like" compares field numbers and wire types with the schema, at all depths. Whatever numbers a fork has chosen
need not be known for this. What is known, and was looked up, is in docs/forks.md.
"""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from poseidon.spec.caffe_pb2 import LayerParameter, NetParameter
from poseidon.spec.wire import BYTES, FIXED32, FIXED64, VARINT, WireError, WireField, encode_varint, wire_fields

# Below this number all forks agree with Caffe.
_FIRST_DISPUTED = 137

# The options of each type, where they lie among the disputed numbers.
_STOCK_OPTIONS = {
    "BatchNorm": "batch_norm_param",
    "Bias": "bias_param",
    "Clip": "clip_param",
    "Crop": "crop_param",
    "ELU": "elu_param",
    "Embed": "embed_param",
    "Input": "input_param",
    "LSTM": "recurrent_param",
    "Parameter": "parameter_param",
    "RNN": "recurrent_param",
    "Scale": "scale_param",
    "Swish": "swish_param",
    "Tile": "tile_param",
}
_FORK_OPTIONS = {
    "BN": "bn_param",
    "DetectionOutput": "detection_output_param",
    "Interp": "interp_param",
    "MultiBoxLoss": "multibox_loss_param",
    "Normalize": "norm_param",
    "Permute": "permute_param",
    "PriorBox": "prior_box_param",
    "Proposal": "proposal_param",
    "ROIPooling": "roi_pooling_param",
    "ReLU6": "relu6_param",
    "Region": "region_param",
    "Reorg": "reorg_param",
    "ShuffleChannel": "shuffle_channel_param",
    "Upsample": "upsample_param",
}
_LAYER = NetParameter.DESCRIPTOR.fields_by_name["layer"].number
_TYPE = LayerParameter.DESCRIPTOR.fields_by_name["type"].number
_FIELDS = LayerParameter.DESCRIPTOR.fields_by_number

_WIRE_TYPES = {
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_STRING: BYTES,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_MESSAGE: BYTES,
}


def settle_numbers(data: bytes) -> bytes:
    """The same NetParameter with every layer's options under our numbers; damaged bytes are returned as they are."""
    pieces: list[bytes] = []
    copied = tag = 0
    try:
        for field in wire_fields(data, 0, len(data)):
            if field.number == _LAYER and field.wire_type == BYTES:
                layer = _settled_layer(data, field)
                if layer is not None:
                    pieces += [data[copied:tag], _field(_LAYER, layer)]
                    copied = field.end
            tag = field.end
    except WireError:  # the parser will refuse the whole, with the reason
        return data
    return b"".join([*pieces, data[copied:]]) if pieces else data


def _settled_layer(data: bytes, layer: WireField) -> bytes | None:
    """The layer's new bytes, or None if nothing in it changes."""
    fields = list(wire_fields(data, layer.start, layer.end))
    disputed = [field for field in fields if field.number >= _FIRST_DISPUTED and field.wire_type == BYTES]
    if not disputed:
        return None
    name = b"".join(data[field.start : field.end] for field in fields if field.number == _TYPE)
    replaced = _replacements(data, disputed, name.decode("ascii", "replace"))
    if not replaced:
        return None
    pieces, tag = [], layer.start
    for field in fields:
        number = replaced.get(field, field.number)
        if field not in replaced:
            pieces.append(data[tag : field.end])
        elif number is not None:
            pieces.append(_field(number, data[field.start : field.end]))
        tag = field.end
    return b"".join(pieces)


def _replacements(data: bytes, disputed: list[WireField], layer_type: str) -> dict[WireField, int | None]:
    """The fields that get another number, and those that get none."""
    is_fork = layer_type in _FORK_OPTIONS
    own_name = (_FORK_OPTIONS if is_fork else _STOCK_OPTIONS).get(layer_type)
    own = None if own_name is None else LayerParameter.DESCRIPTOR.fields_by_name[own_name]
    is_there = own is not None and any(field.number == own.number for field in disputed)
    replaced: dict[WireField, int | None] = {}
    for field in disputed:
        known = _FIELDS.get(field.number)
        if own is not None and field.number == own.number:
            continue
        is_candidate = own is not None and not is_there and (is_fork or known is None)
        if is_candidate and own is not None and _fits(data, field, own.message_type):
            replaced[field] = own.number
            is_there = True
        elif known is not None and not _fits(data, field, known.message_type):
            replaced[field] = None
    return replaced


def _fits(data: bytes, field: WireField, descriptor: Descriptor) -> bool:
    """True if the bytes have only fields of this message, of the right wire types, and all that are required."""
    seen = set()
    try:
        for inner in wire_fields(data, field.start, field.end):
            known = descriptor.fields_by_number.get(inner.number)
            if known is None or inner.wire_type not in _wire_types(known):
                return False
            if known.message_type is not None and not _fits(data, inner, known.message_type):
                return False
            seen.add(inner.number)
    except WireError:
        return False
    return all(known.number in seen for known in descriptor.fields if known.is_required)


@cache
def _wire_types(field: FieldDescriptor) -> frozenset[int]:
    plain = _WIRE_TYPES.get(field.type, VARINT)
    is_packable = field.is_repeated and plain != BYTES
    return frozenset({plain, BYTES} if is_packable else {plain})


def _field(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value
