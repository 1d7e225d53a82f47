"""Losses and Accuracy, for nets that keep them: labels are inputs, results scalars (and the second tops).

Predictions are seen as rows, positions × classes, whatever axis the classes are on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poseidon.convert.extents import Dims
from poseidon.convert.to_onnx.builder import Emission
from poseidon.net.layer import count_of
from poseidon.net.layers.infogain_loss import InfogainLoss
from poseidon.net.layers.loss import LOG_THRESHOLD, LossLayer, Mode
from poseidon.net.layers.softmax_with_loss import FLT_MIN
from poseidon.spec import caffe_pb2


@dataclass(frozen=True, slots=True)
class _Labels:
    """Class numbers, positions × 1, and which positions count (None: all), as floats."""

    index: str
    counted: str | None


# -- what they share ------------------------------------------------------------------------------------------------
def _rows(e: Emission, axis: int) -> str:
    """Positions × classes."""
    order = [i for i in range(e.rank) if i != axis] + [axis]
    x = e.x if order == list(range(e.rank)) else e.op("Transpose", e.x, perm=order)
    return e.op("Reshape", x, e.integers([-1, e.shape[axis]]))


def _sample_rows(e: Emission) -> str:
    return e.op("Reshape", e.x, e.integers([-1, count_of(e.shape, 1)]))


def _labels(e: Emission, ignore_label: int | None = None) -> _Labels:
    index = e.op("Reshape", e.cast(e.inputs[1], "INT64"), e.integers([-1, 1]))
    if ignore_label is None:
        return _Labels(index, None)
    ignored = e.op("Equal", index, e.integers(ignore_label))
    index = e.op("Where", ignored, e.integers(0), index)
    return _Labels(index, e.cast(e.op("Not", ignored), "FLOAT"))


def _at_least_one(e: Emission, value: str) -> str:
    return e.op("Max", value, e.number(1))


def _count(e: Emission, value: str, dims: Dims, numbers: tuple[int, ...]) -> str:
    """Number of elements along some leading axes of a value."""
    if not any(isinstance(dim, str) for dim in dims):
        return e.number(count_of(numbers))
    shape = e.op("Slice", e.op("Shape", value), e.integers([0]), e.integers([len(dims)]))
    return e.cast(e.reduce("ReduceProd", shape, [0]), "FLOAT")


def _normalised(e: Emission, total: str, axis: int, counted: str | None) -> str:
    layer = e.layer
    assert isinstance(layer, LossLayer)
    if layer.normalization == Mode.NONE:
        return total
    if layer.normalization == Mode.VALID and counted is not None:
        return e.op("Div", total, _at_least_one(e, _sum(e, counted)))
    if layer.normalization == Mode.BATCH_SIZE:
        divisor = _count(e, e.x, e.bottoms[0][:axis], e.shape[:axis])
    else:
        divisor = _count(e, e.inputs[1], e.bottoms[1], e.bottom_shapes[1])
    return e.op("Div", total, _at_least_one(e, divisor))


def _sum(e: Emission, value: str) -> str:
    return e.op("ReduceSum", value, keepdims=0)


def _per_sample(e: Emission, total: str, factor: float = 1.0) -> str:
    """total / (factor · N)"""
    samples = _at_least_one(e, _count(e, e.x, e.bottoms[0][:1], e.shape[:1]))
    return e.op("Div", total, e.affine(samples, factor, 0))


def _log(e: Emission, value: str, least: float) -> str:
    return e.op("Log", e.op("Max", value, e.number(least)))


def _with_probabilities(e: Emission, loss: str, axis: int) -> list[str]:
    return [loss, e.op("Softmax", e.x, axis=axis)][: len(e.tops)]


# -- the layers -----------------------------------------------------------------------------------------------------
def softmax_with_loss(e: Emission) -> list[str]:
    assert isinstance(e.layer, LossLayer)
    axis = e.spec.softmax_param.axis % e.rank
    labels = _labels(e, e.layer.ignore_label)
    chosen = e.op("GatherElements", e.op("Softmax", _rows(e, axis), axis=1), labels.index, axis=1)
    gains = _log(e, chosen, FLT_MIN)
    gains = gains if labels.counted is None else e.op("Mul", gains, labels.counted)
    loss = _normalised(e, e.op("Neg", _sum(e, gains)), axis, labels.counted)
    return _with_probabilities(e, loss, axis)


def infogain_loss(e: Emission) -> list[str]:
    layer = e.layer
    assert isinstance(layer, InfogainLoss)
    axis = e.spec.infogain_loss_param.axis % e.rank
    num_classes = e.shape[axis]
    if layer.matrix is None:
        matrix = e.op("Reshape", e.inputs[2], e.integers([num_classes, num_classes]))
    else:
        matrix = e.constant(layer.matrix.cpu().numpy().reshape(num_classes, num_classes), f"{layer.name}.matrix")
    labels = _labels(e, layer.ignore_label)
    weights = e.op("Gather", matrix, e.squeeze(labels.index, 1), axis=0)
    gains = e.op("Mul", weights, _log(e, e.op("Softmax", _rows(e, axis), axis=1), LOG_THRESHOLD))
    gains = gains if labels.counted is None else e.op("Mul", gains, labels.counted)
    loss = _normalised(e, e.op("Neg", _sum(e, gains)), axis, labels.counted)
    return _with_probabilities(e, loss, axis)


def multinomial_logistic_loss(e: Emission) -> str:
    chosen = e.op("GatherElements", _sample_rows(e), _labels(e).index, axis=1)
    return _per_sample(e, e.op("Neg", _sum(e, _log(e, chosen, LOG_THRESHOLD))))


def euclidean_loss(e: Emission) -> str:
    a, b = (e.op("Reshape", value, e.integers([-1])) for value in e.inputs)
    difference = e.op("Sub", a, b)
    return _per_sample(e, _sum(e, e.op("Mul", difference, difference)), 2.0)


def hinge_loss(e: Emission) -> str:
    rows, num_classes = _sample_rows(e), count_of(e.shape, 1)
    classes = e.constant(np.arange(num_classes).reshape(1, -1), dtype=np.int64)
    is_label = e.op("Equal", _labels(e).index, classes)
    signed = e.op("Where", is_label, e.op("Neg", rows), rows)
    slack = e.op("Relu", e.affine(signed, 1, 1))
    if e.spec.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2:
        slack = e.op("Mul", slack, slack)
    return _per_sample(e, _sum(e, slack))


def sigmoid_cross_entropy_loss(e: Emission) -> str:
    assert isinstance(e.layer, LossLayer)
    x, target = (e.op("Reshape", value, e.integers([-1])) for value in e.inputs)
    soft = e.op("Softplus", e.op("Neg", e.op("Abs", x)))
    costs = e.op("Add", e.op("Sub", e.op("Relu", x), e.op("Mul", x, target)), soft)
    counted = None
    if e.layer.ignore_label is not None:
        ignored = e.op("Equal", e.cast(target, "INT64"), e.integers(e.layer.ignore_label))
        counted = e.cast(e.op("Not", ignored), "FLOAT")
        costs = e.op("Where", ignored, e.number(0), costs)
    return _normalised(e, _sum(e, costs), 1, counted)


def contrastive_loss(e: Emission) -> str:
    options = e.spec.contrastive_loss_param
    a, b = (e.op("Reshape", value, e.integers([-1, count_of(e.shape, 1)])) for value in e.inputs[:2])
    difference = e.op("Sub", a, b)
    squared = e.reduce("ReduceSum", e.op("Mul", difference, difference), [1])
    similar = e.op("Reshape", e.cast(e.cast(e.inputs[2], "INT64"), "BOOL"), e.integers([-1]))
    distance = squared if options.legacy_version else e.op("Sqrt", squared)
    gap = e.op("Relu", e.affine(distance, -1, options.margin))
    pushed = gap if options.legacy_version else e.op("Mul", gap, gap)
    return _per_sample(e, _sum(e, e.op("Where", similar, squared, pushed)), 2.0)


def accuracy(e: Emission) -> list[str]:
    options = e.spec.accuracy_param
    axis = options.axis % e.rank
    num_classes = e.shape[axis]
    labels = _labels(e, options.ignore_label if options.HasField("ignore_label") else None)
    rows = _rows(e, axis)
    chosen = e.op("GatherElements", rows, labels.index, axis=1)
    below = e.reduce("ReduceSum", e.cast(e.op("Less", rows, chosen), "FLOAT"), [1], keep=True)
    right = e.cast(e.op("GreaterOrEqual", below, e.number(num_classes - options.top_k)), "FLOAT")
    ones = e.op("Sub", chosen, chosen) if labels.counted is None else labels.counted
    counted = e.affine(ones, 0, 1) if labels.counted is None else labels.counted
    right = e.op("Mul", right, counted)
    share = e.op("Div", _sum(e, right), _at_least_one(e, _sum(e, counted)))
    if len(e.tops) == 1:
        return [share]
    classes = e.constant(np.arange(num_classes).reshape(1, -1), dtype=np.int64)
    member = e.cast(e.op("Equal", labels.index, classes), "FLOAT")
    right, counted = (e.reduce("ReduceSum", e.op("Mul", member, value), [0]) for value in (right, counted))
    return [share, e.op("Div", right, _at_least_one(e, counted))]
