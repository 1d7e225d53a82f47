"""Nets of 2014 (V1): `layers { type: CONVOLUTION blobs_lr: 1 ... }`, types as an enum and multipliers as lists.

Each becomes a layer of the current format. The lists `param`, `blob_share_mode`, `blobs_lr` and `weight_decay` are
dealt out to one `param` message for each weight blob. Data layers that still carry scale, mean_file, crop_size or
mirror among their own options give them to `transform_param`.
"""

from __future__ import annotations

from poseidon.spec.caffe_pb2 import LayerParameter, NetParameter, V1LayerParameter
from poseidon.spec.upgrade_v0 import Place

_TYPES = {
    V1LayerParameter.NONE: "",
    V1LayerParameter.ABSVAL: "AbsVal",
    V1LayerParameter.ACCURACY: "Accuracy",
    V1LayerParameter.ARGMAX: "ArgMax",
    V1LayerParameter.BNLL: "BNLL",
    V1LayerParameter.CONCAT: "Concat",
    V1LayerParameter.CONTRASTIVE_LOSS: "ContrastiveLoss",
    V1LayerParameter.CONVOLUTION: "Convolution",
    V1LayerParameter.DATA: "Data",
    V1LayerParameter.DECONVOLUTION: "Deconvolution",
    V1LayerParameter.DROPOUT: "Dropout",
    V1LayerParameter.DUMMY_DATA: "DummyData",
    V1LayerParameter.ELTWISE: "Eltwise",
    V1LayerParameter.EUCLIDEAN_LOSS: "EuclideanLoss",
    V1LayerParameter.EXP: "Exp",
    V1LayerParameter.FLATTEN: "Flatten",
    V1LayerParameter.HDF5_DATA: "HDF5Data",
    V1LayerParameter.HDF5_OUTPUT: "HDF5Output",
    V1LayerParameter.HINGE_LOSS: "HingeLoss",
    V1LayerParameter.IM2COL: "Im2col",
    V1LayerParameter.IMAGE_DATA: "ImageData",
    V1LayerParameter.INFOGAIN_LOSS: "InfogainLoss",
    V1LayerParameter.INNER_PRODUCT: "InnerProduct",
    V1LayerParameter.LRN: "LRN",
    V1LayerParameter.MEMORY_DATA: "MemoryData",
    V1LayerParameter.MULTINOMIAL_LOGISTIC_LOSS: "MultinomialLogisticLoss",
    V1LayerParameter.MVN: "MVN",
    V1LayerParameter.POOLING: "Pooling",
    V1LayerParameter.POWER: "Power",
    V1LayerParameter.RELU: "ReLU",
    V1LayerParameter.SIGMOID: "Sigmoid",
    V1LayerParameter.SIGMOID_CROSS_ENTROPY_LOSS: "SigmoidCrossEntropyLoss",
    V1LayerParameter.SILENCE: "Silence",
    V1LayerParameter.SLICE: "Slice",
    V1LayerParameter.SOFTMAX: "Softmax",
    V1LayerParameter.SOFTMAX_LOSS: "SoftmaxWithLoss",
    V1LayerParameter.SPLIT: "Split",
    V1LayerParameter.TANH: "TanH",
    V1LayerParameter.THRESHOLD: "Threshold",
    V1LayerParameter.WINDOW_DATA: "WindowData",
}
assert set(_TYPES) == set(V1LayerParameter.LayerType.values())

_TRANSFORMED = {
    V1LayerParameter.DATA: "data_param",
    V1LayerParameter.IMAGE_DATA: "image_data_param",
    V1LayerParameter.WINDOW_DATA: "window_data_param",
}
_TRANSFORM = ("scale", "mean_file", "crop_size", "mirror")
_PER_BLOB = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}
_CHANGED = {"type", "layer", *_PER_BLOB}
_UNCHANGED = [field.name for field in V1LayerParameter.DESCRIPTOR.fields if field.name not in _CHANGED]


def is_v1(net: NetParameter) -> bool:
    return len(net.layers) > 0


def upgrade_v1(net: NetParameter, place: Place) -> list[str]:
    """Rewrite `net` in the current format, layer for layer. Returns what was dropped."""
    problems = []
    if net.layer:
        problems.append(
            f"{place(0)}: the net has both 'layers' and 'layer': the {len(net.layer)} given as 'layer' are dropped"
        )
        del net.layer[:]
    _move_transforms(net)
    for old in net.layers:
        _upgrade_layer(old, net.layer.add())
    del net.layers[:]
    return problems


def _move_transforms(net: NetParameter) -> None:
    readers = [(layer, getattr(layer, _TRANSFORMED[layer.type])) for layer in net.layers if layer.type in _TRANSFORMED]
    if not any(options.HasField(name) for _, options in readers for name in _TRANSFORM):
        return
    # Caffe touches all data layers of the net once one needs it: each ends up with both messages, even if empty.
    for layer, options in readers:
        options.SetInParent()
        layer.transform_param.SetInParent()
        for name in _TRANSFORM:
            if options.HasField(name):
                setattr(layer.transform_param, name, getattr(options, name))
                options.ClearField(name)


def _upgrade_layer(old: V1LayerParameter, new: LayerParameter) -> None:
    for name in _UNCHANGED:
        field = old.DESCRIPTOR.fields_by_name[name]
        if field.is_repeated:
            getattr(new, name).MergeFrom(getattr(old, name))
        elif old.HasField(name) and field.message_type is not None:
            getattr(new, name).CopyFrom(getattr(old, name))
        elif old.HasField(name):
            setattr(new, name, getattr(old, name))
    if old.HasField("type"):
        new.type = _TYPES[old.type]
    for name, target in _PER_BLOB.items():
        values = getattr(old, name)
        while len(new.param) < len(values):
            new.param.add()
        for spec, value in zip(new.param, values, strict=False):
            setattr(spec, target, value)
