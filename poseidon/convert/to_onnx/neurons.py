"""Activations: one bottom, one top, the same shape."""

from __future__ import annotations

import math

import numpy as np

from poseidon.convert.to_onnx.builder import Emission


def absval(e: Emission) -> str:
    return e.op("Abs", e.x)


def bnll(e: Emission) -> str:
    return e.op("Softplus", e.x)


def clip(e: Emission) -> str:
    options = e.spec.clip_param
    return e.op("Clip", e.x, e.number(options.min), e.number(options.max))


def identity(e: Emission) -> str:
    """Dropout in the TEST phase, and whatever else leaves values alone."""
    return e.x


def elu(e: Emission) -> str:
    return e.op("Elu", e.x, alpha=float(e.spec.elu_param.alpha))


def exp(e: Emission) -> str:
    options = e.spec.exp_param
    log_base = 1.0 if options.base == -1 else math.log(options.base)
    return e.op("Exp", e.affine(e.x, options.scale * log_base, options.shift * log_base))


def log(e: Emission) -> str:
    options = e.spec.log_param
    log_base = 1.0 if options.base == -1 else math.log(options.base)
    return e.affine(e.op("Log", e.affine(e.x, options.scale, options.shift)), 1 / log_base, 0)


def power(e: Emission) -> str:
    options = e.spec.power_param
    if options.power * options.scale == 0:
        with np.errstate(all="ignore"):  # C's answers for 0^-1 and roots of negatives are wanted
            value = np.float64(options.shift) ** np.float64(options.power)
        return e.op("Expand", e.number(float(value)), e.op("Shape", e.x))
    base = e.affine(e.x, options.scale, options.shift)
    return base if options.power == 1 else e.op("Pow", base, e.number(options.power))


def prelu(e: Emission) -> str:
    slopes = e.param_value(0)
    if slopes.ndim:
        slopes = slopes.reshape(-1, *[1] * (e.rank - 2))
    return e.op("PRelu", e.x, e.constant(slopes, f"{e.layer.name}.0"))


def relu(e: Emission) -> str:
    slope = e.spec.relu_param.negative_slope
    return e.op("LeakyRelu", e.x, alpha=float(slope)) if slope else e.op("Relu", e.x)


def sigmoid(e: Emission) -> str:
    return e.op("Sigmoid", e.x)


def swish(e: Emission) -> str:
    return e.op("Mul", e.x, e.op("Sigmoid", e.affine(e.x, e.spec.swish_param.beta, 0)))


def tanh(e: Emission) -> str:
    return e.op("Tanh", e.x)


def threshold(e: Emission) -> str:
    return e.cast(e.op("Greater", e.x, e.number(e.spec.threshold_param.threshold)), "FLOAT")


def softmax(e: Emission) -> str:
    return e.op("Softmax", e.x, axis=e.spec.softmax_param.axis % e.rank)
