"""Element-wise arithmetic and reductions: Eltwise, Scale, Bias, Reduction, MVN, Parameter."""

from __future__ import annotations

from functools import reduce

import numpy as np

from poseidon.convert.statistics import mean_and_variance
from poseidon.convert.to_onnx.builder import Emission
from poseidon.net.layers.batch_norm import BatchNorm
from poseidon.spec import caffe_pb2

_Eltwise = caffe_pb2.EltwiseParameter
_REDUCTIONS = {
    caffe_pb2.ReductionParameter.SUM: "ReduceSum",
    caffe_pb2.ReductionParameter.ASUM: "ReduceL1",
    caffe_pb2.ReductionParameter.SUMSQ: "ReduceSumSquare",
    caffe_pb2.ReductionParameter.MEAN: "ReduceMean",
}


def eltwise(e: Emission) -> str:
    options = e.spec.eltwise_param
    if options.operation == _Eltwise.PROD:
        return reduce(lambda a, b: e.op("Mul", a, b), e.inputs)
    if options.operation == _Eltwise.MAX:
        return e.op("Max", *e.inputs)
    coeffs = list(options.coeff) or [1.0] * len(e.inputs)
    parts = [e.affine(value, coeff, 0) for value, coeff in zip(e.inputs, coeffs, strict=True)]
    return e.op("Add", *parts) if len(parts) == 2 else e.op("Sum", *parts)


def scale(e: Emission) -> str:
    options = e.spec.scale_param
    y = e.op("Mul", e.x, _laid_over(e, 0, options.axis, given=len(e.inputs) == 2))
    if options.bias_term:
        y = e.op("Add", y, _laid_over(e, e.layer.num_params - 1, options.axis, given=False))
    return y


def bias(e: Emission) -> str:
    return e.op("Add", e.x, _laid_over(e, 0, e.spec.bias_param.axis, given=len(e.inputs) == 2))


def _laid_over(e: Emission, index: int, axis: int, *, given: bool) -> str:
    """The operand (bottom 1 if `given`, else a parameter) with axes of 1 behind, so that it lies from `axis` on."""
    dims = e.bottoms[1] if given else e.layer.param_shapes[index]
    behind = e.rank - axis % e.rank - len(dims) if dims else 0
    if not given:
        value = e.param_value(index)
        return e.constant(value.reshape((*value.shape, *[1] * behind)), f"{e.layer.name}.{index}")
    return e.unsqueeze(e.inputs[1], *range(len(dims), len(dims) + behind)) if behind else e.inputs[1]


def reduction(e: Emission) -> str:
    options = e.spec.reduction_param
    axes = range(options.axis % e.rank if e.rank else 0, e.rank)
    return e.affine(e.reduce(_REDUCTIONS[options.operation], e.x, axes), options.coeff, 0)


def mvn(e: Emission) -> str:
    options = e.spec.mvn_param
    x = e.reshape(e.x, e.bottoms[0], e.tops[0])
    axes = range(1 if options.across_channels else 2, 4)
    centred = e.op("Sub", x, e.reduce("ReduceMean", x, axes, keep=True))
    if not options.normalize_variance:
        return centred
    variance = e.reduce("ReduceMean", e.op("Mul", centred, centred), axes, keep=True)
    return e.op("Div", centred, e.affine(e.op("Sqrt", variance), 1, options.eps))


def parameter(e: Emission) -> str:
    return e.param(0)


def batch_norm(e: Emission, weight: np.ndarray | None = None, bias: np.ndarray | None = None) -> str:
    """`weight` and `bias`: of the Scale that follows, if it is taken along."""
    assert isinstance(e.layer, BatchNorm)
    options = e.spec.batch_norm_param
    num_channels = e.layer.param_shapes[0][0]
    weight = np.ones(num_channels, np.float32) if weight is None else weight
    bias = np.zeros(num_channels, np.float32) if bias is None else bias
    if e.layer.use_global_stats and e.rank > 1:
        mean, variance = mean_and_variance(e.layer)
        values = {"scale": weight, "shift": bias, "mean": mean, "variance": variance}
        names = [e.constant(value, f"{e.layer.name}.{what}") for what, value in values.items()]
        return e.op("BatchNormalization", e.x, *names, epsilon=float(options.eps))
    along = (num_channels, *[1] * (e.rank - 2)) if e.rank > 1 else ()
    if e.layer.use_global_stats:
        centre, spread = (e.constant(value.reshape(along)) for value in mean_and_variance(e.layer))
    else:
        axes = [axis for axis in range(e.rank) if axis != 1]
        centre = e.reduce("ReduceMean", e.x, axes, keep=True)
        centred = e.op("Sub", e.x, centre)
        spread = e.reduce("ReduceMean", e.op("Mul", centred, centred), axes, keep=True)
    y = e.op("Div", e.op("Sub", e.x, centre), e.op("Sqrt", e.affine(spread, 1, options.eps)))
    if (weight != 1).any() or (bias != 0).any():
        y = e.op("Mul", y, e.constant(weight.reshape(along)))
        y = e.op("Add", y, e.constant(bias.reshape(along)))
    return y
