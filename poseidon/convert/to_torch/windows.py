"""Convolution, Deconvolution and Im2col."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poseidon.convert.to_torch import parts
from poseidon.convert.to_torch.writing import Writing, arguments, sizes
from poseidon.net.layers.convolution import ConvolutionBase
from poseidon.net.layers.im2col import Im2col
from poseidon.net.layers.window import Window

_TORCH_AXES = (1, 2, 3)


def convolution(w: Writing) -> list[str]:
    return _windowed(w, transposed=False)


def deconvolution(w: Writing) -> list[str]:
    return _windowed(w, transposed=True)


def im2col(w: Writing) -> str:
    assert isinstance(w.layer, Im2col)
    window = w.layer.window
    axis = w.spec.convolution_param.axis % w.rank
    spatial = w.shape[axis + 1 :]
    x = _overhung(w.x, window, spatial)
    x, unfold = _folded(w, x, axis)
    if len(window.kernel) == 2 and not any(window.overhang(spatial)):
        columns = arguments(x, sizes(window.kernel), sizes(window.dilation), sizes(window.pad), sizes(window.stride))
        # unfold joins the positions; they come apart again
        return unfold(f"F.unfold({columns}).unflatten(2, {window.outputs(spatial)})")
    num_channels, num_taps = w.shape[axis], int(np.prod(window.kernel))
    taps = np.eye(num_taps, dtype=np.float32).reshape(num_taps, 1, *window.kernel)
    weight = w.parameter("taps", np.tile(taps, (num_channels, *[1] * (taps.ndim - 1))), learned=False)
    return unfold(_function_call(w, x, weight, "None", window, num_channels, transposed=False))


def _windowed(w: Writing, *, transposed: bool) -> list[str]:
    assert isinstance(w.layer, ConvolutionBase)
    options, window = w.spec.convolution_param, w.layer.window
    axis = options.axis % w.rank
    values = {"weight": w.param_value(0)} | ({"bias": w.param_value(1)} if options.bias_term else {})
    is_member = len(window.kernel) in _TORCH_AXES and not window.strides_far(
        max(values["weight"].shape[:2]) * options.group
    )
    if is_member:
        module = w.module(_constructor(w, window, w.shape[axis], transposed=transposed), **values)
    else:
        weight = w.parameter("weight", values["weight"])
        bias = w.parameter("bias", values["bias"]) if options.bias_term else "None"
    results = []
    for bottom in w.inputs:
        x = bottom if transposed else _overhung(bottom, window, w.shape[axis + 1 :])
        x, unfold = _folded(w, x, axis)
        if is_member:
            results.append(unfold(f"{module}({x})"))
        else:
            results.append(unfold(_function_call(w, x, weight, bias, window, options.group, transposed=transposed)))
    return results


def _constructor(w: Writing, window: Window, num_inputs: int, *, transposed: bool) -> str:
    options = w.spec.convolution_param
    name = f"nn.Conv{'Transpose' if transposed else ''}{len(window.kernel)}d"
    given = arguments(
        num_inputs,
        options.num_output,
        kernel_size=sizes(window.kernel),
        stride=None if set(window.stride) == {1} else sizes(window.stride),
        padding=None if set(window.pad) == {0} else sizes(window.pad),
        dilation=None if set(window.dilation) == {1} else sizes(window.dilation),
        groups=None if options.group == 1 else options.group,
        bias=None if options.bias_term else False,
    )
    return f"{name}({given})"


def _overhung(x: str, window: Window, spatial: tuple[int, ...]) -> str:
    overhang = window.overhang(spatial)
    if not any(overhang):
        return x
    return f"F.pad({x}, {tuple(n for over in reversed(overhang) for n in (0, over))})"


def _folded(w: Writing, x: str, axis: int) -> tuple[str, Callable[[str], str]]:
    """The axes before the channels made one, and how to have them back."""
    if axis == 1:
        return x, lambda y: y
    if axis == 0:
        return f"{x}.unsqueeze(0)", lambda y: f"{y}.squeeze(0)"
    return f"{x}.flatten(0, {axis - 1})", lambda y: f"{y}.unflatten(0, {w.x}.shape[:{axis}])"


def _function_call(w: Writing, x: str, weight: str, bias: str, window: Window, group: int, *, transposed: bool) -> str:
    if not window.kernel:  # without spatial axes: one of extent 1
        inner = arguments(f"{x}.unsqueeze(2)", f"{weight}.unsqueeze(2)", bias, groups=group)
        return f"F.conv{'_transpose' if transposed else ''}1d({inner}).squeeze(2)"
    part = w.part(parts.deconvolve if transposed else parts.convolve)
    given = arguments(x, weight, bias, list(window.stride), list(window.pad), list(window.dilation), group)
    return f"{part}({given})"
