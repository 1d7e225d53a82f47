"""Convolutions and pooling as Caffe has them: the same padding on both sides, and Caffe's rounding.

Padding behind that no window reaches does not matter, a kernel may begin or end with zeros, and pooling clips its
windows anyway: so other conventions can be had. An average that divides by something else gets a Scale with one
constant per position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.net.layers.pool_window import PoolWindow
from poseidon.spec import caffe_pb2

_Pool = caffe_pb2.PoolingParameter
_FIXED = {"lr_mult": 0.0, "decay_mult": 0.0}
# Far above what real models have; below what a made-up one could fill the machine with.
_MOST_OUTPUTS = 1 << 16
_MOST_ADDED_TAPS = 64


@dataclass(frozen=True, slots=True)
class Taps:
    """A window as PyTorch and ONNX describe it, one number per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil: bool = False

    def outputs(self, sizes: Sequence[int]) -> tuple[int, ...]:
        counts = []
        for axis, size in enumerate(sizes):
            extent = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            room = size + self.before[axis] + self.after[axis] - extent
            stride = self.stride[axis]
            count = (-(-room // stride) if self.ceil else room // stride) + 1
            if self.ceil and (count - 1) * stride >= size + self.before[axis]:
                count -= 1
            counts.append(count)
        if not all(1 <= count <= _MOST_OUTPUTS for count in counts):
            raise Inexpressible(f"gives {counts} positions of {tuple(sizes)}")
        return tuple(counts)


def convolution(
    net: NetBuilder, name: str, x: Value, weight: np.ndarray, bias: np.ndarray | None, taps: Taps, group: int
) -> Value:
    if not _needs_no_more_behind(taps, x.shape[2:]):
        weight, taps = _evened(weight, taps)
    options = _window_options(taps, weight.shape[0], group, bias is not None)
    return net.add("Convolution", name, [x], _params(weight, bias), convolution_param=options)[0]


def _needs_no_more_behind(taps: Taps, sizes: Sequence[int]) -> bool:
    """True if padding behind by as much as in front gives the same windows."""
    even = replace(taps, after=taps.before)
    return even.outputs(sizes) == taps.outputs(sizes)


def _evened(weight: np.ndarray, taps: Taps) -> tuple[np.ndarray, Taps]:
    """The same convolution with equal padding on both sides: the kernel is made longer by taps of zero, in front where
    there is too little padding in front, behind where there is too little behind."""
    added = []
    for before, after, dilation in zip(taps.before, taps.after, taps.dilation, strict=True):
        if (before - after) % dilation:
            raise Inexpressible(f"pads {taps.before} in front and {taps.after} behind with dilation {taps.dilation}")
        missing = (after - before) // dilation
        if abs(missing) > _MOST_ADDED_TAPS:
            raise Inexpressible(f"pads {taps.before} in front and {taps.after} behind")
        added.append((max(missing, 0), max(-missing, 0)))
    pad = tuple(map(max, taps.before, taps.after))
    weight = np.pad(weight, [(0, 0), (0, 0), *added])
    return weight, Taps(weight.shape[2:], taps.stride, pad, pad, taps.dilation)


def deconvolution(
    net: NetBuilder, name: str, x: Value, weight: np.ndarray, bias: np.ndarray | None, taps: Taps, group: int
) -> Value:
    if taps.before != taps.after:
        raise Inexpressible("has output padding or uneven padding, which Caffe's Deconvolution lacks")
    options = _window_options(taps, weight.shape[1] * group, group, bias is not None)
    return net.add("Deconvolution", name, [x], _params(weight, bias), convolution_param=options)[0]


def _params(weight: np.ndarray, bias: np.ndarray | None) -> list[np.ndarray]:
    return [weight] if bias is None else [weight, bias]


def _window_options(taps: Taps, num_output: int, group: int, has_bias: bool) -> dict[str, object]:
    """As one would write it: defaults left out, one number where all axes have the same."""
    options: dict[str, object] = {"num_output": num_output, "kernel_size": _once(taps.kernel)}
    for name, values, default in (("stride", taps.stride, 1), ("pad", taps.before, 0), ("dilation", taps.dilation, 1)):
        if set(values) - {default}:
            options[name] = _once(values)
    if group != 1:
        options["group"] = group
    if not has_bias:
        options["bias_term"] = False
    return options


def _once(values: tuple[int, ...]) -> tuple[int, ...]:
    return values[:1] if len(set(values)) == 1 else values


def zero_pad(net: NetBuilder, name: str, x: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    """Zeros around the spatial axes: a convolution of every channel with a kernel of one 1."""
    if x.rank < 3 or any(before[:2]) or any(after[:2]) or min((*before, *after)) < 0:
        raise Inexpressible(f"pads {tuple(before)} in front and {tuple(after)} behind; only spatial axes can be padded")
    axes = x.rank - 2
    one = np.ones((x.shape[1], 1, *[1] * axes), np.float32)
    taps = Taps((1,) * axes, (1,) * axes, tuple(before[2:]), tuple(after[2:]), (1,) * axes)
    return convolution(net, name, x, one, None, taps, x.shape[1])


def max_pool(net: NetBuilder, name: str, x: Value, taps: Taps) -> Value:
    return _pool(net, name, x, taps, _Pool.MAX)


def average_pool(net: NetBuilder, name: str, x: Value, taps: Taps, divisors: np.ndarray) -> Value:
    """`divisors`: rows × columns, what each window's sum is divided by."""
    y = _pool(net, name, x, taps, _Pool.AVE)
    window = _caffe_window(taps, x)
    heights, widths = (np.array(window.divisors(axis, size), float) for axis, size in enumerate(x.shape[2:]))
    ratio = np.outer(heights, widths) / divisors
    if (ratio == 1).all():
        return y
    options = {"axis": 2, "num_axes": 2, "bias_term": False}
    return net.add("Scale", f"{name}_area", [y], [ratio.astype(np.float32)], param=[_FIXED], scale_param=options)[0]


def included_divisors(taps: Taps, sizes: Sequence[int], *, padding: bool) -> np.ndarray:
    """Window sizes with or without the padding; what hangs over beyond it never counts."""
    lengths = []
    for axis, (size, count) in enumerate(zip(sizes, taps.outputs(sizes), strict=True)):
        starts = np.arange(count) * taps.stride[axis] - taps.before[axis]
        ends = np.minimum(starts + taps.kernel[axis], size + (taps.after[axis] if padding else 0))
        lengths.append(ends - (starts if padding else np.maximum(starts, 0)))
    return np.outer(*lengths).astype(float)


def global_pool(net: NetBuilder, name: str, x: Value, method: int) -> Value:
    if x.rank != 4:
        raise Inexpressible(f"pools over {x.rank - 2} spatial axes, Caffe's Pooling over 2")
    return net.add("Pooling", name, [x], pooling_param={"pool": method, "global_pooling": True})[0]


def _pool(net: NetBuilder, name: str, x: Value, taps: Taps, method: int) -> Value:
    if x.rank != 4 or len(taps.kernel) != 2:
        raise Inexpressible(f"pools over {len(taps.kernel)} spatial axes, Caffe's Pooling over 2")
    window = _caffe_window(taps, x)
    options: dict[str, object] = {"pool": method}
    for name, field, values, default in (
        ("kernel", "kernel_size", window.kernel, 0),
        ("stride", "stride", window.stride, 1),
        ("pad", "pad", window.pad, 0),
    ):
        if values[0] != values[1]:
            options |= {f"{name}_h": values[0], f"{name}_w": values[1]}
        elif values[0] != default:
            options[field] = values[0]
    if not window.rounds_up:
        options["round_mode"] = _Pool.FLOOR
    return net.add("Pooling", name, [x], pooling_param=options)[0]


def _caffe_window(taps: Taps, x: Value) -> PoolWindow:
    """Caffe's window with the same outputs; both roundings are tried, the plain one (up) first."""
    if set(taps.dilation) != {1}:
        raise Inexpressible(f"pools with dilation {taps.dilation}, Caffe's Pooling has none")
    for rounds_up in (True, False):
        window = PoolWindow(taps.kernel, taps.stride, taps.before, rounds_up)
        if window.outputs(x.shape[2:]) == taps.outputs(x.shape[2:]):
            return window
    raise Inexpressible(f"pads {taps.before} in front and {taps.after} behind: Caffe has other windows")
