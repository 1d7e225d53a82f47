"""Window: kernel, stride, pad and dilation of a ConvolutionParameter, one number per spatial axis.

    extent  = dilation · (kernel − 1) + 1
    outputs = (size + 2 · pad − extent) / stride + 1        what Convolution and Im2col make of `size`
    inputs  = stride · (size − 1) + extent − 2 · pad        what Deconvolution makes of `size`

The division cuts towards zero, as Caffe's does: a kernel that overhangs the padded bottom by less than one stride
still gives one output, with zeros beyond the edge.

Each option is given once for all axes, once per axis, or (two axes) as `_h` and `_w`; dilation has no such pair, but
`hole` with hole_h and hole_w, as forks call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.memory import MAX_EXTENT

# torch's CPU convolutions (oneDNN's) crash where two windows lie too many elements apart: seen with strides from 1024
# and from 2¹⁷ elements on.
_LONG_STRIDE = 256
_FAR_ELEMS = 1 << 16


@dataclass(frozen=True, slots=True)
class Window:
    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape

    @property
    def extent(self) -> Shape:
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def is_pointwise(self) -> bool:
        """True if every output sees the input at its own place only."""
        return set(self.kernel) == {1} and set(self.stride) == {1} and set(self.pad) == {0}

    def outputs(self, sizes: Sequence[int]) -> Shape:
        return tuple(
            int((size + 2 * p - e) / s) + 1
            for size, e, s, p in zip(sizes, self.extent, self.stride, self.pad, strict=True)
        )

    def inputs(self, sizes: Sequence[int]) -> Shape:
        return tuple(
            s * (size - 1) + e - 2 * p for size, e, s, p in zip(sizes, self.extent, self.stride, self.pad, strict=True)
        )

    def overhang(self, sizes: Sequence[int]) -> Shape:
        """How far the last output's window reaches beyond the padded bottom: 0 unless the kernel is larger than it."""
        return tuple(max(e - size - 2 * p, 0) for size, e, p in zip(sizes, self.extent, self.pad, strict=True))

    def padded(self, sizes: Sequence[int]) -> Shape:
        """Of a bottom of these sizes, with all that the windows see around it."""
        return tuple(s + 2 * p + o for s, p, o in zip(sizes, self.pad, self.overhang(sizes), strict=True))

    def strides_far(self, num_channels: int) -> bool:
        """True if the windows lie so far apart that torch's own convolutions are not to be trusted."""
        longest = max(self.stride, default=1)
        return longest > _LONG_STRIDE and longest * num_channels > _FAR_ELEMS

    def after_first(self) -> Window:
        """The same window without its first spatial axis."""
        return Window(self.kernel[1:], self.stride[1:], self.pad[1:], self.dilation[1:])


def check_plane(layer: Layer, shape: Shape, axis: int, window: Window, outputs: Shape) -> None:
    """Refuses bottoms without channels or without extent, and padding that no memory could hold."""
    if min(shape[axis:]) < 1:
        raise layer.error(
            f"needs at least one channel and one value along every spatial axis, got a bottom of shape {text_of(shape)}"
        )
    widest = tuple(map(max, shape[axis + 1 :], outputs))
    layer.check_room("the padded plane", (*shape[: axis + 1], *window.padded(widest)))


def read_window(layer: Layer, num_axes: int) -> Window:
    """The layer's convolution_param for a bottom with `num_axes` spatial axes, checked.

    `force_nd_im2col` and `engine` choose between implementations of the same result in Caffe; here torch chooses.
    """
    window = Window(
        kernel=_per_axis(layer, "kernel", "kernel_size", num_axes, None),
        stride=_per_axis(layer, "stride", "stride", num_axes, 1),
        pad=_per_axis(layer, "pad", "pad", num_axes, 0),
        dilation=_dilation(layer, num_axes),
    )
    for name, values in (("kernel size", window.kernel), ("stride", window.stride), ("dilation", window.dilation)):
        if min(values, default=1) < 1:
            raise layer.error(f"{name} must be at least 1 along every spatial axis, got {text_of(values)}")
    largest = max((*window.kernel, *window.stride, *window.pad, *window.dilation), default=1)
    if largest > MAX_EXTENT:
        raise layer.error(f"kernel size, stride, pad and dilation must be at most {MAX_EXTENT}, got {largest}")
    return window


def _dilation(layer: Layer, num_axes: int) -> Shape:
    """`dilation`, or what forks called it before Caffe had it: `hole`, or hole_h and hole_w."""
    options = layer.spec.convolution_param
    given = [name for name in ("hole", "hole_h", "hole_w") if options.HasField(name)]
    if not given:
        return _per_axis(layer, None, "dilation", num_axes, 1)
    if options.dilation:
        raise layer.error(f"give either dilation or {given[0]}, not both")
    return _per_axis(layer, "hole", "hole", num_axes, 1)


def _per_axis(layer: Layer, pair: str | None, field: str, num_axes: int, default: int | None) -> Shape:
    options = layer.spec.convolution_param
    value = getattr(options, field)
    if isinstance(value, int):  # a field that is not repeated
        listed: Shape = (value,) if options.HasField(field) else ()
    else:
        listed = tuple(value)
    if pair is not None and (options.HasField(f"{pair}_h") or options.HasField(f"{pair}_w")):
        if num_axes != 2:
            raise layer.error(
                f"{pair}_h and {pair}_w are for two spatial axes, got a bottom with {num_axes}; give {field} per axis"
            )
        if listed:
            raise layer.error(f"give either {field} or {pair}_h and {pair}_w, not both")
        return getattr(options, f"{pair}_h"), getattr(options, f"{pair}_w")
    if not listed and default is not None:
        return (default,) * num_axes
    if len(listed) == 1:
        return listed * num_axes
    if len(listed) != num_axes:
        raise layer.error(
            f"{field} must be given once, or once for each of the {num_axes} spatial axes, got {len(listed)} values"
        )
    return listed
