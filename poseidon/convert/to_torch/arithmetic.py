"""Element-wise arithmetic and reductions: Eltwise, Scale, Bias, Reduction, MVN, Parameter, BatchNorm."""

from __future__ import annotations

from functools import reduce

import numpy as np

from poseidon.convert.statistics import mean_and_variance
from poseidon.convert.to_torch import parts
from poseidon.convert.to_torch.writing import Writing, affine, arguments, number
from poseidon.net.layers.batch_norm import BatchNorm
from poseidon.spec import caffe_pb2

_Eltwise = caffe_pb2.EltwiseParameter
_Reduction = caffe_pb2.ReductionParameter


def eltwise(w: Writing) -> str:
    options = w.spec.eltwise_param
    if options.operation == _Eltwise.PROD:
        return " * ".join(w.inputs)
    if options.operation == _Eltwise.MAX:
        return reduce(lambda a, b: f"torch.maximum({a}, {b})", w.inputs)
    coeffs = list(options.coeff) or [1.0] * len(w.inputs)
    terms = [affine(value, coeff, 0) for value, coeff in zip(w.inputs, coeffs, strict=True)]
    return " + ".join(terms).replace("+ -1 * ", "- ")


def scale(w: Writing) -> str:
    options = w.spec.scale_param
    factor = _laid_over(w, 0, options.axis, "weight", given=len(w.inputs) == 2)
    if not options.bias_term:
        return f"{w.x} * {factor}"
    return f"{w.x} * {factor} + {_laid_over(w, w.layer.num_params - 1, options.axis, 'bias', given=False)}"


def bias(w: Writing) -> str:
    return f"{w.x} + {_laid_over(w, 0, w.spec.bias_param.axis, 'bias', given=len(w.inputs) == 2)}"


def _laid_over(w: Writing, index: int, axis: int, suffix: str, *, given: bool) -> str:
    """The operand (bottom 1 if `given`, else a parameter) with axes of 1 behind, so that it lies from `axis` on."""
    dims = w.bottoms[1] if given else w.layer.param_shapes[index]
    behind = w.rank - axis % w.rank - len(dims) if dims else 0
    if given:
        cut = ", ".join([":"] * len(dims) + ["None"] * behind)
        return f"{w.inputs[1]}[{cut}]" if behind else w.inputs[1]
    value = w.param_value(index)
    return w.parameter(suffix, value.reshape((*value.shape, *[1] * behind)))


def reduction(w: Writing) -> str:
    options = w.spec.reduction_param
    axes = tuple(range(options.axis % w.rank, w.rank))
    dims = "" if len(axes) == w.rank else f"{axes}"
    y = {
        _Reduction.SUM: f"{w.x}.sum({dims})",
        _Reduction.ASUM: f"{w.x}.abs().sum({dims})",
        _Reduction.SUMSQ: f"{w.x}.square().sum({dims})",
        _Reduction.MEAN: f"{w.x}.mean({dims})",
    }[options.operation]
    return affine(y, options.coeff, 0)


def mvn(w: Writing) -> str:
    options = w.spec.mvn_param
    x = w.x + f"[{', '.join([':'] * w.rank + ['None'] * (4 - w.rank))}]" if w.rank < 4 else w.x
    axes = tuple(range(1 if options.across_channels else 2, 4))
    if options.normalize_variance:
        return f"{w.part(parts.mean_variance)}({x}, {axes}, {number(options.eps)})"
    return f"{x} - {x}.mean({axes}, keepdim=True)"


def parameter(w: Writing) -> str:
    return w.parameter("value", w.param_value(0))


_NORMS = {2: "nn.BatchNorm1d", 3: "nn.BatchNorm1d", 4: "nn.BatchNorm2d", 5: "nn.BatchNorm3d"}


def batch_norm(w: Writing, weight: np.ndarray | None = None, bias: np.ndarray | None = None) -> str:
    """`weight` and `bias`: of the Scale that follows, if it is taken along."""
    layer = w.layer
    assert isinstance(layer, BatchNorm)
    eps, num_channels = w.spec.batch_norm_param.eps, layer.param_shapes[0][0]
    affine_values = {} if weight is None or bias is None else {"weight": weight, "bias": bias}
    if not layer.use_global_stats:
        x = w.x if w.rank > 1 else f"{w.x}.unsqueeze(1)"
        operands = [w.parameter(name, value) for name, value in affine_values.items()]
        y = f"{w.part(parts.normalize_batch)}({arguments(x, number(eps), *operands)})"
        return y if w.rank > 1 else f"{y}.squeeze(1)"
    mean, variance = (value.astype(np.float32) for value in mean_and_variance(layer))
    if w.rank not in _NORMS:
        return _fixed_norm(w, mean, variance, affine_values)
    options = arguments(
        num_channels,
        eps=None if eps == np.float32(1e-5) else number(eps),
        affine=None if affine_values else False,
    )
    module = w.module(
        f"{_NORMS[w.rank]}({options})",
        running_mean=mean,
        running_var=variance,
        num_batches_tracked=np.zeros((), np.int64),
        **affine_values,
    )
    return f"{module}({w.x})"


def _fixed_norm(w: Writing, mean: np.ndarray, variance: np.ndarray, affine_values: dict[str, np.ndarray]) -> str:
    """For numbers of axes that torch has no module for."""
    along = (-1, *[1] * (w.rank - 2)) if w.rank > 1 else ()
    deviation = np.sqrt(variance + np.float32(w.spec.batch_norm_param.eps))
    names = [
        w.parameter(name, value.reshape(along), learned=False)
        for name, value in (("mean", mean), ("deviation", deviation), *affine_values.items())
    ]
    y = f"({w.x} - {names[0]}) / {names[1]}"
    return f"{y} * {names[2]} + {names[3]}" if affine_values else y
