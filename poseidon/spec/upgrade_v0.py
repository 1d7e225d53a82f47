"""Nets of 2013 (V0): every option of every layer in one message, wrapped in `layers { layer { ... } }`.

A net is in this format when any of its layers has the inner message. Each becomes a layer of 2014 (V1), to be upgraded
further: its options move to the message of their kind of layer. Padding was a layer of its own; it becomes the `pad` of
the convolution or pooling that reads it. Options that mean nothing to a layer's type are dropped and reported.

As in Caffe, only the name, inputs, force_backward and layers of the net carry over.
"""

from __future__ import annotations

from collections.abc import Callable

from poseidon.errors import SpecError
from poseidon.spec.caffe_pb2 import NetParameter, V0LayerParameter, V1LayerParameter
from poseidon.spec.names import nearest

Place = Callable[[int], str]
"""Where layer i of the original net stands, to open an error message with."""

_TYPES = {
    "accuracy": V1LayerParameter.ACCURACY,
    "bnll": V1LayerParameter.BNLL,
    "concat": V1LayerParameter.CONCAT,
    "conv": V1LayerParameter.CONVOLUTION,
    "data": V1LayerParameter.DATA,
    "dropout": V1LayerParameter.DROPOUT,
    "euclidean_loss": V1LayerParameter.EUCLIDEAN_LOSS,
    "flatten": V1LayerParameter.FLATTEN,
    "hdf5_data": V1LayerParameter.HDF5_DATA,
    "hdf5_output": V1LayerParameter.HDF5_OUTPUT,
    "im2col": V1LayerParameter.IM2COL,
    "images": V1LayerParameter.IMAGE_DATA,
    "infogain_loss": V1LayerParameter.INFOGAIN_LOSS,
    "innerproduct": V1LayerParameter.INNER_PRODUCT,
    "lrn": V1LayerParameter.LRN,
    "multinomial_logistic_loss": V1LayerParameter.MULTINOMIAL_LOGISTIC_LOSS,
    "pool": V1LayerParameter.POOLING,
    "relu": V1LayerParameter.RELU,
    "sigmoid": V1LayerParameter.SIGMOID,
    "softmax": V1LayerParameter.SOFTMAX,
    "softmax_loss": V1LayerParameter.SOFTMAX_LOSS,
    "split": V1LayerParameter.SPLIT,
    "tanh": V1LayerParameter.TANH,
    "window_data": V1LayerParameter.WINDOW_DATA,
}
_PADDING = "padding"
_PADDED = ("conv", "pool")

_LAYER = "the layer itself"
_WEIGHTED = {"conv": "convolution_param", "innerproduct": "inner_product_param"}
_WINDOWED = {"conv": "convolution_param", "pool": "pooling_param"}
_LRN = {"lrn": "lrn_param"}
_IMAGES = {"images": "image_data_param"}
_DETECTION = {"window_data": "window_data_param"}
_READERS = {"data": "data_param", "hdf5_data": "hdf5_data_param"} | _IMAGES | _DETECTION

# Option: its name in the message that takes it, and that message for each type of layer.
_OPTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "num_output": ("num_output", _WEIGHTED),
    "biasterm": ("bias_term", _WEIGHTED),
    "weight_filler": ("weight_filler", _WEIGHTED),
    "bias_filler": ("bias_filler", _WEIGHTED),
    "pad": ("pad", _WINDOWED),
    "kernelsize": ("kernel_size", _WINDOWED),
    "stride": ("stride", _WINDOWED),
    "group": ("group", {"conv": "convolution_param"}),
    "pool": ("pool", {"pool": "pooling_param"}),
    "dropout_ratio": ("dropout_ratio", {"dropout": "dropout_param"}),
    "local_size": ("local_size", _LRN),
    "alpha": ("alpha", _LRN),
    "beta": ("beta", _LRN),
    "k": ("k", _LRN),
    "source": ("source", _READERS | {"infogain_loss": "infogain_loss_param"}),
    "batchsize": ("batch_size", _READERS),
    "rand_skip": ("rand_skip", {"data": "data_param"} | _IMAGES),
    "shuffle_images": ("shuffle", _IMAGES),
    "new_height": ("new_height", _IMAGES),
    "new_width": ("new_width", _IMAGES),
    "concat_dim": ("concat_dim", {"concat": "concat_param"}),
    "det_fg_threshold": ("fg_threshold", _DETECTION),
    "det_bg_threshold": ("bg_threshold", _DETECTION),
    "det_fg_fraction": ("fg_fraction", _DETECTION),
    "det_context_pad": ("context_pad", _DETECTION),
    "det_crop_mode": ("crop_mode", _DETECTION),
    "hdf5_output_param": ("hdf5_output_param", {"hdf5_output": _LAYER}),
    "new_num": ("new_num", {}),
    "new_channels": ("new_channels", {}),
}
# Options every type of layer may carry.
_TRANSFORM = {"scale": "scale", "meanfile": "mean_file", "cropsize": "crop_size", "mirror": "mirror"}
_LISTS = ("blobs", "blobs_lr", "weight_decay")


def is_v0(net: NetParameter) -> bool:
    return any(layer.HasField("layer") for layer in net.layers)


def upgrade_v0(net: NetParameter, place: Place) -> tuple[list[int], list[str]]:
    """Rewrite `net` in the format of 2014. Returns the old index of each layer left, and what was dropped."""
    kept = _merge_padding(net, place)
    problems: list[str] = []
    upgraded = NetParameter()
    for index in kept:
        old, new = net.layers[index], upgraded.layers.add()
        if old.HasField("layer"):
            problems += _upgrade_layer(old, new, place(index))
        else:
            new.CopyFrom(old)
    for name in ("name", "force_backward"):
        if net.HasField(name):
            setattr(upgraded, name, getattr(net, name))
    upgraded.input.extend(net.input)
    upgraded.input_dim.extend(net.input_dim)
    upgraded.input_shape.extend(net.input_shape)
    net.CopyFrom(upgraded)
    return kept, problems


def _merge_padding(net: NetParameter, place: Place) -> list[int]:
    """Give each padding layer's `pad` to its readers in its place. Returns the indices of the other layers."""
    producers: dict[str, V1LayerParameter | None] = dict.fromkeys(net.input)
    for index, layer in enumerate(net.layers):
        for position, blob in enumerate(layer.bottom):
            if blob not in producers:
                where = f"(layer '{layer.layer.name}', bottom index {position})"
                raise SpecError(f"{place(index)}: Unknown bottom blob '{blob}' {where}{nearest(blob, producers)}")
            padding = producers[blob]
            if padding is not None and padding.layer.type == _PADDING:
                _check_padding(layer, padding, place(index))
                layer.layer.pad = padding.layer.pad
                layer.bottom[position] = padding.bottom[0]
        producers.update(dict.fromkeys(layer.top, layer))
    return [index for index, layer in enumerate(net.layers) if layer.layer.type != _PADDING]


def _check_padding(reader: V1LayerParameter, padding: V1LayerParameter, where: str) -> None:
    if reader.layer.type not in _PADDED:
        raise SpecError(
            f"{where}: layer '{reader.layer.name}' reads padding layer '{padding.layer.name}' and has type "
            f"'{reader.layer.type}', expected 'conv' or 'pool'; remove the padding"
        )
    counts = (len(reader.bottom), len(padding.bottom), len(padding.top))
    if counts != (1, 1, 1):
        raise SpecError(
            f"{where}: padding layer '{padding.layer.name}' and its reader '{reader.layer.name}' have {counts[1]} and "
            f"{counts[0]} bottoms and the padding {counts[2]} tops, expected one of each"
        )


def _upgrade_layer(old: V1LayerParameter, new: V1LayerParameter, where: str) -> list[str]:
    options: V0LayerParameter = old.layer
    new.bottom.extend(old.bottom)
    new.top.extend(old.top)
    if options.HasField("name"):
        new.name = options.name
    if options.HasField("type"):
        if options.type not in _TYPES:
            raise SpecError(
                f"{where}: layer '{options.name}' has type '{options.type}', expected one of "
                f"{', '.join([*_TYPES, _PADDING])}{nearest(options.type, _TYPES)}"
            )
        new.type = _TYPES[options.type]
    for name in _LISTS:
        getattr(new, name).MergeFrom(getattr(options, name))
    for name, target in _TRANSFORM.items():
        if options.HasField(name):
            setattr(new.transform_param, target, getattr(options, name))
    return _move_options(options, new, where)


def _move_options(options: V0LayerParameter, new: V1LayerParameter, where: str) -> list[str]:
    problems = []
    for name, (target, takers) in _OPTIONS.items():
        if not options.HasField(name):
            continue
        if options.type not in takers:
            problems.append(
                f"{where}: '{name}' means nothing to layer '{options.name}' of type '{options.type}': dropped"
            )
            continue
        taker = takers[options.type]
        message = new if taker == _LAYER else getattr(new, taker)
        field = message.DESCRIPTOR.fields_by_name[target]
        value = getattr(options, name)
        if field.is_repeated:
            getattr(message, target).append(value)
        elif field.message_type is not None:
            getattr(message, target).CopyFrom(value)
        else:
            setattr(message, target, value)
    return problems
