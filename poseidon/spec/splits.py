"""Split layers: a top with several readers is copied for each, so that every blob is read once.

The copies of top `t` of layer `b`, at position `p` among its tops, come from a Split layer `t_b_p_split` right behind
it and are called `t_b_p_split_0`, `t_b_p_split_1`, ... in the order of the readers. A name read behind an in-place
layer is that layer's top.

A nonzero loss_weight is a reader too. When such a top is split, copy 0 carries the weight and all loss weights of the
layer itself are cleared, those of its other tops included; that is what Caffe does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from poseidon.errors import SpecError
from poseidon.spec.caffe_pb2 import LayerParameter, NetParameter
from poseidon.spec.names import nearest
from poseidon.spec.source import NetSource


@dataclass(frozen=True, slots=True)
class _Top:
    """A top by the index of its layer and its position among that layer's tops."""

    layer: int
    position: int


@dataclass(frozen=True, slots=True)
class _Uses:
    readers: Counter[_Top]
    loss_weights: dict[_Top, float]
    origins: dict[_Top, _Top]
    """The top that each bottom, keyed in the same way, reads."""


def insert_splits(source: NetSource) -> NetSource:
    """The net with Split layers wherever a top is read more than once. Each takes the line of its producer."""
    uses = _count_uses(source)
    net = NetParameter()
    net.CopyFrom(source.net)
    del net.layer[:]
    lines: list[int] = []
    next_copy: Counter[_Top] = Counter()
    for index, original in enumerate(source.net.layer):
        layer = net.layer.add()
        layer.CopyFrom(original)
        lines.append(source.lines[index])
        for position, blob in enumerate(original.bottom):
            top = uses.origins[_Top(index, position)]
            if uses.readers[top] > 1:
                producer = source.net.layer[top.layer].name
                layer.bottom[position] = f"{_split_name(blob, producer, top.position)}_{next_copy[top]}"
                next_copy[top] += 1
        for position, blob in enumerate(original.top):
            top = _Top(index, position)
            if uses.readers[top] > 1:
                loss_weight = uses.loss_weights.get(top, 0.0)
                net.layer.append(_split_layer(blob, original.name, position, uses.readers[top], loss_weight))
                lines.append(source.lines[index])
                if loss_weight:
                    layer.ClearField("loss_weight")
                    next_copy[top] += 1
    result = NetSource(net, source.filename, tuple(lines))
    _check_single_producers(result)
    return result


def _count_uses(source: NetSource) -> _Uses:
    uses = _Uses(Counter(), {}, {})
    producer: dict[str, _Top] = {}
    for index, layer in enumerate(source.net.layer):
        for position, blob in enumerate(layer.bottom):
            if blob not in producer:
                where = f"(layer '{layer.name}', bottom index {position})"
                raise SpecError(f"{source.place(index)}: Unknown bottom blob '{blob}' {where}{nearest(blob, producer)}")
            uses.origins[_Top(index, position)] = producer[blob]
            uses.readers[producer[blob]] += 1
        producer.update((blob, _Top(index, position)) for position, blob in enumerate(layer.top))
        for blob, weight in zip(layer.top, layer.loss_weight, strict=False):
            uses.loss_weights[producer[blob]] = weight
            if weight:
                uses.readers[producer[blob]] += 1
    return uses


def _split_name(blob: str, producer: str, position: int) -> str:
    return f"{blob}_{producer}_{position}_split"


def _split_layer(blob: str, producer: str, position: int, count: int, loss_weight: float) -> LayerParameter:
    name = _split_name(blob, producer, position)
    split = LayerParameter(name=name, type="Split", bottom=[blob], top=[f"{name}_{copy}" for copy in range(count)])
    if loss_weight:
        split.loss_weight.extend([loss_weight] + [0.0] * (count - 1))
    return split


def _check_single_producers(source: NetSource) -> None:
    """Every blob has one producer, layers that work in place aside. Checked behind the splits: they rename bottoms,
    so that a layer which overwrites a blob that others read too is no longer in place."""
    producer: dict[str, int] = {}
    copied: dict[str, str] = {}
    for index, layer in enumerate(source.net.layer):
        for position, blob in enumerate(layer.top):
            bottom = layer.bottom[position] if position < len(layer.bottom) else None
            if blob in producer and bottom != blob:
                first = producer[blob]
                others = ", and other layers read it too" if copied.get(bottom or "") == blob else ""
                raise SpecError(
                    f"{source.place(index)}: Top blob '{blob}' produced by multiple sources: by layer '{layer.name}' "
                    f"here and by layer '{source.net.layer[first].name}' at {source.place(first)}{others}; "
                    f"give the top of '{layer.name}' another name"
                )
            producer[blob] = index
        if layer.type == "Split":
            copied.update(dict.fromkeys(layer.top, layer.bottom[0] if layer.bottom else ""))
