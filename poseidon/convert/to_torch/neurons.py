"""Activations: one bottom, one top, the same shape."""

from __future__ import annotations

import math

import numpy as np

from poseidon.convert.to_torch.writing import Writing, affine, group, number


def absval(w: Writing) -> str:
    return f"{w.x}.abs()"


def bnll(w: Writing) -> str:
    return f"F.softplus({w.x}, threshold=50)"


def clip(w: Writing) -> str:
    options = w.spec.clip_param
    return f"{w.x}.clamp({number(options.min)}, {number(options.max)})"


def dropout(w: Writing) -> str:
    return f"{w.module(f'nn.Dropout({number(w.spec.dropout_param.dropout_ratio)})')}({w.x})"


def elu(w: Writing) -> str:
    alpha = w.spec.elu_param.alpha
    return f"F.elu({w.x})" if alpha == 1 else f"F.elu({w.x}, alpha={number(alpha)})"


def exp(w: Writing) -> str:
    options = w.spec.exp_param
    log_base = 1.0 if options.base == -1 else math.log(options.base)
    return f"torch.exp({affine(w.x, options.scale * log_base, options.shift * log_base)})"


def log(w: Writing) -> str:
    options = w.spec.log_param
    y = f"torch.log({affine(w.x, options.scale, options.shift)})"
    return y if options.base == -1 else f"{y} / {number(math.log(options.base))}"


def power(w: Writing) -> str:
    options = w.spec.power_param
    if options.power * options.scale == 0:
        with np.errstate(all="ignore"):  # C's answers for 0^-1 and roots of negatives are wanted
            value = np.float64(options.shift) ** np.float64(options.power)
        return f"torch.full_like({w.x}, {number(float(value))})"
    base = affine(w.x, options.scale, options.shift)
    return base if options.power == 1 else f"{group(base)} ** {number(options.power)}"


def prelu(w: Writing) -> str:
    slopes = w.param_value(0)
    constructor = f"nn.PReLU({slopes.size})" if slopes.ndim else "nn.PReLU()"
    return f"{w.module(constructor, weight=slopes.reshape(-1))}({w.x})"


def relu(w: Writing) -> str:
    slope = w.spec.relu_param.negative_slope
    return f"F.leaky_relu({w.x}, {number(slope)})" if slope else f"F.relu({w.x})"


def sigmoid(w: Writing) -> str:
    return f"torch.sigmoid({w.x})"


def swish(w: Writing) -> str:
    beta = w.spec.swish_param.beta
    return f"F.silu({w.x})" if beta == 1 else f"{w.x} * torch.sigmoid({affine(w.x, beta, 0)})"


def tanh(w: Writing) -> str:
    return f"torch.tanh({w.x})"


def threshold(w: Writing) -> str:
    return f"({w.x} > {number(w.spec.threshold_param.threshold)}).float()"


def softmax(w: Writing) -> str:
    return f"F.softmax({w.x}, dim={w.spec.softmax_param.axis % w.rank})"
