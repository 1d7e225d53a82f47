"""The net as it is used: what a train_val prototxt says about the TEST phase, without what only training needs.

    data layers (Data, ImageData, HDF5Data, …)   become Input layers with the same tops
    losses and Accuracy                          go, with what only led to them from labels, where there were data
                                                 layers; a deploy prototxt stays as it is. A SoftmaxWithLoss whose
                                                 second top is named leaves a Softmax
    Silence, HDF5Output                          go: they have no result
    inputs that nobody reads any more            go

Shapes of data layers come from the data where it is at hand, or from whoever asks (`shapes`; labels then follow the
data): a net can be taken away without the database it was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from poseidon.errors import DataError, LayerError, NetError, SpecError, UsageError
from poseidon.net.layer import LayerContext, Shape
from poseidon.net.registry import layer_class
from poseidon.spec import NetSource, caffe_pb2, filter_net

DATA_TYPES = frozenset({"Data", "ImageData", "WindowData", "HDF5Data", "MemoryData", "DummyData"})
_SINKS = frozenset({"Silence", "HDF5Output"})


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is wanted of the net.

    level, stages   for include and exclude rules
    shapes          of inputs, by blob name; overrules what the prototxt says
    outputs         blobs to end at; none: those that nobody reads
    keep_losses     labels become inputs, losses and accuracies stay
    """

    level: int = 0
    stages: tuple[str, ...] = ()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    keep_losses: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    """A layer on its way, with its line."""

    layer: caffe_pb2.LayerParameter
    line: int


def deployed(source: NetSource, wanted: Deployment) -> NetSource:
    """The net to convert, in the TEST phase."""
    net = filter_net(source, caffe_pb2.TEST, wanted.level, wanted.stages)
    entries = [_Entry(layer, line) for layer, line in zip(net.net.layer, net.lines, strict=True)]
    _check_known(entries, wanted)
    had_data = any(entry.layer.type in DATA_TYPES for entry in entries)
    labels = {top for entry in entries if entry.layer.type in DATA_TYPES for top in entry.layer.top[1:]}
    entries = [_as_input(entry, net.filename, wanted) for entry in entries]
    if wanted.outputs:
        entries = _leading_to(entries, wanted.outputs)
    elif had_data and not wanted.keep_losses:
        entries = _without_losses(entries, labels)
    entries = [entry for entry in entries if entry.layer.type not in _SINKS]
    entries = _without_unread_inputs(entries, wanted.outputs)
    made = caffe_pb2.NetParameter()
    made.CopyFrom(net.net)
    del made.layer[:]
    made.layer.extend(entry.layer for entry in entries)
    if not any(entry.layer.type != "Input" for entry in entries):
        raise NetError(f"{net.filename}: nothing is left to convert once data and losses are taken away")
    return NetSource(made, net.filename, tuple(entry.line for entry in entries))


def _check_known(entries: Sequence[_Entry], wanted: Deployment) -> None:
    tops = {top for entry in entries for top in entry.layer.top}
    for what, names in (("--until", wanted.outputs), ("--shape", wanted.shapes)):
        for name in names:
            if name not in tops:
                raise UsageError(f"{what} {name}: the net has no such blob; blobs: {', '.join(sorted(tops))}")


# -- inputs ---------------------------------------------------------------------------------------------------------
def _as_input(entry: _Entry, filename: str, wanted: Deployment) -> _Entry:
    """A data layer as Input, an Input with the shapes asked for; anything else as it is."""
    layer = entry.layer
    if layer.type not in DATA_TYPES and layer.type != "Input":
        return entry
    given = [wanted.shapes.get(top) for top in layer.top]
    if layer.type == "Input" and not any(shape is not None for shape in given):
        return entry
    if given[0] is not None and layer.type != "Input":
        # Labels come along with the data: one per sample, whatever they will be used for.
        own = [given[0][:1]] * len(given)
    else:
        own = _own_shapes(entry, filename, wanted)
    made = caffe_pb2.LayerParameter(name=layer.name, type="Input", top=layer.top)
    for shape, fallback in zip(given, own, strict=True):
        made.input_param.shape.add(dim=shape if shape is not None else fallback)
    return replace(entry, layer=made)


def _own_shapes(entry: _Entry, filename: str, wanted: Deployment) -> list[Shape]:
    """What the layer itself says; a database must be there for that."""
    layer = entry.layer
    where = f"{filename}:{entry.line}" if entry.line else filename
    copy = caffe_pb2.LayerParameter()
    copy.CopyFrom(layer)
    copy.phase = caffe_pb2.TEST
    try:
        built = layer_class(layer.type)(copy, LayerContext(caffe_pb2.TEST, where))
        built.setup(())
        shapes = [tuple(shape) for shape in built.reshape(())]
        getattr(built, "close", lambda: None)()
    except (DataError, LayerError, SpecError) as problem:
        example = f"--shape {layer.top[0]}=1,…"
        raise UsageError(
            f"{where}: layer {layer.name!r} ({layer.type}) becomes an input, whose shape its data would tell, "
            f"but: {problem}; give it as in {example}"
        ) from None
    return [(1, *shape[1:]) if layer.type != "Input" and shape else shape for shape in shapes]


# -- what stays -----------------------------------------------------------------------------------------------------
def _without_losses(entries: Sequence[_Entry], labels: set[str]) -> list[_Entry]:
    kept: list[_Entry] = []
    removed_readers = set()
    for entry in entries:
        if not _is_judgement(entry.layer):
            kept.append(entry)
            continue
        removed_readers.update(entry.layer.bottom)
        if entry.layer.type == "SoftmaxWithLoss" and len(entry.layer.top) == 2:
            kept.append(replace(entry, layer=_softmax_of(entry.layer)))
    return _without_label_work(kept, labels)


def _is_judgement(layer: caffe_pb2.LayerParameter) -> bool:
    return layer.type == "Accuracy" or layer_class(layer.type).is_loss


def _softmax_of(loss: caffe_pb2.LayerParameter) -> caffe_pb2.LayerParameter:
    made = caffe_pb2.LayerParameter(name=loss.name, type="Softmax", bottom=loss.bottom[:1], top=loss.top[1:])
    made.softmax_param.CopyFrom(loss.softmax_param)
    return made


def _without_label_work(entries: list[_Entry], labels: set[str]) -> list[_Entry]:
    """Drops, from the end, what reads nothing but labels and is read by nobody."""
    from_labels = set(labels)
    for entry in entries:
        if entry.layer.bottom and set(entry.layer.bottom) <= from_labels:
            from_labels.update(entry.layer.top)
    kept: list[_Entry] = []
    read: set[str] = set()
    for entry in reversed(entries):
        layer = entry.layer
        if layer.bottom and set(layer.bottom) <= from_labels and not read & set(layer.top):
            continue
        read.update(layer.bottom)
        kept.append(entry)
    return kept[::-1]


def _leading_to(entries: Sequence[_Entry], outputs: Sequence[str]) -> list[_Entry]:
    """The layers that the values of these blobs depend on: the last writer of each, and so on backwards."""
    needed = set(outputs)
    kept: list[_Entry] = []
    for entry in reversed(entries):
        if needed & set(entry.layer.top):
            needed.update(entry.layer.bottom)
            kept.append(entry)
    return kept[::-1]


def _without_unread_inputs(entries: list[_Entry], outputs: Sequence[str]) -> list[_Entry]:
    read = {bottom for entry in entries for bottom in entry.layer.bottom} | set(outputs)
    kept = []
    for entry in entries:
        if entry.layer.type != "Input" or set(entry.layer.top) <= read:
            kept.append(entry)
            continue
        tops = [i for i, top in enumerate(entry.layer.top) if top in read]
        if tops:
            layer = caffe_pb2.LayerParameter(name=entry.layer.name, type="Input")
            shapes = entry.layer.input_param.shape
            layer.top.extend(entry.layer.top[i] for i in tops)
            layer.input_param.shape.extend(shapes[i if len(shapes) > 1 else 0] for i in tops if shapes)
            kept.append(replace(entry, layer=layer))
    return kept
